//! Channel of an answer from a request's task to its client.

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::oneshot;

use super::answer::{AnswerReadError, HandlerAnswer};
use super::body::Body;

/// Calls the service behind the layer, and reads its answer.
pub(super) type HandlerCall =
    Box<dyn FnOnce(Request<Body>) -> BoxFuture<'static, Result<HandlerAnswer, AnswerReadError>> + Send>;

/// Sends the answer to the waiting client; the task goes on without it.
pub(super) type AnswerSender = oneshot::Sender<Response<Body>>;

pub(super) fn send(reply: AnswerSender, answer: impl Into<Response<Body>>) {
    if reply.send(answer.into()).is_err() {
        tracing::debug!("a client left before its answer");
    }
}
