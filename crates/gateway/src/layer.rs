//! Builds the layer from the configuration.

use std::time::Duration;

use http::header::{HOST, HeaderMap};
use http::{Method, StatusCode};

use super::answer::{Meaning, meaning};
use oncely_config::{GatewayConfig, GatewaySettings, GatewayTenant};
use oncely_core::identity::IdentityPart;
use oncely_http::{Consumer, IdempotencyLayer};
use oncely_lease::PostgresStore;
use oncely_postgres::SessionPool;

/// Time before and after a call of the service, for the beginning of the step and storing the answer.
const SPARE: Duration = Duration::from_secs(10);
/// Delay before a call is repeated after an unknown outcome.
const AGAIN: Duration = Duration::from_secs(1);
/// Limit of a key's failed and of its crashed runs; high, as clients decide how often they retry.
const TRIES: u32 = 10_000;

/// Builds the layer.
///
/// # Errors
/// If the layer refuses the configured values.
pub(super) fn layer(config: &GatewayConfig, sessions: SessionPool) -> anyhow::Result<IdempotencyLayer> {
    let settings = &config.gateway;
    let limit = settings.max_run + SPARE;
    let tenant = settings.tenant.clone();
    let principal = settings.principal.clone().unwrap_or_default();
    let not_done = settings.not_done.clone();
    let bytes = |most: u32| usize::try_from(most).unwrap_or(usize::MAX);
    let layer = IdempotencyLayer::leased(PostgresStore::of_sessions(sessions))
        .consumer(Consumer::named(&settings.consumer))
        .tenant(move |parts| tenant_of(&tenant, &parts.headers))
        .principal(move |parts| principal_of(&principal, &parts.headers))
        .methods(methods(settings)?)
        .required(settings.required)
        .wait(settings.wait)
        .handler_limit(limit)
        .retention(settings.retention)
        .max_request(bytes(settings.max_request))
        .max_response(bytes(settings.max_response))
        .read_limit(settings.read_limit)
        .lease(settings.lease.min(limit))
        .retry(vec![AGAIN], TRIES, TRIES)
        .is_final(move |status: StatusCode| meaning(status, &not_done) == Meaning::Final);
    Ok(layer.build()?)
}

/// Returns the methods of requests with a key.
pub(super) fn methods(settings: &GatewaySettings) -> Result<Vec<Method>, http::method::InvalidMethod> {
    settings.methods.iter().map(|method| method.parse()).collect()
}

/// Returns the tenant of a request: the fixed one, or the value of a header that is present once.
pub(super) fn tenant_of(tenant: &GatewayTenant, headers: &HeaderMap) -> Option<String> {
    match tenant {
        GatewayTenant::Fixed(tenant) => Some(tenant.clone()),
        GatewayTenant::Header(name) => {
            let mut said = headers.get_all(name).iter();
            let (value, other) = (said.next()?, said.next());
            let part = IdentityPart::new(value.as_bytes()).ok().filter(|_| other.is_none())?;
            Some(part.as_str().to_owned())
        }
    }
}

/// Returns the principal of a request: the configured headers with their names, and always `Host`, since one service may have several
/// hosts. The layer stores only a hash of it.
fn principal_of(names: &[String], headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST).map(|host| host.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    let mut said = format!("host:{}\n", host.escape_ascii());
    for name in names {
        for value in headers.get_all(name) {
            let value = value.as_bytes().escape_ascii();
            said.push_str(&format!("{name}:{value}\n"));
        }
    }
    Some(said)
}
