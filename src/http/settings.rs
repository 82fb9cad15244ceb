//! What a layer is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    LAST_MODIFIED, LINK, LOCATION, SET_COOKIE,
};
use http::request::Parts;
use http::{Method, StatusCode};

use super::store::{Store, Told};
use crate::fingerprint::FingerprintPolicy;
use crate::identity::IdentityPart;

/// Policy of the fingerprints of requests.
pub(super) const POLICY: &str = "http_request";
const DAY: Duration = Duration::from_secs(86_400);
/// A session that rests in a transaction for longer is ended by PostgreSQL (`pg::begin_on_pool`).
const LONGEST_HANDLER: Duration = Duration::from_secs(60);

/// A tenant or a principal, from what the server knows of the request.
type Of = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// For which consumer a request's key is: two consumers may use one key for two effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer(pub(super) Name);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Fixed(String),
    /// Of a queue, too.
    Shared(String),
    #[cfg(feature = "axum")]
    Route,
}

impl Consumer {
    /// One name for all requests that come through the layer, 1 to 255 bytes.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Name::Fixed(name.into()))
    }

    /// The consumer of a queue, whose messages take the same effect: a request that comes again as a message with its key as the
    /// `message_id`, or the other way round, is a duplicate. [`Settings::fingerprint`] must be the queue's, so that both can be compared; an
    /// answer in JSON of up to 64 KiB is also the response that copies of the message have.
    pub fn shared(queue_consumer: impl Into<String>) -> Self {
        Self(Name::Shared(queue_consumer.into()))
    }

    /// Method and route template, such as `POST /orders/{id}`, as axum's router knows it. The layer must be added to the routes
    /// (`Router::layer` after them).
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn route() -> Self {
        Self(Name::Route)
    }

    pub(super) fn of(&self, parts: &Parts) -> Option<IdentityPart> {
        let name = match &self.0 {
            Name::Fixed(name) | Name::Shared(name) => name.clone(),
            #[cfg(feature = "axum")]
            Name::Route => {
                let path = parts.extensions.get::<axum::extract::MatchedPath>()?;
                format!("{} {}", parts.method, path.as_str())
            }
        };
        #[cfg(not(feature = "axum"))]
        let _ = parts;
        IdentityPart::new(name.as_bytes()).ok()
    }

    /// Do messages come for it?
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, Name::Shared(_))
    }
}

/// What is wrong with a layer's settings, all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct SettingsError(Vec<String>);

/// What a layer does, before it is built.
#[derive(Clone)]
pub struct Settings {
    store: Store,
    pub(super) consumer: Option<Consumer>,
    pub(super) tenant: Option<Arc<Of>>,
    pub(super) principal: Option<Arc<Of>>,
    pub(super) fingerprint: Option<FingerprintPolicy>,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) wait: Duration,
    pub(super) handler_limit: Duration,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) is_final: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    pub(super) kept: Vec<HeaderName>,
    pub(super) described_by: Option<HeaderValue>,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Duration,
    pub(super) worker: String,
    problems: Vec<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// May not be another one the next time.
fn is_final(status: StatusCode) -> bool {
    !status.is_server_error() && !matches!(status.as_u16(), 401 | 403 | 407..=409 | 421 | 423 | 425 | 429)
}

impl Settings {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            consumer: None,
            tenant: None,
            principal: None,
            fingerprint: None,
            methods: vec![Method::POST, Method::PATCH],
            required: true,
            wait: Duration::from_secs(2),
            handler_limit: Duration::from_secs(30),
            max_request: 1_048_576,
            max_response: 262_144,
            is_final: Arc::new(is_final),
            kept: vec![
                CONTENT_TYPE,
                CONTENT_LANGUAGE,
                CONTENT_LOCATION,
                LOCATION,
                ETAG,
                LAST_MODIFIED,
                LINK,
                CACHE_CONTROL,
            ],
            described_by: None,
            retention: 7 * DAY,
            redelivery_horizon: DAY,
            worker: "http".to_owned(),
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

    /// Who sends it. The same key from another principal is answered with 422, and nothing of the first one's answer. Without it all
    /// requests of a tenant are one principal's.
    #[must_use]
    pub fn principal(mut self, principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.principal = Some(Arc::new(principal));
        self
    }

