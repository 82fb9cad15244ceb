//! Body types of the layer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

/// Error of a body or a service of the embedding program.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body broke off or can't be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(BoxError);

/// Request body behind the layer, or answer body in front of it: whole if the request has a key, else streamed through.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Makes a body of complete bytes.
pub fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Makes a body of one that is streamed through.
pub fn streaming_body<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(|error| BodyError(error.into())).boxed_unsync()
}

/// Makes a body of its first bytes and the rest. The size hint covers both, so a `Content-Length` exposes a rest that breaks off.
pub fn prefixed_body(bytes: Bytes, rest: Body) -> Body {
    PrefixedBody { first: Some(bytes), rest }.boxed_unsync()
}

struct PrefixedBody {
    first: Option<Bytes>,
    rest: Body,
}

impl http_body::Body for PrefixedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}
