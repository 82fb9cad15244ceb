//! How many bytes of deliveries a consumer may hold, and the valve in its connections that keeps to it.
//!
//! The AMQP client reads whatever the broker sends, up to `prefetch` messages of any size, and keeps it until somebody takes it. So
//! the bound is where the bytes come in: a connection reads a little at a time, and on only when what it has read is taken and
//! there is room in the budget. A pause longer than two heartbeats costs the connection, never a message.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::{AsyncRead, AsyncWrite, Stream};
use tokio::sync::Notify;

/// What a connection reads before it asks whether it may go on: a message that is only half there has no share in the budget yet.
const READ_AHEAD: usize = 1 << 20;

/// The bytes that the deliveries of a consumer may hold until they are settled.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Held>);

#[derive(Debug)]
struct Held {
    most: usize,
    bytes: AtomicUsize,
    freed: Notify,
}

/// A delivery's share, as long as it lives.
#[derive(Debug)]
pub(crate) struct Share {
    held: Arc<Held>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Held { most, bytes: AtomicUsize::new(0), freed: Notify::new() }))
    }

    /// What has come is taken in any case: the last message may exceed the budget.
    pub(super) fn take(&self, bytes: usize) -> Arc<Share> {
        self.0.bytes.fetch_add(bytes, Ordering::AcqRel);
        Arc::new(Share { held: Arc::clone(&self.0), bytes })
    }

    /// Is there room for more?
    pub(crate) fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Acquire) < self.0.most
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.held.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if before >= self.held.most && before - self.bytes < self.held.most {
            self.held.freed.notify_waiters();
        }
    }
}

/// Lets a connection read on, or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Valve(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What may be read.
    left: usize,
    /// Who waits for more.
    parked: Option<Waker>,
}

impl Valve {
    /// A runtime whose connections read through this valve, with something to begin with.
    pub(super) fn runtime(
        &self,
    ) -> Runtime<impl async_rs::traits::RuntimeKit + Clone + Send + Sync + 'static> {
        self.open();
        let tokio = Tokio::current();
        Runtime::new(RuntimeParts::new(tokio.clone(), Valved { tokio, valve: self.clone() }))
    }

    /// Lets it read on whenever it has read all that it may and there is room. To be polled when all that has been read is taken.
    pub(super) async fn keep_to(&self, budget: Option<&Budget>) -> Infallible {
        loop {
            self.asked().await;
            if let Some(budget) = budget {
                budget.room().await;
            }
            self.open();
        }
    }

    async fn asked(&self) {
        loop {
            let mut asked = std::pin::pin!(self.0.asked.notified());
            asked.as_mut().enable();
            if self.lock().parked.is_some() {
                return;
            }
            asked.await;
        }
    }

    fn open(&self) {
        let parked = {
            let mut state = self.lock();
            state.left = READ_AHEAD;
            state.parked.take()
        };
        if let Some(parked) = parked {
            parked.wake();
        }
    }

    /// How much may be read now; else whoever reads is woken when he may go on.
    fn left(&self, context: &Context<'_>) -> Option<usize> {
        let mut state = self.lock();
        if state.left > 0 {
            return Some(state.left);
        }
        state.parked = Some(context.waker().clone());
        drop(state);
        self.0.asked.notify_waiters();
        None
    }

    fn read(&self, bytes: usize) {
        let mut state = self.lock();
        state.left = state.left.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only touched in whole steps.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokio's sockets behind a valve.
#[derive(Clone, Debug)]
struct Valved {
    tokio: Tokio,
    valve: Valve,
}

impl Reactor for Valved {
    type TcpStream = ValvedStream<<Tokio as Reactor>::TcpStream>;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// For sockets that somebody else has opened: never ours.
    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<futures::io::Cursor<Vec<u8>>, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.tokio.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.tokio.tcp_connect_addr(address);
        let valve = self.valve.clone();
        async move { Ok(ValvedStream { stream: connecting.await?, valve }) }
    }
}

/// A stream that is read through a valve, and written as it is.
#[derive(Debug)]
struct ValvedStream<S> {
    stream: S,
    valve: Valve,
}

impl<S: AsyncRead + Unpin> AsyncRead for ValvedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Some(left) = self.valve.left(context) else { return Poll::Pending };
        let most = buffer.len().min(left);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer[..most]);
        if let Poll::Ready(Ok(bytes)) = read {
            self.valve.read(bytes);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ValvedStream<S> {
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn there_is_room_until_the_budget_is_used_up_and_again_when_a_share_is_gone() {
        let budget = Budget::new(100);
        let first = budget.take(60);
        assert!(budget.has_room());
        let last = budget.take(1_000);
        let other = Arc::clone(&last);
        assert!(budget.room().now_or_never().is_none());
        drop(last);
        assert!(!budget.has_room(), "a clone of the delivery still lives");
        let mut waiting = Box::pin(budget.room());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(other);
        assert!(waiting.now_or_never().is_some());
        drop(first);
        assert_eq!(budget.0.bytes.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn a_stream_is_read_on_when_there_is_room() {
        let valve = Valve::default();
        valve.open();
        let data = vec![0_u8; READ_AHEAD + 10];
        let mut stream = ValvedStream { stream: futures::io::Cursor::new(data), valve: valve.clone() };
        let mut buffer = vec![0_u8; 2 * READ_AHEAD];
        let mut read = async |stream: &mut ValvedStream<_>| {
            futures::AsyncReadExt::read(stream, &mut buffer).now_or_never().map(Result::unwrap)
        };
        assert_eq!(read(&mut stream).await, Some(READ_AHEAD));
        assert_eq!(read(&mut stream).await, None);
        let budget = Budget::new(1);
        let share = budget.take(1);
        assert!(valve.keep_to(Some(&budget)).now_or_never().is_none());
        assert_eq!(read(&mut stream).await, None, "no room");
        drop(share);
        assert!(valve.keep_to(Some(&budget)).now_or_never().is_none());
        assert_eq!(read(&mut stream).await, Some(10));
    }
}
