//! A connection's bytes: through a valve, TLS and [`Frames`], in this order, into the AMQP client.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::{Reactor, RuntimeKit};
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::{AsyncRead, AsyncWrite, Stream};
use lapin::tcp::{AMQPUriTcpExt as _, AsyncTcpStream};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use super::frames::Frames;
use super::read_through::{ReadThrough, Reading};

/// What is asked of a socket at a time.
const PIECE: usize = 16 << 10;

/// Connects through sockets of `under`.
pub(super) async fn connect<K: RuntimeKit + Clone + Send + Sync + 'static>(
    uri: AMQPUri,
    properties: ConnectionProperties,
    under: Runtime<K>,
) -> Result<Connection, lapin::Error> {
    let tokio = Tokio::current();
    let filtered =
        Filtered { tokio: tokio.clone(), sockets: std::marker::PhantomData::<fn() -> K::TcpStream> };
    let connect = async move |uri: AMQPUri, _| {
        let stream = uri.connect_async(&under).await?;
        Ok(AsyncTcpStream::Plain(ReadThrough::new(stream, Filter::default())))
    };
    Connection::connector(uri, Runtime::new(RuntimeParts::new(tokio, filtered)), connect, properties).await
}

/// Tokio, with sockets that are read through [`Frames`].
struct Filtered<S> {
    tokio: Tokio,
    sockets: std::marker::PhantomData<fn() -> S>,
}

impl<S> std::fmt::Debug for Filtered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filtered").finish_non_exhaustive()
    }
}

impl<S> Clone for Filtered<S> {
    fn clone(&self) -> Self {
        Self { tokio: self.tokio.clone(), sockets: self.sockets }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Reactor for Filtered<S> {
    type TcpStream = ReadThrough<AsyncTcpStream<S>, Filter>;
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

    /// The client's sockets come from [`connect`].
    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// [`Frames`] until the stream ends.
#[derive(Debug, Default)]
struct Filter {
    frames: Frames,
    is_over: bool,
}

impl Reading for Filter {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        mut from: impl FnMut(&mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let given = self.frames.take(buffer);
            if given > 0 || self.is_over || buffer.is_empty() {
                return Poll::Ready(Ok(given));
            }
            let read = from(context, self.frames.room(PIECE));
            self.frames.read(PIECE, if let Poll::Ready(Ok(bytes)) = read { bytes } else { 0 });
            if ready!(read)? == 0 {
                self.frames.end();
                self.is_over = true;
            }
        }
    }
}
