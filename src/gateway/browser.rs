//! What a script in a browser may read of the gateway's own answers.

use http::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use http_body::Body as _;

use super::problem::UPSTREAM;
use crate::http::{Body, KEY, REPLAY};

/// Headers of problems that a script needs.
const EXPOSED: HeaderValue = HeaderValue::from_static("retry-after, idempotent-replayed");

/// The origin of a script that sends a key.
///
/// A browser has asked the service itself (preflight) whether this origin may send `Idempotency-Key`, and with credentials, before it sent the request:
/// so the origin may be told what becomes of it. Of a request without a key nothing is known, and its problems can't be read.
pub(super) struct Asker(Option<HeaderValue>);

impl Asker {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self(headers.get(ORIGIN).filter(|_| headers.contains_key(KEY)).cloned())
    }

    /// Lets it read an answer of this name, if that is the gateway's own. The service's, and a replay of it, says itself who may.
    pub(super) fn let_read(self, name: &str, answer: &mut Response<Body>) {
        let Self(Some(origin)) = self else { return };
        let is_services = name == UPSTREAM || name == REPLAY && answer.body().size_hint().exact() != Some(0);
        let headers = answer.headers_mut();
        if is_services || headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}
