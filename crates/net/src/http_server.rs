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
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// Pause after an error of a listener, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Time without traffic after which TCP asks whether the client is still there: a client that vanished ends its connection, also
/// while no answer is due to it.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);

/// Limits of a connection.
pub struct ConnectionLimits {
    /// Time from the first byte of a request to the end of its headers, and between two requests.
    pub headers: Duration,
    /// Longest time in which the client reads nothing of an answer.
    pub write: Duration,
    /// Maximum bytes of a request's line and headers.
    pub head: usize,
    /// Whether the connection may carry more than one request.
    pub keep_alive: bool,
}

/// A connection that ended with an error before its client or this process ended it.
pub struct BrokenConnection<S> {
    pub error: hyper::Error,
    pub stream: Pin<Box<TimeoutStream<S>>>,
}

/// Accepts the next connection, and sets its keepalive; after an error, logs it and tries again after a pause. Cancel-safe.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME);
                if let Err(error) = SockRef::from(&accepted.0).set_tcp_keepalive(&keepalive) {
                    tracing::debug!(%error, "cannot set TCP keepalive");
                }
                return accepted;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Serves the requests of a connection until its client ends it. After `stop` the current request is finished first; when `drop_signal`
/// completes, the connection is dropped at once.
///
/// # Errors
/// If the connection ended with an error: that, and the stream.
pub async fn serve_connection<S, V, B>(
    stream: S,
    limits: &ConnectionLimits,
    service: V,
    stop: &CancellationToken,
    drop_signal: impl Future<Output = ()>,
) -> Result<(), BrokenConnection<S>>
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
    let mut drop_signal = std::pin::pin!(drop_signal);
    let result = tokio::select! {
        result = &mut connection => result,
        () = &mut drop_signal => return Ok(()),
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            tokio::select! {
                result = &mut connection => result,
                () = &mut drop_signal => return Ok(()),
            }
        }
    };
    result.map_err(|error| {
        tracing::debug!(%error, "a connection ended");
        BrokenConnection { error, stream: connection.into_parts().io.into_inner() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_is_gone_without_a_word_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, (accepted, _)) = tokio::join!(client, accept(&listener));
        client.unwrap();
        assert!(SockRef::from(&accepted).keepalive().unwrap());
    }
}
