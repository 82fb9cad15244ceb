//! For which consumer a request's key is.

use http::request::Parts;

use crate::identity::IdentityPart;

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
    /// `message_id`, or the other way round, is a duplicate. [`Settings::fingerprint`](super::Settings::fingerprint) must be the queue's, so that both can be compared (under leases:
    /// the body, or nothing). In transactions an answer in JSON of up to 64 KiB is also the response that copies of the message have; under leases
    /// they have the answer as it is stored: `{"http": status, "headers": [[name, value], …], "body": base64}`.
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
