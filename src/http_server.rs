//! HTTP/1.1 on a listener: connections are accepted until the process stops, and each is served within limits of time and size.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// The pause after an error of a listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Limits a connection.
pub(crate) struct Limits {
    /// From the first byte of a request to the end of its headers, and between two requests.
    pub(crate) headers: Duration,
    /// Longest time in which the client takes nothing of an answer.
    pub(crate) write: Duration,
    /// Bytes of a request's line and headers.
    pub(crate) head: usize,
    /// Whether more than one request may come over the connection.
    pub(crate) keep_alive: bool,
}

/// Reports a connection that ended with an error before its client or this process ended it.
pub(crate) struct Broken<S> {
    pub(crate) error: hyper::Error,
    pub(crate) stream: Pin<Box<TimeoutStream<S>>>,
}

/// Accepts the next connection; after an error, logs it and tries again. Cancel-safe.
pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves the requests of a connection until its client ends it. After `stop` the request at hand is finished first; when `leave` is over, the
/// connection is dropped at once.
pub(crate) async fn serve_connection<S, V, B>(
    stream: S,
    limits: &Limits,
    service: V,
    stop: &CancellationToken,
    leave: impl Future<Output = ()>,
) -> Result<(), Broken<S>>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
    V: Service<hyper::Request<Incoming>, Response = hyper::Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(limits.head)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut leave = std::pin::pin!(leave);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = &mut leave => return Ok(()),
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            tokio::select! {
                ended = &mut connection => ended,
                () = &mut leave => return Ok(()),
            }
        }
    };
    ended.map_err(|error| {
        tracing::debug!(%error, "a connection ended");
        Broken { error, stream: connection.into_parts().io.into_inner() }
    })
}
