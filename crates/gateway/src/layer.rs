//! Builds the layer from the configuration.

use std::time::Duration;

use http::header::{HOST, HeaderMap};
use http::{Method, StatusCode};

use super::answer::{Meaning, classify_status};
use oncely_config::{GatewayConfig, GatewaySettings, GatewayTenant};
use oncely_core::identity::IdentityPart;
use oncely_http::{Consumer, IdempotencyLayer};
use oncely_lease::PostgresStore;
use oncely_postgres::SessionPool;

/// Time before and after a call of the service, for the beginning of the step and storing the answer.
const CALL_MARGIN: Duration = Duration::from_secs(10);
/// Delay before a call is repeated after an unknown outcome.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Limit of a key's failed and of its crashed runs; high, as clients decide how often they retry.
const MAX_RUNS: u32 = 10_000;

/// Builds the idempotency layer of the configuration, with its keys in PostgreSQL.
///
/// # Errors
/// If the layer refuses the configured values.
pub(super) fn build_layer(config: &GatewayConfig, sessions: SessionPool) -> anyhow::Result<IdempotencyLayer> {
    let settings = &config.gateway;
    let limit = settings.max_run + CALL_MARGIN;
    let tenant = settings.tenant.clone();
    let principal = settings.principal.clone().unwrap_or_default();
    let not_done = settings.not_done.clone();
    let bytes = |max: u32| usize::try_from(max).unwrap_or(usize::MAX);
    let layer = IdempotencyLayer::leased(PostgresStore::from_sessions(sessions))
        .consumer(Consumer::named(&settings.consumer))
        .tenant(move |parts| find_tenant(&tenant, &parts.headers))
        .principal(move |parts| build_principal(&principal, &parts.headers))
        .methods(parse_methods(settings)?)
        .required(settings.required)
        .wait(settings.wait)
        .handler_limit(limit)
        .retention(settings.retention)
        .max_request(bytes(settings.max_request))
        .max_response(bytes(settings.max_response))
        .read_limit(settings.read_limit)
        .lease(settings.lease.min(limit))
        .retry(vec![RETRY_DELAY], MAX_RUNS, MAX_RUNS)
        .is_final(move |status: StatusCode| classify_status(status, &not_done) == Meaning::Final);
    Ok(layer.build()?)
}

/// Parses the configured methods of requests with a key.
pub(super) fn parse_methods(settings: &GatewaySettings) -> Result<Vec<Method>, http::method::InvalidMethod> {
    settings.methods.iter().map(|method| method.parse()).collect()
}

/// Finds the tenant of a request: the fixed one, or the value of a header; `None` if the header is not present exactly once, or invalid.
pub(super) fn find_tenant(tenant: &GatewayTenant, headers: &HeaderMap) -> Option<String> {
    match tenant {
        GatewayTenant::Fixed(tenant) => Some(tenant.clone()),
        GatewayTenant::Header(name) => {
            let mut values = headers.get_all(name).iter();
            let (value, second) = (values.next()?, values.next());
            let part = IdentityPart::new(value.as_bytes()).ok().filter(|_| second.is_none())?;
            Some(part.as_str().to_owned())
        }
    }
}

/// Builds the principal of a request: the configured headers with their names, and always `Host`, since one service may have several
/// hosts. The layer stores only a hash of it.
fn build_principal(names: &[String], headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST).map(|host| host.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    let mut principal = format!("host:{}\n", host.escape_ascii());
    for name in names {
        for value in headers.get_all(name) {
            let value = value.as_bytes().escape_ascii();
            principal.push_str(&format!("{name}:{value}\n"));
        }
    }
    Some(principal)
}
