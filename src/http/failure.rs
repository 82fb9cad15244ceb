//! How a handler says that its run has failed.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Response, StatusCode};

use crate::handler::HandlerError;

/// A run that has failed, as a response: behind [`IdempotencyLayer::leased`](super::IdempotencyLayer::leased) the layer records the error, and
/// answers in the handler's place. With the feature `axum` a [`HandlerError`], such as [`Run::step`](crate::lease::Run::step) returns, is such a
/// response by itself:
///
/// | error | recorded as | the client gets |
/// | --- | --- | --- |
/// | [`HandlerError::OutcomeUnknown`] | given up | 409 `outcome-unknown` |
/// | [`HandlerError::Permanent`] | given up | 409 `given-up` |
/// | [`HandlerError::Refused`] | done, with the answer no | 422, and so does each retry |
/// | [`HandlerError::Environment`] | given back, nothing is counted | 503 `failed`, `Retry-After: 1` |
/// | any other | a failed run | 503 `failed`, `Retry-After` with the delay until the next run; or 409 `given-up` after the last |
///
/// Elsewhere it is a 500 without a body.
#[derive(Clone, Debug)]
pub struct Failure(Arc<Mutex<Option<HandlerError>>>);

impl Failure {
    /// The response that stands for it.
    #[must_use]
    pub fn answer<B: Default>(self) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response.extensions_mut().insert(self);
        response
    }

    /// The error, once.
    pub(super) fn take(self) -> Option<HandlerError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        Self(Arc::new(Mutex::new(Some(error))))
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for HandlerError {
    fn into_response(self) -> axum::response::Response {
        Failure::from(self).answer()
    }
}
