//! What goes through the layer.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

/// What a body, or a service, of the program fails with.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body broke off, or can't be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(BoxError);

/// A request's body behind the layer, or an answer's in front of it: whole, or untouched where no key was to be looked at.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is there.
pub(super) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is passed on as it comes.
pub(super) fn passed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(|error| BodyError(error.into())).boxed_unsync()
}
