//! A connection whose answer is heard, although it takes no more of the request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// A stream that is read on where it can't be written to any more.
///
/// A server may answer before it has read a body, and close: a limit, a missing token, an answer that needs no body. Then writing the rest
/// fails, and the answer is in the socket: an HTTP client that ends with the first error never reads it, and what the server has judged would
/// count as an outcome that nobody knows. So a failed write counts as one that was done. Reading tells what there is: the answer, or the
/// end of the connection.
pub(super) struct Stream<S> {
    inner: S,
    /// Writing has failed.
    is_deaf: bool,
}

impl<S> Stream<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, is_deaf: false }
    }

    /// What was written; after a failure `given`.
    fn heard<T>(&mut self, written: Poll<io::Result<T>>, given: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "the other side takes no more of a request");
                self.is_deaf = true;
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
        if self.is_deaf {
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
        if self.is_deaf {
            return Poll::Ready(Ok(all));
        }
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.heard(written, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_deaf {
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
