//! A connection that reads the answer even if the server takes no more of the request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::Sleep;

/// A stream that is still read after a write has failed.
///
/// A server may answer before it has read a body, and close: a limit, a missing token, an answer that needs no body. Then writing the rest
/// fails, and the answer is in the socket: an HTTP client that ends with the first error never reads it, and the server's decision would
/// count as an unknown outcome. So a failed write counts as done, and reading returns the answer, or the end of the connection.
///
/// A write that makes no progress for too long counts as failed, too: the caller may have given up its wait for an answer, and the request's
/// body, with all that it holds, would stay as long as the server does. An answer that is under way goes on; the connection ends if nothing of
/// one comes for as long again.
pub(super) struct Stream<S> {
    inner: S,
    /// Whether a write has failed.
    has_write_failed: bool,
    /// Longest time of a write without progress.
    limit: Duration,
    /// End of that time, while a write waits.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// End of the wait for an answer, after a write has taken too long.
    answer_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Stream<S> {
    pub(super) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, has_write_failed: false, limit, stall_timer: None, answer_timer: None }
    }

    /// Returns the result of a write: `fallback` if it has failed, or has made no progress for too long, as it counts as done then.
    fn handle_write<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
        fallback: T,
    ) -> Poll<io::Result<T>> {
        let limit = self.limit;
        match result {
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "the other side takes no more of a request");
                self.has_write_failed = true;
                Poll::Ready(Ok(fallback))
            }
            Poll::Ready(Ok(_)) => {
                self.stall_timer = None;
                result
            }
            Poll::Pending => {
                let stall_timer = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                ready!(stall_timer.as_mut().poll(context));
                tracing::debug!(?limit, "the other side has taken nothing of a request for too long");
                self.has_write_failed = true;
                let mut answer_timer = Box::pin(tokio::time::sleep(limit));
                // Registers the task, which may read nothing before that.
                let _ = answer_timer.as_mut().poll(context);
                self.answer_timer = Some(answer_timer);
                Poll::Ready(Ok(fallback))
            }
        }
    }
}

impl<S: Read + Unpin> Read for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let limit = self.limit;
        if let Some(answer_timer) = &mut self.answer_timer {
            if read.is_ready() {
                answer_timer.as_mut().reset(tokio::time::Instant::now() + limit);
            } else {
                ready!(answer_timer.as_mut().poll(context));
                let text = format!("no answer for {limit:?} to a request that is not read");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
        }
        read
    }
}

impl<S: Write + Unpin> Write for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.has_write_failed {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.handle_write(context, written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total = pieces.iter().map(|piece| piece.len()).sum();
        if self.has_write_failed {
            return Poll::Ready(Ok(total));
        }
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.handle_write(context, written, total)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_write_failed {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.handle_write(context, flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_write_failed {
            return Poll::Ready(Ok(()));
        }
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.handle_write(context, shut, ())
    }
}

impl<S: Connection> Connection for Stream<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn write(stream: &mut Stream<TokioIo<tokio::io::DuplexStream>>) -> usize {
        let written = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, &[0; 16]));
        tokio::time::timeout(Duration::from_secs(30), written).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_write_without_progress_ends_and_reading_goes_on() {
        let (near, mut far) = tokio::io::duplex(24);
        let mut stream = Stream::new(TokioIo::new(near), Duration::from_millis(20));
        assert_eq!((write(&mut stream).await, write(&mut stream).await), (16, 8));
        assert!(!stream.has_write_failed);
        // The other side reads nothing.
        assert_eq!(write(&mut stream).await, 16);
        assert!(stream.has_write_failed);
        assert_eq!(write(&mut stream).await, 16);
        poll_fn(|context| Pin::new(&mut stream).poll_flush(context)).await.unwrap();
        poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.unwrap();
        far.write_all(b"late").await.unwrap();
        let mut answer = [0; 4];
        let mut stream = TokioIo::new(stream);
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"late");
        let more = tokio::time::timeout(Duration::from_secs(30), stream.read_u8()).await.unwrap();
        assert_eq!(more.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_write_that_goes_on_has_its_time_anew() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = Stream::new(TokioIo::new(near), Duration::from_secs(20));
        assert_eq!(write(&mut stream).await, 16);
        let mut bytes = [0; 16];
        let (written, read) = tokio::join!(write(&mut stream), far.read_exact(&mut bytes));
        assert_eq!((written, read.unwrap()), (16, 16));
        assert!(stream.stall_timer.is_none() && !stream.has_write_failed);
    }
}
