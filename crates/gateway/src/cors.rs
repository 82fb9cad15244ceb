//! CORS headers of the gateway's own answers.

use http::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use http_body::Body as _;

use super::problem::UPSTREAM;
use oncely_http::{Body, KEY, REPLAY};

/// Headers of problems that a script needs.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("retry-after, idempotent-replayed");

/// Origin of a script that sends a key.
///
/// The browser has asked the service by a preflight whether this origin may send `Idempotency-Key`, and with credentials, before it sent
/// the request, so the origin may read the result. A request without a key proves nothing, and its problems can't be read.
pub(super) struct ScriptOrigin(Option<HeaderValue>);

impl ScriptOrigin {
    /// Returns the `Origin` of a request that has an idempotency key; for other requests no origin may read the answer.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        Self(headers.get(ORIGIN).filter(|_| headers.contains_key(KEY)).cloned())
    }

    /// Adds the headers that let the origin read a response with this name, if it is the gateway's own. The service's answer and its replay
    /// carry the service's own headers.
    pub(super) fn allow(self, name: &str, response: &mut Response<Body>) {
        let Self(Some(origin)) = self else { return };
        let is_from_service =
            name == UPSTREAM || name == REPLAY && response.body().size_hint().exact() != Some(0);
        let headers = response.headers_mut();
        if is_from_service || headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}
