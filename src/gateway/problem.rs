//! What the gateway itself answers: RFC 9457, with types like those of the layer.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use crate::http::{AnswerName, Body, PROBLEMS, REPLAY, whole};

/// Why a request is not sent on, or its answer not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It breaks the rules of HTTP, or of what this gateway takes.
    Malformed,
    /// Upgrades, tunnels, codings.
    Unsupported,
    TenantMissing,
    /// A body that was sent on as it came has no end.
    BodyIncomplete,
    /// There was no connection: nothing was sent.
    UpstreamAway,
    /// The service's answer broke off, or can't be passed on.
    UpstreamBroken,
    /// It did not answer in time.
    UpstreamLate,
}

impl Kind {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The request is malformed"),
            Self::Unsupported => {
                (StatusCode::NOT_IMPLEMENTED, "unsupported", "The gateway does not pass this on")
            }
            Self::TenantMissing => {
                (StatusCode::BAD_REQUEST, "tenant-missing", "The request does not say whose it is")
            }
            // As of a body with a key.
            Self::BodyIncomplete => {
                (StatusCode::BAD_REQUEST, "body-incomplete", "The request did not arrive whole")
            }
            Self::UpstreamAway => {
                (StatusCode::SERVICE_UNAVAILABLE, "upstream-away", "The service can't be reached")
            }
            Self::UpstreamBroken => {
                (StatusCode::BAD_GATEWAY, "upstream-broken", "The service's answer can't be passed on")
            }
            Self::UpstreamLate => {
                (StatusCode::GATEWAY_TIMEOUT, "upstream-late", "The service did not answer in time")
            }
        }
    }
}

/// The service's own answer, for metrics.
pub(super) const UPSTREAM: &str = "upstream";
/// There was no place for the connection.
pub(super) const FULL: &str = "full";
/// What else is no problem of the layer's.
const OWN: [&str; 9] = [
    UPSTREAM,
    REPLAY,
    FULL,
    "malformed",
    "unsupported",
    "tenant-missing",
    "upstream-away",
    "upstream-broken",
    "upstream-late",
];

/// All answers by name, for metrics: the service's own, the first request's, and problems.
pub(super) fn answers() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(PROBLEMS)
}

/// A problem on its way to the client.
pub(super) fn problem(kind: Kind, detail: &str) -> Response<Body> {
    let (status, name, title) = kind.parts();
    let text = json!({
        "type": format!("urn:oncely:problem:{name}"), "title": title, "status": status.as_u16(), "detail": detail,
    });
    let mut response = Response::new(whole(text.to_string().into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if kind == Kind::UpstreamAway {
        headers.insert(RETRY_AFTER, HeaderValue::from(Duration::from_secs(1).as_secs()));
    }
    response.extensions_mut().insert(AnswerName(name));
    response
}
