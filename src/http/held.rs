//! The run of a request under a lease, in the hands of its handler.

use http::Extensions;

use crate::lease::{self, AnyStore};

/// The run of a request with a key behind [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased): by it the handler takes its
/// [steps](lease::Run::step), each of which is called by the same key in every run, and has the [token](lease::Run::token) of its lease.
///
/// A handler that ends without an answer that is final (a 5xx, a panic, its process killed) is called again by a retry, and the results of its
/// steps are there. What it calls outside of steps is called again.
///
/// With the feature `axum` it is an extractor, and `Option<Run>` is one where the key is optional; else `Run::of` takes it from the request's
/// extensions.
pub type Run = lease::Run<AnyStore>;

/// A request without a run: the layer is not in front of this handler, the request has no key, or its method needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request has no lease: it came without an Idempotency-Key, or IdempotencyLayer::leased is not in front of it"
)]
#[non_exhaustive]
pub struct NoRun;

impl Run {
    /// The run of a request, from its extensions.
    ///
    /// # Errors
    /// Where there is none.
    pub fn of(extensions: &Extensions) -> Result<Self, NoRun> {
        extensions.get::<Self>().cloned().ok_or(NoRun)
    }
}

#[cfg(feature = "axum")]
mod extractor {
    use std::convert::Infallible;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::{NoRun, Run};

    impl IntoResponse for NoRun {
        /// The program's own mistake: the client is told nothing of it.
        fn into_response(self) -> Response {
            tracing::error!(error = %self, "a handler asked for a lease");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    impl<S: Send + Sync> FromRequestParts<S> for Run {
        type Rejection = NoRun;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoRun> {
            Self::of(&parts.extensions)
        }
    }

    impl<S: Send + Sync> OptionalFromRequestParts<S> for Run {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(Self::of(&parts.extensions).ok())
        }
    }
}
