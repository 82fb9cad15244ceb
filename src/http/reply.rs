//! The way of an answer from a request's task to its client.

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::oneshot;

use super::answer::{Answer, NoAnswer};
use super::body::Body;

/// Calls the service behind the layer, and reads its answer.
pub(super) type Call = Box<dyn FnOnce(Request<Body>) -> BoxFuture<'static, Result<Answer, NoAnswer>> + Send>;

/// To whoever waits for the answer; a client that has left changes nothing.
pub(super) type Reply = oneshot::Sender<Response<Body>>;

pub(super) fn send(reply: Reply, answer: impl Into<Response<Body>>) {
    if reply.send(answer.into()).is_err() {
        tracing::debug!("a client left before its answer");
    }
}
