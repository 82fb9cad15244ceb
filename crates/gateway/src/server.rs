//! Connections of clients, with their number and time limits.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use super::problem::FULL;
use super::request_handler::RequestHandler;
use super::tls::Tls;
use oncely_net::http_server::{BrokenConnection, ConnectionLimits, accept, serve_connection};

const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    headers: Duration::from_secs(30),
    write: Duration::from_secs(30),
    head: 64 << 10,
    keep_alive: true,
};
/// Limit of a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Response to a client over the limit of connections.
const REFUSAL_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";
/// Limit of clients to which it is sent at the same time.
const MAX_REFUSALS: usize = 100;
/// Time limit for sending it.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections that are open after the listener stopped.
pub(super) struct OpenConnections(TaskTracker);

impl OpenConnections {
    /// Waits until all connections have ended.
    pub(super) async fn wait(&self) {
        self.0.wait().await;
    }
}

/// Accepts connections until `stop`. Returns those that are open then: each finishes its current request, and ends. The caller limits the
/// time.
pub(super) async fn serve(
    handler: &Arc<RequestHandler>,
    listener: TcpListener,
    tls: Option<Tls>,
    connections: u32,
    stop: CancellationToken,
) -> OpenConnections {
    let limiter = ConnectionLimiter::new(usize::try_from(connections).unwrap_or(usize::MAX));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        match limiter.enter(peer.ip(), handler.is_trusted_proxy(peer.ip())) {
            Some(permit) => {
                let client = ClientConnection {
                    handler: Arc::clone(handler),
                    peer: peer.ip(),
                    permit,
                    stop: stop.clone(),
                };
                tasks.spawn(serve_client(client, stream, tls.clone()));
            }
            None => {
                handler.metrics.plain.count_answer(FULL);
                // Over TLS no answer is possible without a handshake: the connection is closed.
                if tls.is_none()
                    && let Ok(permit) = Arc::clone(&refusals).try_acquire_owned()
                {
                    tasks.spawn(refuse_connection(stream, permit));
                }
            }
        }
    }
    tasks.close();
    OpenConnections(tasks)
}

/// Sends a 503, as the limit of connections is reached, and closes the connection. Bytes of the client are read before the socket is
/// closed: otherwise a reset would discard the response.
async fn refuse_connection(mut stream: TcpStream, _permit: OwnedSemaphorePermit) {
    let sending = async {
        stream.write_all(REFUSAL_RESPONSE).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = tokio::time::timeout(REFUSAL_TIMEOUT, sending).await {
        tracing::debug!(%error, "a client left that was turned away");
    }
}

/// The client of a connection.
struct ClientConnection {
    handler: Arc<RequestHandler>,
    peer: IpAddr,
    permit: Arc<ConnectionPermit>,
    stop: CancellationToken,
}

/// A client's stream and its socket.
trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn socket(&self) -> &TcpStream;
}

impl ClientStream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

#[cfg(feature = "tls")]
impl ClientStream for tokio_rustls::server::TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A client's stream that marks its permit when all bytes are written to the socket.
struct FlushedStream<S> {
    stream: S,
    permit: Arc<ConnectionPermit>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FlushedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FlushedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(result, Poll::Ready(Ok(()))) {
            self.permit.mark_written();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Serves a client's connection until it ends, or a limit closes it.
async fn serve_client(client: ClientConnection, stream: TcpStream, tls: Option<Tls>) {
    let connections = client.handler.metrics.connections.clone();
    connections.increment(1.0);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection waits for full packets");
    }
    match tls {
        None => client.serve_requests(stream, false).await,
        #[cfg(feature = "tls")]
        Some(tls) => {
            let result = tokio::select! {
                result = tls.handshake(stream, HANDSHAKE_TIMEOUT) => Some(result),
                () = client.stop.cancelled() => None,
                () = client.permit.wait_until_lost() => None,
            };
            match result {
                Some(Ok(stream)) => client.serve_requests(stream, true).await,
                Some(Err(error)) => tracing::debug!(%error, "a TLS handshake has failed"),
                None => {}
            }
        }
        #[cfg(not(feature = "tls"))]
        Some(tls) => match tls {},
    }
    connections.decrement(1.0);
}

impl ClientConnection {
    /// Handles requests until either side closes the connection, or another connection displaces it.
    async fn serve_requests<S: ClientStream>(self, stream: S, is_secure: bool) {
        let Self { handler, peer, permit, stop } = self;
        // Whether a response that ends with the connection is being sent.
        let is_unsized = Arc::new(AtomicBool::new(false));
        let (is_unsized_flag, request_permit) = (Arc::clone(&is_unsized), Arc::clone(&permit));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (handler, permit, is_unsized) =
                (Arc::clone(&handler), Arc::clone(&request_permit), Arc::clone(&is_unsized_flag));
            async move {
                if !permit.begin_request() {
                    // The connection was displaced: it ends.
                    std::future::pending::<()>().await;
                }
                let is_http_10 = request.version() == Version::HTTP_10;
                let response = handler.handle_request(peer, is_secure, request, &permit).await;
                let has_length = response.headers().contains_key(CONTENT_LENGTH)
                    || response.body().size_hint().exact().is_some();
                is_unsized.store(is_http_10 && !has_length, Ordering::Relaxed);
                Ok::<_, Infallible>(response)
            }
        });
        let stream = FlushedStream { stream, permit: Arc::clone(&permit) };
        let result =
            serve_connection(stream, &CONNECTION_LIMITS, service, &stop, permit.wait_until_lost()).await;
        let Err(BrokenConnection { error, stream }) = result else { return };
        // The answer's source broke off. A client of HTTP/1.0 without a length takes the end of the connection for the end of the answer,
        // so the connection is reset.
        if error.is_user()
            && is_unsized.load(Ordering::Relaxed)
            && let Err(error) = stream.get_ref().stream.socket().set_zero_linger()
        {
            tracing::warn!(%error, "cannot reset a connection; its client may take a partial answer as complete");
        }
    }
}