    /// What is compared when a key comes back, as of the queue of a shared consumer: of the body alone. Default: method, path, query, body
    /// and principal.
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

    /// How long a handler may take, its answer included. Default: 30 s; at most 60 s. Past it the client gets a 503, and nothing is
    /// committed, whatever the handler does later; it has as long again to end, and is dropped then.
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

    /// Longest body of an answer, in bytes. Default: 256 KiB, held in memory and stored with the key. A longer one is a 500, and nothing is
    /// committed.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Which answers are stored. Default: all but 5xx, 401, 403, 407 to 409, 421, 423, 425 and 429. A server's error (5xx) is never stored.
    #[must_use]
    pub fn is_final(mut self, is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.is_final = Arc::new(move |status| !status.is_server_error() && is_final(status));
        self
    }

    /// Further headers that a retry gets again. Kept in any case: content-type, content-language, content-location, location, etag,
    /// last-modified, link, cache-control. Never: set-cookie.
    #[must_use]
    pub fn keep_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.kept.extend(names);
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

    /// How long keys and answers are kept. Default: 7 days; the longest that a process has started with counts, as for queues.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How this process calls itself in the trail. Default: `http`.
    #[must_use]
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }

    /// Everything that is missing or can't be, at once.
    pub(super) fn checked(mut self) -> Result<(Self, Store), SettingsError> {
        let mut problems = std::mem::take(&mut self.problems);
        let mut check = |is_right: bool, text: &str| {
            if !is_right {
                problems.push(text.to_owned());
            }
        };
        check(self.consumer.is_some(), "consumer is not set: Consumer::named, or another one");
        check(self.tenant.is_some(), "tenant is not set: whose requests are they?");
        if let Some(Consumer(Name::Fixed(name) | Name::Shared(name))) = &self.consumer {
            check(
                IdentityPart::new(name.as_bytes()).is_ok(),
                "consumer: a name has 1 to 255 bytes without NUL",
            );
        }
        let is_shared = self.consumer.as_ref().is_some_and(Consumer::is_shared);
        check(
            !is_shared || self.fingerprint.is_some(),
            "fingerprint is not set: a shared consumer compares what its queue compares, such as FingerprintPolicy::Body",
        );
        check(
            self.fingerprint.is_none() || self.principal.is_none(),
            "principal: it is not compared where fingerprint says what is",
        );
        check(
            !self.kept.contains(&SET_COOKIE),
            "keep_headers: set-cookie is never kept: it would give one session to whoever repeats a key",
        );
        let at_most = |time: Duration, most: Duration| !time.is_zero() && time <= most;
        check(at_most(self.wait, LONGEST_HANDLER), "wait: more than nothing, and 60 s at most");
        check(
            at_most(self.handler_limit, LONGEST_HANDLER),
            "handler_limit: more than nothing, and 60 s at most",
        );
        check(
            (self.redelivery_horizon..=3_650 * DAY).contains(&self.retention),
            "retention: 1 day to 3,650 days",
        );
        check((1..=255).contains(&self.worker.len()), "worker: a name has 1 to 255 bytes");
        check(
            self.max_response <= 64 * 1_048_576 && self.max_request <= 1_024 * 1_048_576,
            "max_request is 1 GiB at most, max_response 64 MiB",
        );
        let unique: BTreeSet<&str> = self.methods.iter().map(Method::as_str).collect();
        check(!unique.is_empty(), "methods: none is left");
        if problems.is_empty() {
            let store = self.store.clone();
            Ok((self, store))
        } else {
            Err(SettingsError(problems))
        }
    }

    /// What the database is told of a consumer, as by a worker.
    pub(super) fn told_of(&self, consumer: &IdentityPart) -> Told {
        Told {
            consumer: consumer.clone(),
            retention: self.retention,
            redelivery_horizon: self.redelivery_horizon,
            fingerprint: self.fingerprint.as_ref().map_or_else(|| POLICY.to_owned(), FingerprintPolicy::name),
            worker: self.worker.clone(),
        }
    }
}
