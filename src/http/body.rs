//! What goes through the layer.

use bytes::Bytes;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};

/// What a body, or a service, of the program fails with.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body broke off, or can't be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(BoxError);

/// A request's body behind the layer, or an answer's in front of it: whole, or untouched where no key was to be looked at.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is there.
pub(crate) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is passed on as it comes.
pub(crate) fn passed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(|error| BodyError(error.into())).boxed_unsync()
}

/// Bytes that are there, and what comes after them.
pub(super) fn followed(bytes: Bytes, rest: Body) -> Body {
    let first = futures::stream::once(std::future::ready(Ok(Frame::data(bytes))));
    StreamBody::new(first.chain(BodyStream::new(rest))).boxed_unsync()
}
