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
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
#[cfg(feature = "tls")]
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};

use super::frames::{FrameLimits, Frames};
use super::read_through::{ReadFilter, ReadThrough};

/// Bytes requested from a socket at a time.
const READ_BYTES: usize = 16 << 10;

/// A plaintext socket.
type PlainSocket<S> = AsyncTcpStream<S>;

#[cfg(not(feature = "tls"))]
type BrokerSocket<S> = PlainSocket<S>;

/// A socket, plain or with TLS.
#[cfg(feature = "tls")]
type BrokerSocket<S> =
    futures::future::Either<PlainSocket<S>, Compat<tokio_rustls::client::TlsStream<Compat<PlainSocket<S>>>>>;

/// TLS of a connection; `None` for one in plaintext.
#[cfg(feature = "tls")]
pub(super) type BrokerTls = Option<oncely_net::tls::TlsClient>;
#[cfg(not(feature = "tls"))]
pub(super) struct BrokerTls;

/// Connects through sockets of `runtime`. `limit` applies to the handshake, `limits` to the frames read ([`Frames`]).
pub(super) async fn connect<K: RuntimeKit + Clone + Send + Sync + 'static>(
    uri: AMQPUri,
    properties: ConnectionProperties,
    security: BrokerTls,
    limit: Duration,
    runtime: Runtime<K>,
    limits: FrameLimits,
) -> Result<Connection, lapin::Error> {
    let tokio = Tokio::current();
    let filtered =
        FilteringRuntime { tokio: tokio.clone(), sockets: std::marker::PhantomData::<fn() -> K::TcpStream> };
    let connect = async move |mut uri: AMQPUri, _| {
        // Oncely makes the TLS connection: the client's TLS takes no server name, and uses a second implementation of certificates.
        uri.scheme = AMQPScheme::AMQP;
        let plain = uri.connect_async(&runtime).await?;
        let stream = protect(plain, &security, &uri.authority.host, limit).await?;
        Ok(AsyncTcpStream::Plain(ReadThrough::new(
            stream,
            Filter { frames: Frames::new(limits), is_over: false },
        )))
    };
    Connection::connector(uri, Runtime::new(RuntimeParts::new(tokio, filtered)), connect, properties).await
}

/// Makes the TLS handshake, if the connection uses TLS.
#[cfg(feature = "tls")]
async fn protect<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    plain: PlainSocket<S>,
    security: &BrokerTls,
    host: &str,
    limit: Duration,
) -> io::Result<BrokerSocket<S>> {
    Ok(match security {
        None => futures::future::Either::Left(plain),
        Some(client) => {
            futures::future::Either::Right(client.handshake(host, plain.compat(), limit).await?.compat())
        }
    })
}

#[cfg(not(feature = "tls"))]
async fn protect<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    plain: PlainSocket<S>,
    _: &BrokerTls,
    _host: &str,
    _limit: Duration,
) -> io::Result<BrokerSocket<S>> {
    Ok(plain)
}

/// Tokio with sockets that are read through [`Frames`].
struct FilteringRuntime<S> {
    tokio: Tokio,
    sockets: std::marker::PhantomData<fn() -> S>,
}

impl<S> std::fmt::Debug for FilteringRuntime<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilteringRuntime").finish_non_exhaustive()
    }
}

impl<S> Clone for FilteringRuntime<S> {
    fn clone(&self) -> Self {
        Self { tokio: self.tokio.clone(), sockets: self.sockets }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Reactor for FilteringRuntime<S> {
    type TcpStream = ReadThrough<BrokerSocket<S>, Filter>;
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

    /// Never called: the client's sockets come from [`connect`].
    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// [`Frames`], until the stream ends.
#[derive(Debug)]
struct Filter {
    frames: Frames,
    is_over: bool,
}

impl ReadFilter for Filter {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        mut from: impl FnMut(&mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let count = self.frames.take(buffer);
            if count > 0 || self.is_over || buffer.is_empty() {
                return Poll::Ready(Ok(count));
            }
            let read = from(context, self.frames.reserve(READ_BYTES));
            self.frames.accept(READ_BYTES, if let Poll::Ready(Ok(bytes)) = read { bytes } else { 0 });
            if ready!(read)? == 0 {
                self.frames.end();
                self.is_over = true;
            }
        }
    }
}
