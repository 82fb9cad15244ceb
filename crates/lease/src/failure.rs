//! The response by which a handler reports a failed run.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Response, StatusCode};

use super::handler_error::HandlerError;

/// A failed run, as a response: behind `http::IdempotencyLayer::leased` the layer records the error and
/// answers in place of the handler. With the feature `axum` a [`HandlerError`], such as [`Run::step`](super::Run::step) returns,
/// converts into such a response.
///
/// | error | recorded as | the client gets |
/// | --- | --- | --- |
/// | [`HandlerError::OutcomeUnknown`] | given up | 409 `outcome-unknown` |
/// | [`HandlerError::Permanent`] | given up | 409 `given-up` |
/// | [`HandlerError::Refused`] | done, as a refusal | 422, and so does each retry |
/// | [`HandlerError::Environment`] | given back, nothing is counted | 503 `failed`, `Retry-After: 1` |
/// | any other | a failed run | 503 `failed`, `Retry-After` with the delay until the next run; or 409 `given-up` after the last |
///
/// Without that layer it is a 500 without a body.
#[derive(Clone, Debug)]
pub struct FailureResponse(Arc<Mutex<Option<HandlerError>>>);

impl FailureResponse {
    /// Builds the response that carries this failure to the layer.
    #[must_use]
    pub fn answer<B: Default>(self) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response.extensions_mut().insert(self);
        response
    }

    /// Takes the error; `None` if it was taken from another copy of the response.
    #[doc(hidden)]
    #[must_use]
    pub fn take(self) -> Option<HandlerError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl From<HandlerError> for FailureResponse {
    fn from(error: HandlerError) -> Self {
        Self(Arc::new(Mutex::new(Some(error))))
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for HandlerError {
    fn into_response(self) -> axum::response::Response {
        FailureResponse::from(self).answer()
    }
}
