//! A client's body: without trailers, and no longer waited for than a client may take.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

/// Longest pause between two pieces of a request's body.
const PAUSE: Duration = Duration::from_secs(30);

/// What a client sends. Trailers end here: they are of this hop's coding.
pub(super) struct Upload {
    body: Incoming,
    /// Of one that is streamed; one with a key has a limit for all of it (`gateway.read_limit`).
    until: Option<Pin<Box<Sleep>>>,
}

/// Why a client's body has no end.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error(transparent)]
    Torn(#[from] hyper::Error),
    #[error("nothing of the body came for {PAUSE:?}")]
    Silent,
}

impl Upload {
    /// `is_streamed`: nobody else sees to it that it comes to an end.
    pub(super) fn new(body: Incoming, is_streamed: bool) -> Self {
        Self { body, until: is_streamed.then(|| Box::pin(tokio::time::sleep(PAUSE))) }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Some(until) = &mut self.until {
                        until.as_mut().reset(Instant::now() + PAUSE);
                    }
                    if frame.is_data() {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    return match self.until.as_mut().map(|until| until.as_mut().poll(context)) {
                        Some(Poll::Ready(())) => Poll::Ready(Some(Err(UploadError::Silent))),
                        Some(Poll::Pending) | None => Poll::Pending,
                    };
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that holds something until it was sent to its end.
pub(super) struct Guarded<G> {
    body: crate::http::Body,
    _guard: G,
}

impl<G> Guarded<G> {
    pub(super) fn new(body: crate::http::Body, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<G: Unpin> Body for Guarded<G> {
    type Data = Bytes;
    type Error = crate::http::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body of which the beginning is there.
pub(super) struct Prefixed {
    first: Option<Bytes>,
    rest: Incoming,
}

impl Prefixed {
    pub(super) fn new(first: Bytes, rest: Incoming) -> Self {
        Self { first: Some(first), rest }
    }
}

impl Body for Prefixed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            match Pin::new(&mut self.rest).poll_frame(context) {
                // Trailers end here, too.
                Poll::Ready(Some(Ok(frame))) if !frame.is_data() => {}
                polled => return polled,
            }
        }
    }
}
