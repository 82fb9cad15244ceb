//! The layer as the configuration has it.

use std::time::Duration;

use http::header::{HOST, HeaderMap};
use http::{Method, StatusCode};

use super::answer::{Meaning, meaning};
use crate::config::{GatewayConfig, GatewaySettings, GatewayTenant};
use crate::http::{Consumer, IdempotencyLayer};
use crate::identity::IdentityPart;
use crate::lease::PostgresStore;
use crate::pg::SessionPool;

/// For what comes before and after a call of the service: its step begins, and its answer is stored.
const SPARE: Duration = Duration::from_secs(10);
/// From a call whose outcome is not known to the next one.
const AGAIN: Duration = Duration::from_secs(1);
/// How many runs of a key may fail, or die: clients decide how often they ask.
const TRIES: u32 = 10_000;

/// Makes it.
///
/// # Errors
/// Where it does not take what the configuration says.
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

/// Methods of requests that have a key.
pub(super) fn methods(settings: &GatewaySettings) -> Result<Vec<Method>, http::method::InvalidMethod> {
    settings.methods.iter().map(|method| method.parse()).collect()
}

/// Whose request it is: as it is said, or by a header that is there once.
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

/// Who sends it, and to whom: the headers that say so, each with its name; `Host` always, since one service may have several. The layer keeps no
/// more of it than a hash.
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
