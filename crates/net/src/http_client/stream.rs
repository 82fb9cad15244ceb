//! A connection that reads the answer even if the server takes no more of the request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// A stream that is still read after a write has failed.
///
/// A server may answer before it has read a body, and close: a limit, a missing token, an answer that needs no body. Then writing the rest
/// fails, and the answer is in the socket: an HTTP client that ends with the first error never reads it, and the server's decision would
/// count as an unknown outcome. So a failed write counts as done, and reading returns the answer, or the end of the connection.
pub(super) struct Stream<S> {
    inner: S,
    /// A write has failed.
    write_failed: bool,
}

impl<S> Stream<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, write_failed: false }
    }

    /// Returns the result of a write; after a failure `given`.
    fn heard<T>(&mut self, written: Poll<io::Result<T>>, given: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "the other side takes no more of a request");
                self.write_failed = true;
                Poll::Ready(Ok(given))
            }
            other => other,
        }
    }
}

impl<S: Read + Unpin> Read for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write_failed {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.heard(written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = pieces.iter().map(|piece| piece.len()).sum();
        if self.write_failed {
            return Poll::Ready(Ok(all));
        }
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.heard(written, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_failed {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.heard(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<S: Connection> Connection for Stream<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}
