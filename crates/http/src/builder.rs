//! The builder of a layer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::consumer::Consumer;
use super::settings::{KeyStore, MessageResult, OnLarge, Settings};
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::retry::RetryPolicy;

/// Sets up an [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone, Debug)]
pub struct IdempotencyLayerBuilder(pub(super) Settings);

impl IdempotencyLayerBuilder {
    pub(super) fn new(keys: KeyStore) -> Self {
        Self(Settings::new(keys))
    }

    /// Sets the consumer of the keys. There is no default.
    #[must_use]
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.0.consumer = Some(consumer);
        self
    }

    /// Sets the tenant of a request, from the data that authentication has put in the request's extensions; never from an unauthenticated
    /// value of the client. `None`, or an invalid identity (valid are 1 to 255 bytes without NUL), is a 500, and logged. There is no
    /// default.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.0.tenant = Some(Arc::new(tenant));
        self
    }

    /// Sets the principal that sends the request. The same key from another principal is answered with 422, without any part of the first
    /// answer; requests with `None` share one principal. There is no default: set this, or [`IdempotencyLayerBuilder::one_principal`].
    #[must_use]
    pub fn principal(mut self, principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.0.principal = Some(Arc::new(principal));
        self
    }

    /// Treats all requests of a tenant as one principal's: any client that sends the same request with the same key gets the answer, unless
    /// [`IdempotencyLayerBuilder::on_replay`] refuses. Required with [`IdempotencyLayerBuilder::fingerprint`], since principals are not compared then.
    #[must_use]
    pub fn one_principal(mut self) -> Self {
        self.0.is_one_principal = true;
        self
    }

    /// Sets the fingerprint policy for a key that comes back, as for the queue of a shared consumer: it compares the body alone, and needs
    /// [`IdempotencyLayerBuilder::one_principal`]. Default: method, path, query, body and principal. The path is the client's, also in a nested axum
    /// router (feature `axum`). The body is compared byte for byte, in any encoding: a multipart body that is built again has another
    /// boundary, and a gzip header another time, so clients must keep the bytes of the first request. A comparison by meaning could take
    /// two different requests for the same, and lose an effect.
    #[must_use]
    pub fn fingerprint(mut self, policy: FingerprintPolicy) -> Self {
        self.0.fingerprint = Some(policy);
        self
    }

    /// Sets the methods that the layer handles. Default: POST and PATCH; the others are safe to repeat.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.0.methods = methods.into_iter().collect();
        self
    }

    /// Sets whether a request without a key is refused. Default: yes. If not, it passes unchanged, without a [`Tx`](super::Tx).
    #[must_use]
    pub fn required(mut self, required: bool) -> Self {
        self.0.required = required;
        self
    }

    /// Sets how long a request waits for the first one of its key. Default: 2 s; at most 60 s. It holds no connection meanwhile.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0.wait = wait;
        self
    }

    /// Sets the time limit of a handler, including its answer. Default: 30 s; at most 60 s; under a lease 1 s to 12 hours. Past it the
    /// client gets a 503. A transaction is then not committed, regardless of the handler; the handler has the same time again to end, and
    /// is dropped. A run under a lease is [notified](oncely_lease::Run::wait_until_lost), has two seconds to end, and is dropped and
    /// counted as failed. A run that lost its lease before may go on with a call that is not repeated until then.
    #[must_use]
    pub fn handler_limit(mut self, limit: Duration) -> Self {
        self.0.handler_limit = limit;
        self
    }

    /// Sets the maximum body size of a request with a key, in bytes. Default: 1 MiB, held in memory.
    #[must_use]
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.0.max_request = bytes;
        self
    }

    /// Sets the maximum body size of an answer, in bytes. Default: 256 KiB, held in memory and stored with the key. For larger ones see
    /// [`IdempotencyLayerBuilder::on_large`]. Lease stores keep 64 KiB of JSON for an answer, so a body of more than about 48 KiB (less its headers) is
    /// sent, and stored without its body, too.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.0.max_response = bytes;
        self
    }

    /// Sets how many requests with a key may be at work at once, including those that have lost their client or wait for another request or
    /// a connection. One more gets a 503 `busy` with `Retry-After`, once its body is complete: an arriving request is not counted. Default:
    /// 1,000.
    #[must_use]
    pub fn max_at_work(mut self, requests: usize) -> Self {
        self.0.limits.requests = requests;
        self
    }

    /// Sets how many bytes of the bodies of these requests may be held at once. Bytes count when they arrive, not when announced; a request
    /// with no room for its next bytes is refused half-way. See [`IdempotencyLayerBuilder::max_at_work`]. Default: 64 MiB, or twice `max_request` if that
    /// is more.
    #[must_use]
    pub fn max_bytes_at_work(mut self, bytes: usize) -> Self {
        self.0.limits.bytes = Some(bytes);
        self
    }

    /// Sets how long the body of a request with a key may take to arrive; past it the answer is 408, and nothing runs. Default: 30 s; at
    /// most 10 minutes.
    #[must_use]
    pub fn read_limit(mut self, limit: Duration) -> Self {
        self.0.limits.read_limit = limit;
        self
    }

    /// Sets which answers are stored. Default: all but 5xx, 401, 403, 405 to 409, 411 to 417, 421, 423 to 426, 428, 429 and 431; for a
    /// [shared](Consumer::shared) consumer all but 4xx and 5xx, since its message may still arrive. Never stored: 5xx, and a 3xx or 4xx
    /// from a router, an extractor or a handler that has not used its [`Tx`](super::Tx) (under leases: not taken its [`Run`](super::Run)).
    #[must_use]
    pub fn is_final(mut self, is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.0.is_final = Some(Arc::new(is_final));
        self
    }

    /// Omits headers of an answer on a retry. All others are kept, except cookies and credentials (set-cookie, authorization,
    /// www-authenticate, …), content-length, date, and connection headers.
    #[must_use]
    pub fn omit_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.0.omitted.extend(names);
        self
    }

    /// Sets the URL of the documentation of keys: refusals of a key carry a `Link` with `rel="describedby"`.
    #[must_use]
    pub fn described_by(mut self, url: &str) -> Self {
        match HeaderValue::try_from(format!("<{url}>; rel=\"describedby\"")) {
            Ok(link) => self.0.described_by = Some(link),
            Err(_) => self.0.problems.push("described_by: this can't be in a header".to_owned()),
        }
        self
    }

    /// Sets the treatment of answers longer than [`IdempotencyLayerBuilder::max_response`]. Default: [`OnLarge::Fail`] in transactions; under leases
    /// always [`OnLarge::Omit`].
    #[must_use]
    pub fn on_large(mut self, on_large: OnLarge) -> Self {
        self.0.on_large = Some(on_large);
        self
    }

    /// Sets a check before each replay. Without it another client with the same request, which [`IdempotencyLayerBuilder::principal`] does not distinguish
    /// or which has lost the right since, would get the answer. An error is the status of the answer, of the type `replay-refused`.
    #[must_use]
    pub fn on_replay(
        mut self,
        check: impl Fn(&Parts) -> Result<(), StatusCode> + Send + Sync + 'static,
    ) -> Self {
        self.0.on_replay = Some(Arc::new(check));
        self
    }

    /// Sets the answer to a request with a key that took effect as a message of the [shared](Consumer::shared) consumer. Default: 200 with
    /// the message's response as JSON, 204 without a response, 422 if its handler refused it. `Idempotent-Replayed: true` is added.
    #[must_use]
    pub fn from_message(
        mut self,
        map: impl Fn(&MessageResult) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.0.from_message = Some(Arc::new(map));
        self
    }

    /// Refuses keys that carry a time (a UUIDv7, or a header `Repeatability-First-Sent` with a date of RFC 9110; the earlier one of both)
    /// and may have been forgotten: 412 `key-too-old`, and nothing runs. That is a key older than the retention less an hour, for differing
    /// clocks; one that is more than an hour ahead is invalid (400). Uses the database's clock in transactions, this machine's under
    /// leases. Default: no; a key without a time is never too old.
    #[must_use]
    pub fn refuse_old_keys(mut self, refuse: bool) -> Self {
        self.0.refuse_old_keys = refuse;
        self
    }

    /// Sets the length of a lease, from its claim or renewal on: after a process crashed, its keys wait for this time. For
    /// [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased). Default: 30 s, and no longer than [`IdempotencyLayerBuilder::handler_limit`]; at
    /// least a second.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.lease = Some(lease);
        self
    }

    /// Sets the delays after the first, second, … failed run, of which the last one repeats: an earlier retry waits, or gets a 503 with
    /// `Retry-After`. Also sets how many runs may fail, and how many may end without a result (their process crashed), before the key is
    /// given up: 1 to 10,000 each. For [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased). Default: 1 s, 5 s, 30 s, 1 min, 5
    /// min; 30 failed runs, which gives a retrying client about two hours; 3 crashes.
    #[must_use]
    pub fn retry(mut self, delays: Vec<Duration>, max_attempts: u32, max_crashes: u32) -> Self {
        self.0.retry = Some(RetryPolicy { delays, max_attempts, max_crashes });
        self
    }

    /// Sets how long keys and answers are kept. Default: 7 days; the longest value that a process has started with counts, as for queues.
    /// The keys of a [shared](Consumer::shared) consumer are also its queue's: their retention is never shortened.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.0.retention = retention;
        self
    }

    /// Sets the maximum age of a request that is still repeated: a lower bound for the retention of a tenant. Default: 1 day; the longest
    /// value that a process has started with counts. For [`IdempotencyLayer::transactional`](super::IdempotencyLayer::transactional); a
    /// [shared](Consumer::shared) consumer uses its queue's.
    #[must_use]
    pub fn redelivery_horizon(mut self, horizon: Duration) -> Self {
        self.0.redelivery_horizon = Some(horizon);
        self
    }

    /// Sets this process's name in the trail, for [`IdempotencyLayer::transactional`](super::IdempotencyLayer::transactional). Default:
    /// `http`.
    #[must_use]
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.0.worker = name.into();
        self
    }
}
