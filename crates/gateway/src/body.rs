//! A client's body, without trailers and with a limit on slow sending.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::connection_limiter::ConnectionPermit;

/// Longest pause between two pieces of a request's body.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Minimum rate, from `MAX_PAUSE` after the beginning of the body on.
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;

/// A body on its way from the client. Trailers are dropped: they belong to the coding of this hop.
pub(super) struct Upload {
    body: Incoming,
    /// Pace of a streamed body; one with a key has a limit for the whole body (`gateway.read_limit`).
    pace: Option<UploadPace>,
    permit: Arc<ConnectionPermit>,
    /// Number of its request on the connection.
    request: u64,
}

struct UploadPace {
    until: Pin<Box<Sleep>>,
    began: Instant,
    bytes: u64,
}

impl UploadPace {
    /// Starts the pace of a body: its first bytes must arrive within [`MAX_PAUSE`].
    fn start() -> Self {
        let began = Instant::now();
        Self { until: Box::pin(tokio::time::sleep_until(began + MAX_PAUSE)), began, bytes: 0 }
    }

    /// Records received bytes, and sets the time by which the next ones must arrive.
    fn record_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let slowest = self.began + MAX_PAUSE + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
        self.until.as_mut().reset(slowest.min(Instant::now() + MAX_PAUSE));
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.permit.finish_body(self.request);
    }
}

/// Error of a client's body that does not arrive completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error(transparent)]
    Torn(#[from] hyper::Error),
    #[error(
        "it came too slowly: {MIN_BYTES_PER_SECOND} bytes a second at least, after {MAX_PAUSE:?}, and no longer pause than that"
    )]
    Slow,
}

impl Upload {
    /// Wraps a body. `is_streamed`: no other limit applies, so the pace is checked.
    pub(super) fn new(body: Incoming, is_streamed: bool, permit: Arc<ConnectionPermit>) -> Self {
        let request = permit.request();
        if body.is_end_stream() {
            permit.finish_body(request);
        }
        Self { body, pace: is_streamed.then(UploadPace::start), permit, request }
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
                    if let Some(data) = frame.data_ref() {
                        if let Some(pace) = &mut self.pace {
                            pace.record_bytes(data.len());
                        }
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => {
                    self.permit.finish_body(self.request);
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    return match self.pace.as_mut().map(|pace| pace.until.as_mut().poll(context)) {
                        Some(Poll::Ready(())) => Poll::Ready(Some(Err(UploadError::Slow))),
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

/// A body that holds a guard until it was sent completely.
pub(super) struct GuardedBody<G> {
    body: oncely_http::Body,
    _guard: G,
}

impl<G> GuardedBody<G> {
    pub(super) fn new(body: oncely_http::Body, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<G: Unpin> Body for GuardedBody<G> {
    type Data = Bytes;
    type Error = oncely_http::BodyError;

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

/// The service's body, without a limit and without trailers.
pub(super) struct ServiceBody(pub(super) Incoming);

impl Body for ServiceBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            match Pin::new(&mut self.0).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) if !frame.is_data() => {}
                polled => return polled,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
