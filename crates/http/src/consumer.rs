//! The consumer of a request's key.

use http::request::Parts;

use oncely_core::identity::IdentityPart;

/// Consumer of a request's key. Two consumers may use one key for two effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer(pub(super) ConsumerName);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConsumerName {
    Fixed(String),
    /// Also the consumer of a queue.
    Shared(String),
    #[cfg(feature = "axum")]
    Route,
}

impl Consumer {
    /// Uses one name, of 1 to 255 bytes, for all requests of the layer.
    pub fn named(name: impl Into<String>) -> Self {
        Self(ConsumerName::Fixed(name.into()))
    }

    /// Uses the consumer of a queue, with messages of the same effect: a request that is repeated as a message with its key as the
    /// `message_id`, or the reverse, is a duplicate. [`IdempotencyLayerBuilder::fingerprint`](super::IdempotencyLayerBuilder::fingerprint) must be the queue's, so that
    /// both can be compared (under leases: the body, or nothing). In transactions a JSON answer of up to 64 KiB is also stored as the
    /// response for copies of the message; under leases copies get the answer in its stored form:
    /// `{"http": status, "headers": [[name, value], …], "body": base64}`.
    ///
    /// Every client of this layer can use the queue's keys: a request takes the place of the message with its key, and gets the response of
    /// a message that came before; principals are not compared ([`IdempotencyLayerBuilder::one_principal`](super::IdempotencyLayerBuilder::one_principal)). Admit only
    /// clients that may publish to the queue as that tenant. Settings that the queue's workers have registered stay (fingerprint,
    /// conflicts, horizon); a longer [retention](super::IdempotencyLayerBuilder::retention) counts. 4xx answers are not final, as the message may still
    /// arrive.
    pub fn shared(queue_consumer: impl Into<String>) -> Self {
        Self(ConsumerName::Shared(queue_consumer.into()))
    }

    /// Uses method and route template, such as `POST /orders/{id}`, as axum's router reports them. The layer must be added to the routes
    /// (`Router::layer` after them).
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn route() -> Self {
        Self(ConsumerName::Route)
    }

    /// Returns the consumer of a request; `None` if the router reports no route, or the name is too long.
    pub(super) fn resolve(&self, parts: &Parts) -> Option<IdentityPart> {
        let name = match &self.0 {
            ConsumerName::Fixed(name) | ConsumerName::Shared(name) => name.clone(),
            #[cfg(feature = "axum")]
            ConsumerName::Route => {
                let path = parts.extensions.get::<axum::extract::MatchedPath>()?;
                format!("{} {}", parts.method, path.as_str())
            }
        };
        #[cfg(not(feature = "axum"))]
        let _ = parts;
        IdentityPart::new(name.as_bytes()).ok()
    }

    /// Returns whether messages arrive for this consumer, too.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, ConsumerName::Shared(_))
    }
}
