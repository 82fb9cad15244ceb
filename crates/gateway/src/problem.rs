//! The gateway's own answers: RFC 9457 problems, with types like those of the layer.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use oncely_http::{AnswerName, Body, PROBLEMS, REPLAY, full_body};

/// Kind of a problem: the request is not sent on, or its answer not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatewayProblemKind {
    /// The request violates HTTP, or a restriction of this gateway.
    Malformed,
    /// Upgrades, tunnels, unknown codings.
    Unsupported,
    TenantMissing,
    /// A streamed body did not arrive completely.
    BodyIncomplete,
    /// No connection to the service: nothing was sent.
    UpstreamAway,
    /// The service's answer broke off, or can't be passed on.
    UpstreamBroken,
    /// The service did not answer within `gateway.max_run`.
    UpstreamLate,
}

impl GatewayProblemKind {
    /// Returns status, name and title of the problem.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The request is malformed"),
            Self::Unsupported => {
                (StatusCode::NOT_IMPLEMENTED, "unsupported", "The gateway does not pass this on")
            }
            Self::TenantMissing => {
                (StatusCode::BAD_REQUEST, "tenant-missing", "The request does not say whose it is")
            }
            // Name and status are those of the layer's problem for a body with a key.
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

/// Name of the service's own answer in metrics.
pub(super) const UPSTREAM: &str = "upstream";
/// Name of the refusal of a connection over the limit.
pub(super) const FULL: &str = "full";
/// Names of answers that are not problems of the layer.
const OWN_ANSWER_NAMES: [&str; 9] = [
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

/// Returns the names of all answers, for metrics: the service's, the replay, and problems.
pub(super) fn answer_names() -> impl Iterator<Item = &'static str> {
    OWN_ANSWER_NAMES.into_iter().chain(PROBLEMS)
}

/// Builds the response with a problem.
pub(super) fn build_problem_response(kind: GatewayProblemKind, detail: &str) -> Response<Body> {
    let (status, name, title) = kind.parts();
    let text = json!({
        "type": format!("urn:oncely:problem:{name}"), "title": title, "status": status.as_u16(), "detail": detail,
    });
    let mut response = Response::new(full_body(text.to_string().into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if kind == GatewayProblemKind::UpstreamAway {
        headers.insert(RETRY_AFTER, HeaderValue::from(Duration::from_secs(1).as_secs()));
    }
    response.extensions_mut().insert(AnswerName(name));
    response
}
