//! Results of a handler: a response that is stored with the key, or nothing.

use serde::Serialize;
use serde_json::Value;

use super::HandlerError;

/// A response, or none: sent to a duplicate's sender if replies are on, and shown by `oncely explain`.
pub trait IntoResponse: Send {
    /// Returns the value to store; `None` stores nothing.
    ///
    /// # Errors
    /// If the response can't be written as JSON: [`HandlerError::Permanent`].
    fn into_response(self) -> Result<Option<Value>, HandlerError>;
}

/// No response.
impl IntoResponse for () {
    fn into_response(self) -> Result<Option<Value>, HandlerError> {
        Ok(None)
    }
}

impl IntoResponse for Value {
    fn into_response(self) -> Result<Option<Value>, HandlerError> {
        Ok(Some(self))
    }
}

impl<R: IntoResponse> IntoResponse for Option<R> {
    fn into_response(self) -> Result<Option<Value>, HandlerError> {
        self.map_or(Ok(None), R::into_response)
    }
}

/// A typed response: `Ok(Json(Receipt { … }))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize + Send> IntoResponse for Json<T> {
    fn into_response(self) -> Result<Option<Value>, HandlerError> {
        let value = serde_json::to_value(self.0);
        value.map(Some).map_err(|error| HandlerError::permanent(format!("the response is no JSON: {error}")))
    }
}

/// The responses of a batch: none at all, or exactly one for each message.
pub trait IntoResponses: Send {
    /// Returns the values to store for `count` messages, in their order; `None` stores nothing for a message.
    ///
    /// # Errors
    /// If a response can't be written as JSON: [`HandlerError::Permanent`].
    fn into_responses(self, count: usize) -> Result<Vec<Option<Value>>, HandlerError>;
}

/// No responses.
impl IntoResponses for () {
    fn into_responses(self, count: usize) -> Result<Vec<Option<Value>>, HandlerError> {
        Ok(vec![None; count])
    }
}

/// One for each message, in their order. Another number of them fails the batch.
impl<R: IntoResponse> IntoResponses for Vec<R> {
    fn into_responses(self, _: usize) -> Result<Vec<Option<Value>>, HandlerError> {
        self.into_iter().map(R::into_response).collect()
    }
}
