//! A stream with a filter on its read side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};

/// A filter between a stream and its reader.
pub(super) trait ReadFilter: Unpin {
    /// Fills `buffer` by reading `from` the stream, as [`AsyncRead::poll_read`] does.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        from: impl FnMut(&mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>>;
}

/// A stream that is read through `R`, and written unchanged.
#[derive(Debug)]
pub(super) struct ReadThrough<S, R> {
    stream: S,
    reading: R,
}

impl<S, R> ReadThrough<S, R> {
    pub(super) fn new(stream: S, reading: R) -> Self {
        Self { stream, reading }
    }
}

impl<S: AsyncRead + Unpin, R: ReadFilter> AsyncRead for ReadThrough<S, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, reading } = &mut *self;
        reading
            .poll_read(context, buffer, |context, buffer| Pin::new(&mut *stream).poll_read(context, buffer))
    }
}

impl<S: AsyncWrite + Unpin, R: Unpin> AsyncWrite for ReadThrough<S, R> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
