//! The valve in a consumer's connections that enforces its budget of bytes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::{AsyncRead, AsyncWrite, Stream};
use tokio::sync::Notify;

use super::budget::Budget;
use super::read_through::{ReadFilter, ReadThrough};

/// Bytes that a connection reads before it needs permission to continue: a message has no share in the budget until it is taken, and a
/// header of one byte takes a hundred in memory. Up to twice as many are read, since the client parses them later.
const READ_AHEAD_BYTES: usize = 128 << 10;

/// Permits or stops reading of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Valve(Arc<ValveInner>);

#[derive(Debug, Default)]
struct ValveInner {
    state: Mutex<ValveState>,
    request: Notify,
}

#[derive(Debug, Default)]
struct ValveState {
    /// Bytes that may be read.
    left: usize,
    /// Waker of a reader that waits for permission.
    waker: Option<Waker>,
}

impl Valve {
    /// Opens the valve, and returns a runtime with connections that read through it.
    pub(super) fn build_runtime(
        &self,
    ) -> Runtime<impl async_rs::traits::RuntimeKit + Clone + Send + Sync + 'static> {
        self.open();
        let tokio = Tokio::current();
        Runtime::new(RuntimeParts::new(tokio.clone(), ValveRuntime { tokio, valve: self.clone() }))
    }

    /// Reopens the valve whenever it is used up and the budget has room. Must be polled only when all read deliveries are taken.
    pub(super) async fn keep_reopening(&self, budget: Option<&Budget>) -> Infallible {
        loop {
            self.wait_for_request().await;
            if let Some(budget) = budget {
                budget.wait_for_room().await;
            }
            self.open();
        }
    }

    /// Waits until a reader waits for permission.
    async fn wait_for_request(&self) {
        loop {
            let mut request = std::pin::pin!(self.0.request.notified());
            request.as_mut().enable();
            if self.lock().waker.is_some() {
                return;
            }
            request.await;
        }
    }

    /// Permits the next bytes, and wakes the reader.
    fn open(&self) {
        let waker = {
            let mut state = self.lock();
            state.left = READ_AHEAD_BYTES;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the number of bytes that may be read now. `None` if no byte may be: the reader's waker is registered.
    fn poll_left(&self, context: &Context<'_>) -> Option<usize> {
        let mut state = self.lock();
        if state.left > 0 {
            return Some(state.left);
        }
        state.waker = Some(context.waker().clone());
        drop(state);
        self.0.request.notify_waiters();
        None
    }

    /// Records bytes that were read.
    fn record_read(&self, bytes: usize) {
        let mut state = self.lock();
        state.left = state.left.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, ValveState> {
        // Every change leaves it consistent.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokio's sockets behind a valve.
#[derive(Clone, Debug)]
struct ValveRuntime {
    tokio: Tokio,
    valve: Valve,
}

impl Reactor for ValveRuntime {
    type TcpStream = ReadThrough<<Tokio as Reactor>::TcpStream, Valve>;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Never called: it is for sockets that were opened elsewhere.
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
        async move { Ok(ReadThrough::new(connecting.await?, valve)) }
    }
}

impl ReadFilter for Valve {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        mut from: impl FnMut(&mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Some(left) = self.poll_left(context) else { return Poll::Pending };
        let limit = buffer.len().min(left);
        let read = from(context, &mut buffer[..limit]);
        if let Poll::Ready(Ok(bytes)) = read {
            self.record_read(bytes);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_stream_is_read_on_when_there_is_room() {
        let valve = Valve::default();
        valve.open();
        let data = vec![0_u8; READ_AHEAD_BYTES + 10];
        let mut stream = ReadThrough::new(futures::io::Cursor::new(data), valve.clone());
        let mut buffer = vec![0_u8; 2 * READ_AHEAD_BYTES];
        let mut read = async |stream: &mut ReadThrough<_, _>| {
            futures::AsyncReadExt::read(stream, &mut buffer).now_or_never().map(Result::unwrap)
        };
        assert_eq!(read(&mut stream).await, Some(READ_AHEAD_BYTES));
        assert_eq!(read(&mut stream).await, None);
        let budget = Budget::new(1);
        let share = budget.take(1);
        assert!(valve.keep_reopening(Some(&budget)).now_or_never().is_none());
        assert_eq!(read(&mut stream).await, None, "no room");
        drop(share);
        assert!(valve.keep_reopening(Some(&budget)).now_or_never().is_none());
        assert_eq!(read(&mut stream).await, Some(10));
    }
}
