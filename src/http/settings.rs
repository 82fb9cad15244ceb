//! What a layer is told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::consumer::Consumer;
use super::keys::Keys;
use super::limits::Limits;
use super::message_result::MessageResult;
use super::on_large::OnLarge;
use crate::fingerprint::FingerprintPolicy;
use crate::retry::RetryPolicy;

/// Policy of the fingerprints of requests.
pub(super) const POLICY: &str = "http_request";
const DAY: Duration = Duration::from_secs(86_400);

/// A tenant or a principal, from what the server knows of the request.
type Of = dyn Fn(&Parts) -> Option<String> + Send + Sync;
/// May a request have the answer that is stored for its key?
type OnReplay = dyn Fn(&Parts) -> Result<(), StatusCode> + Send + Sync;
/// How a request is answered whose key took effect as a message.
type FromMessage = dyn Fn(&MessageResult) -> Response<Bytes> + Send + Sync;

/// What a layer does, before it is built.
#[derive(Clone)]
pub struct Settings {
    pub(super) keys: Keys,
    pub(super) consumer: Option<Consumer>,
    pub(super) tenant: Option<Arc<Of>>,
    pub(super) principal: Option<Arc<Of>>,
    pub(super) is_one_principal: bool,
    pub(super) fingerprint: Option<FingerprintPolicy>,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) wait: Duration,
    pub(super) handler_limit: Duration,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) limits: Limits,
    is_final: Option<Arc<dyn Fn(StatusCode) -> bool + Send + Sync>>,
    pub(super) omitted: Vec<HeaderName>,
    pub(super) described_by: Option<HeaderValue>,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Option<Duration>,
    pub(super) worker: String,
    pub(super) on_replay: Option<Arc<OnReplay>>,
    pub(super) from_message: Option<Arc<FromMessage>>,
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

/// Headers of an answer that no retry gets again: they are one client's session or credentials, one connection's, the server's to say, or ours. All
/// others are kept: what a browser needs to read an answer, or to treat it with care, is lost by no list that forgot it.
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

/// Does a retry get this header of an answer again?
pub(super) fn is_kept(name: &HeaderName, omitted: &[HeaderName]) -> bool {
    !NEVER_KEPT.contains(&name.as_str()) && !omitted.contains(name)
}

/// May not be another one the next time: neither who asks is its reason, nor a header, which is not compared, nor what passes by.
fn is_final(status: StatusCode) -> bool {
    !status.is_server_error()
        && !matches!(status.as_u16(), 401 | 403 | 405..=409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431)
}

impl Settings {
    pub(super) fn new(keys: Keys) -> Self {
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
            limits: Limits::default(),
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

    /// For which consumer the keys are. There is no default.
    #[must_use]
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumer = Some(consumer);
        self
    }

