//! Settings of a layer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::consumer::Consumer;
use super::keys::KeyStore;
use super::limits::RequestLimits;
use super::message_result::MessageResult;
use super::on_large::OnLarge;
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::retry::RetryPolicy;

/// Policy of the fingerprints of requests.
pub(super) const POLICY: &str = "http_request";
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a tenant or a principal from the server's facts about the request.
type RequestFactFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;
/// Returns whether a request may get the answer stored for its key.
type ReplayCheckFn = dyn Fn(&Parts) -> Result<(), StatusCode> + Send + Sync;
/// Builds the answer to a request with a key that took effect as a message.
type MessageAnswerFn = dyn Fn(&MessageResult) -> Response<Bytes> + Send + Sync;

/// IdempotencyLayerBuilder of a layer, before it is built.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) keys: KeyStore,
    pub(super) consumer: Option<Consumer>,
    pub(super) tenant: Option<Arc<RequestFactFn>>,
    pub(super) principal: Option<Arc<RequestFactFn>>,
    pub(super) is_one_principal: bool,
    pub(super) fingerprint: Option<FingerprintPolicy>,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) wait: Duration,
    pub(super) handler_limit: Duration,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) limits: RequestLimits,
    pub(super) is_final: Option<Arc<dyn Fn(StatusCode) -> bool + Send + Sync>>,
    pub(super) omitted: Vec<HeaderName>,
    pub(super) described_by: Option<HeaderValue>,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Option<Duration>,
    pub(super) worker: String,
    pub(super) on_replay: Option<Arc<ReplayCheckFn>>,
    pub(super) from_message: Option<Arc<MessageAnswerFn>>,
    pub(super) refuse_old_keys: bool,
    pub(super) on_large: Option<OnLarge>,
    pub(super) lease: Option<Duration>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) problems: Vec<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// Headers that no retry gets: session and credentials of one client, connection headers, headers that the server sets, and Oncely's own.
/// All others are kept, so that this list can't drop a header that a browser needs to read an answer or to treat it safely.
const NEVER_KEPT: [&str; 22] = [
    "set-cookie",
    "set-cookie2",
    "authorization",
    "authentication-info",
    "proxy-authentication-info",
    "www-authenticate",
    "proxy-authenticate",
    "clear-site-data",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "via",
    "date",
    "age",
    "alt-svc",
    "idempotent-replayed",
    "oncely-body-omitted",
];

/// Returns whether a retry gets this header.
pub(super) fn is_kept(name: &HeaderName, omitted: &[HeaderName]) -> bool {
    !NEVER_KEPT.contains(&name.as_str()) && !omitted.contains(name)
}

/// Returns whether a retry would get the same status: it depends neither on the client's rights, nor on headers (which are not compared),
/// nor on a temporary state.
fn is_final(status: StatusCode) -> bool {
    !status.is_server_error()
        && !matches!(status.as_u16(), 401 | 403 | 405..=409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431)
}

impl Settings {
    pub(super) fn new(keys: KeyStore) -> Self {
        Self {
            keys,
            consumer: None,
            tenant: None,
            principal: None,
            is_one_principal: false,
            fingerprint: None,
            methods: vec![Method::POST, Method::PATCH],
            required: true,
            wait: Duration::from_secs(2),
            handler_limit: Duration::from_secs(30),
            max_request: 1_048_576,
            max_response: 262_144,
            limits: RequestLimits::default(),
            is_final: None,
            omitted: Vec::new(),
            described_by: None,
            retention: 7 * DAY,
            redelivery_horizon: None,
            worker: "http".to_owned(),
            on_replay: None,
            from_message: None,
            refuse_old_keys: false,
            on_large: None,
            lease: None,
            retry: None,
            problems: Vec::new(),
        }
    }

    /// Returns whether this answer is stored. `is_used`: the handler has used its transaction or run.
    pub(super) fn is_stored(&self, status: StatusCode, is_used: bool) -> bool {
        let is_final = match &self.is_final {
            Some(is_final) => is_final(status),
            None => is_final(status) && !(self.is_shared() && status.is_client_error()),
        };
        is_final && !status.is_server_error() && (is_used || status.is_success())
    }

    /// Returns whether messages arrive for its consumer, too.
    pub(super) fn is_shared(&self) -> bool {
        self.consumer.as_ref().is_some_and(Consumer::is_shared)
    }
}
