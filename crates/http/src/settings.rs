//! Settings of a layer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde_json::Value;

use super::consumer::Consumer;
use super::limits::RequestLimits;
use super::store::{ConsumerRegistration, Store};
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::identity::IdentityPart;
use oncely_core::retry::RetryPolicy;
use oncely_lease::{AnyStore, LeaseRunner};

/// Policy of the fingerprints of requests.
pub(super) const POLICY: &str = "http_request";
pub(super) const DAY: Duration = Duration::from_secs(86_400);
/// Default length of a lease.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Time after the handler's limit for it to end and for its end to be recorded.
const END_MARGIN: Duration = Duration::from_secs(5);

/// Returns a tenant or a principal from the server's facts about the request.
type RequestFactFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;
/// Returns whether a request may get the answer stored for its key.
type ReplayCheckFn = dyn Fn(&Parts) -> Result<(), StatusCode> + Send + Sync;
/// Builds the response to a request with a key that took effect as a message.
type MessageResponseFn = dyn Fn(&MessageResult) -> Response<Bytes> + Send + Sync;

/// Store of a layer's keys, which also decides the kind of effects.
#[derive(Clone)]
pub(super) enum KeyStore {
    /// Keys are claimed in the transaction of the effect.
    Transactions(Store),
    /// Keys are held under a lease while the handler runs.
    Leases(AnyStore),
}

/// Treatment of an answer that exceeds [`IdempotencyLayerBuilder::max_response`](super::IdempotencyLayerBuilder::max_response) or never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLarge {
    /// Answers 500 and commits nothing. Default of a transactional layer; not available under leases, as the effect has already happened.
    Fail,
    /// Stores the answer without its body, then sends it in full. A retry gets status and kept headers, an empty body, and
    /// `Oncely-Body-Omitted: true`; a client with a broken stream can't get the rest by a retry.
    Omit,
}

/// Result of a key that took effect as a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MessageResult {
    /// The handler's response; `None` if it has none, or if a worker has encrypted it.
    pub response: Option<Value>,
    /// Whether the handler refused the message.
    pub is_refused: bool,
}

/// Settings of a layer.
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
    pub(super) from_message: Option<Arc<MessageResponseFn>>,
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

impl Settings {
    /// Creates the default settings of a layer.
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

    /// Returns whether messages arrive for the layer's consumer, too.
    pub(super) fn is_shared(&self) -> bool {
        self.consumer.as_ref().is_some_and(Consumer::is_shared)
    }

    /// Returns how long a copy of a message may arrive late.
    pub(super) fn horizon(&self) -> Duration {
        self.redelivery_horizon.unwrap_or(DAY)
    }

    /// Returns the treatment of answers that are too large.
    pub(super) fn effective_on_large(&self) -> OnLarge {
        match self.keys {
            KeyStore::Transactions(_) => self.on_large.unwrap_or(OnLarge::Fail),
            KeyStore::Leases(_) => OnLarge::Omit,
        }
    }

    /// Returns the retry policy of runs under a lease.
    pub(super) fn retry_policy(&self) -> RetryPolicy {
        let delays = || [1, 5, 30, 60, 300].map(Duration::from_secs).to_vec();
        let default = || RetryPolicy { delays: delays(), max_attempts: 30, max_crashes: 3 };
        self.retry.clone().unwrap_or_else(default)
    }

    /// Builds the runner that holds the keys of a leased layer.
    pub(super) fn build_runner(&self, store: AnyStore) -> LeaseRunner<AnyStore> {
        let RetryPolicy { delays, max_attempts, max_crashes } = self.retry_policy();
        LeaseRunner::new(store)
            .lease(self.lease.unwrap_or(DEFAULT_LEASE).min(self.handler_limit))
            .max_run(self.handler_limit + END_MARGIN)
            .retention(self.retention)
            .retry(delays, max_attempts, max_crashes)
    }

    /// Returns the consumer's registration in the database, the same as a worker's.
    pub(super) fn registration(&self, consumer: &IdentityPart) -> ConsumerRegistration {
        ConsumerRegistration {
            consumer: consumer.clone(),
            retention: self.retention,
            redelivery_horizon: self.horizon(),
            is_shared: self.is_shared(),
            fingerprint: self.fingerprint.as_ref().map_or_else(|| POLICY.to_owned(), FingerprintPolicy::name),
            worker: self.worker.clone(),
        }
    }
}