    /// Whose request it is: from what authentication has left in the request's extensions, never from what a client may say unasked.
    /// `None`, or what is no identity (1 to 255 bytes without NUL), is a 500, and logged. There is no default.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.tenant = Some(Arc::new(tenant));
        self
    }

    /// Who sends it. The same key from another principal is answered with 422, and nothing of the first one's answer; requests without one
    /// (`None`) are of one more. There is no default: this, or [`Settings::one_principal`].
    #[must_use]
    pub fn principal(mut self, principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.principal = Some(Arc::new(principal));
        self
    }

    /// All requests of a tenant are one principal's: whoever sends the same request with the same key gets the answer, and
    /// [`Settings::on_replay`] may say otherwise. With [`Settings::fingerprint`] there is no other way, since principals are not compared then.
    #[must_use]
    pub fn one_principal(mut self) -> Self {
        self.is_one_principal = true;
        self
    }

    /// What is compared when a key comes back, as of the queue of a shared consumer: of the body alone, and so with
    /// [`Settings::one_principal`]. Default: method, path, query, body and principal. The path is the client's, also in a router of axum that is
    /// nested in another one (feature `axum`). The body is compared byte for byte, whatever it is coded with: a multipart body that is made again has
    /// another boundary, and a gzip header another time, so clients keep the bytes of the first try. What its parts mean is the handler's to judge, and
    /// two that a comparison of ours took for the same would be one effect too few.
    #[must_use]
    pub fn fingerprint(mut self, policy: FingerprintPolicy) -> Self {
        self.fingerprint = Some(policy);
        self
    }

    /// The methods that the layer looks at. Default: POST and PATCH; all others repeat themselves without harm.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Is a request without a key refused? Default: yes. Else it passes as if the layer were not there, without a [`Tx`](super::Tx).
    #[must_use]
    pub fn required(mut self, required: bool) -> Self {
        self.required = required;
        self
    }

    /// How long a request waits for the first one of its key. Default: 2 s; at most 60 s. It holds no connection meanwhile.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long a handler may take, its answer included. Default: 30 s; at most 60 s, and 12 hours under a lease, where it is a second at least.
    /// Past it the client gets a 503. A transaction is not committed then, whatever the handler does later; it has as long again to end, and is
    /// dropped. A run under a lease is [told](crate::lease::Run::lost), has two seconds to end, and is dropped and counted as failed.
    #[must_use]
    pub fn handler_limit(mut self, limit: Duration) -> Self {
        self.handler_limit = limit;
        self
    }

    /// Longest body of a request with a key, in bytes. Default: 1 MiB, held in memory.
    #[must_use]
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// Longest body of an answer, in bytes. Default: 256 KiB, held in memory and stored with the key. What becomes of a longer one:
    /// [`Settings::on_large`]. Stores of leases keep 64 KiB of JSON for an answer, so that a body of more than 48 KiB or so (less its headers) is
    /// sent, and stored without, too.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// How many requests with a key may be at work at once, those included whose client has left, or which wait for another one or for a
    /// connection. One more gets a 503 `busy` with `Retry-After`, once its body is there: one that is still arriving has no place. Default: 1,000.
    #[must_use]
    pub fn max_at_work(mut self, requests: usize) -> Self {
        self.limits.requests = requests;
        self
    }

    /// How many bytes of the bodies of these requests may be here together, counted as they come: what is announced counts nothing, and one for
    /// whose next bytes there is no room is refused half-way. As [`Settings::max_at_work`]. Default: 64 MiB, or twice `max_request` where that is more.
    #[must_use]
    pub fn max_bytes_at_work(mut self, bytes: usize) -> Self {
        self.limits.bytes = Some(bytes);
        self
    }

    /// How long the body of a request with a key may take to arrive; then it is a 408, and nothing runs. Default: 30 s; at most 10 minutes.
    #[must_use]
    pub fn read_limit(mut self, limit: Duration) -> Self {
        self.limits.read = limit;
        self
    }

    /// Which answers are stored. Default: all but 5xx, 401, 403, 405 to 409, 411 to 417, 421, 423 to 426, 428, 429 and 431; for a
    /// [shared](Consumer::shared) consumer all but 4xx and 5xx, since its message may come yet. Never stored: a server's error (5xx), and a 3xx or 4xx
    /// of whoever has not used its [`Tx`](super::Tx) (under leases: not taken its [`Run`](super::Run)), such as a router or an extractor.
    #[must_use]
    pub fn is_final(mut self, is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.is_final = Some(Arc::new(is_final));
        self
    }

    /// Is this answer stored? `is_used`: the handler has used what it got of the layer.
    pub(super) fn is_stored(&self, status: StatusCode, is_used: bool) -> bool {
        let is_final = match &self.is_final {
            Some(is_final) => is_final(status),
            None => is_final(status) && !(self.is_shared() && status.is_client_error()),
        };
        is_final && !status.is_server_error() && (is_used || status.is_success())
    }

    /// Do messages come for its consumer?
    pub(super) fn is_shared(&self) -> bool {
        self.consumer.as_ref().is_some_and(Consumer::is_shared)
    }

    /// Headers of an answer that a retry does not get again. Kept are all but these, cookies and credentials (set-cookie, authorization,
    /// www-authenticate, …), content-length, date, and those of a connection.
    #[must_use]
    pub fn omit_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.omitted.extend(names);
        self
    }

    /// Where clients read how keys are to be used: a `Link` with `rel="describedby"` goes with a refusal of a key.
    #[must_use]
    pub fn described_by(mut self, url: &str) -> Self {
        match HeaderValue::try_from(format!("<{url}>; rel=\"describedby\"")) {
            Ok(link) => self.described_by = Some(link),
            Err(_) => self.problems.push("described_by: this can't be in a header".to_owned()),
        }
        self
    }

    /// What becomes of an answer that is longer than [`Settings::max_response`]. Default: [`OnLarge::Fail`] in transactions; under leases always
    /// [`OnLarge::Omit`].
    #[must_use]
    pub fn on_large(mut self, on_large: OnLarge) -> Self {
        self.on_large = Some(on_large);
        self
    }

    /// May this request have the answer that is stored for its key? Asked before each replay; else the same request by somebody else, whom
    /// [`Settings::principal`] does not tell apart or who has lost the right since, would get it. An error is the status of the answer then, of
    /// the type `replay-refused`.
    #[must_use]
    pub fn on_replay(
        mut self,
        may: impl Fn(&Parts) -> Result<(), StatusCode> + Send + Sync + 'static,
    ) -> Self {
        self.on_replay = Some(Arc::new(may));
        self
    }

    /// How a request is answered whose key took effect as a message of the [shared](Consumer::shared) consumer. Default: 200 with the
    /// message's response as JSON, 204 where there is none, 422 where its handler refused it. `Idempotent-Replayed: true` goes with it.
    #[must_use]
    pub fn from_message(
        mut self,
        map: impl Fn(&MessageResult) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.from_message = Some(Arc::new(map));
        self
    }

    /// Refuses keys that tell their time (UUIDv7, or a header `Repeatability-First-Sent` with a date of RFC 9110; the earlier one of both)
    /// and may have been forgotten: 412 `key-too-old`, and nothing runs. Those are older than the retention less an hour, because clocks differ;
    /// one that is more than an hour ahead is no key (400). By the database's clock in transactions, by this machine's under leases. Default: no;
    /// a key that tells no time is never too old.
    #[must_use]
    pub fn refuse_old_keys(mut self, refuse: bool) -> Self {
        self.refuse_old_keys = refuse;
        self
    }

    /// How long a lease is, from its claim or renewal on: after the death of a process its keys wait for so long. For
    /// [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased). Default: 30 s, and no longer than [`Settings::handler_limit`]; at least a
    /// second.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Delays after the first, second, … failed run, of which the last one repeats: a retry that comes earlier waits, or gets a 503 with
    /// `Retry-After`. How many runs may fail, and how many may end without a word (their process died), before the key is given up: 1 to 10,000
    /// each. For [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased). Default: 1 s, 5 s, 30 s, 1 min, 5 min; 30 runs, so that a retrying
    /// client has about two hours; 3 deaths.
    #[must_use]
    pub fn retry(mut self, delays: Vec<Duration>, max_attempts: u32, max_crashes: u32) -> Self {
        self.retry = Some(RetryPolicy { delays, max_attempts, max_crashes });
        self
    }

    /// How long keys and answers are kept. Default: 7 days; the longest that a process has started with counts, as for queues. A
    /// [shared](Consumer::shared) consumer's are its queue's, too: they are never shortened.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How old a request may be that still comes again: a tenant's shorter retention ends there. Default: 1 day; the longest that a process has
    /// started with counts. Behind [`IdempotencyLayer::transactional`](super::IdempotencyLayer::transactional); a
    /// [shared](Consumer::shared) consumer's is that of its queue.
    #[must_use]
    pub fn redelivery_horizon(mut self, horizon: Duration) -> Self {
        self.redelivery_horizon = Some(horizon);
        self
    }

    /// How this process calls itself in the trail, behind [`IdempotencyLayer::transactional`](super::IdempotencyLayer::transactional). Default:
    /// `http`.
    #[must_use]
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }
}
