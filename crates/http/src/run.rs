//! The run of a request under a lease, as its handler uses it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Extensions;

use oncely_lease::{self as lease, AnyStore};

/// The run of a request with a key behind [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased). The handler runs its
/// [steps](lease::Run::step) on it, each of which is called with the same key in every run, and reads the [token](lease::Run::token) of its
/// lease.
///
/// A handler that ends without a final answer (a 5xx, a panic, a killed process) is called again by a retry, with the results of its steps
/// stored. Calls outside of steps are repeated.
///
/// With the feature `axum` it is an extractor, and `Option<Run>` is one for an optional key; otherwise `Run::from_extensions` takes it from the
/// request's extensions.
#[derive(Clone, Debug)]
pub struct Run(lease::Run<AnyStore>);

/// A request without a run: the layer is not in front of this handler, the request has no key, or its method needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request has no lease: it came without an Idempotency-Key, or IdempotencyLayer::leased is not in front of it"
)]
#[non_exhaustive]
pub struct NoRun;

/// Whether a handler has taken the run of its request; if not, a router or an extractor answered.
#[derive(Clone, Default)]
pub(super) struct RunTakenFlag(Arc<AtomicBool>);

impl RunTakenFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl From<lease::Run<AnyStore>> for Run {
    fn from(run: lease::Run<AnyStore>) -> Self {
        Self(run)
    }
}

impl Deref for Run {
    type Target = lease::Run<AnyStore>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Run {
    /// Returns the run of a request, from its extensions.
    ///
    /// # Errors
    /// If the extensions hold no run.
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, NoRun> {
        let run = extensions.get::<Self>().cloned().ok_or(NoRun)?;
        if let Some(taken_flag) = extensions.get::<RunTakenFlag>() {
            taken_flag.0.store(true, Ordering::SeqCst);
        }
        Ok(run)
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
        /// Answers 500 without details: the error is in the program.
        fn into_response(self) -> Response {
            tracing::error!(error = %self, "handler requested a lease that its request does not have");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    impl<S: Send + Sync> FromRequestParts<S> for Run {
        type Rejection = NoRun;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoRun> {
            Self::from_extensions(&parts.extensions)
        }
    }

    impl<S: Send + Sync> OptionalFromRequestParts<S> for Run {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(Self::from_extensions(&parts.extensions).ok())
        }
    }
}
