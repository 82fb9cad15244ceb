//! Connections of clients: how many, and how patient with each.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::door::Door;
use super::problem::FULL;
use super::tls::Tls;

/// From the first byte of a request to the end of its headers, and between two requests.
const HEADERS: Duration = Duration::from_secs(30);
/// For a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A client that takes nothing of an answer for so long is not waited for.
const WRITE: Duration = Duration::from_secs(30);
/// Bytes of a request's line and headers.
const HEAD: usize = 64 << 10;
/// For whom there is no place.
const NO_PLACE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";
/// How many of them get to read it at the same time, and for how long.
const TURNED_AWAY: usize = 100;
const LINGER: Duration = Duration::from_secs(1);
/// After an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Connections that are open when nobody else may come any more.
pub(super) struct Open(TaskTracker);

impl Open {
    /// Waits for their end.
    pub(super) async fn end(&self) {
        self.0.wait().await;
    }
}

/// Takes connections until it is told to stop; each finishes the request that it is at, and ends.
pub(super) async fn serve(
    door: &Arc<Door>,
    listener: TcpListener,
    tls: Option<Tls>,
    connections: u32,
    stop: CancellationToken,
) -> Open {
    let places = Arc::new(Semaphore::new(usize::try_from(connections).unwrap_or(Semaphore::MAX_PERMITS)));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let client = Client { door: Arc::clone(door), peer: peer.ip(), stop: stop.clone() };
                    tasks.spawn(connection(client, stream, tls.clone(), place));
                }
                Err(_) => {
                    door.metrics.plain.answered(FULL);
                    // Without a handshake there is nothing to be said by TLS: the connection ends.
                    if tls.is_none()
                        && let Ok(place) = Arc::clone(&turned_away).try_acquire_owned()
                    {
                        tasks.spawn(turn_away(stream, place));
                    }
                }
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    tasks.close();
    Open(tasks)
}

/// Says that there is no place. What the client has sent is read first: else its system would throw the answer away.
async fn turn_away(mut stream: TcpStream, _place: OwnedSemaphorePermit) {
    let told = async {
        stream.write_all(NO_PLACE).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = tokio::time::timeout(LINGER, told).await {
        tracing::debug!(%error, "a client left that was turned away");
    }
}

/// Whom a connection is with.
struct Client {
    door: Arc<Door>,
    peer: IpAddr,
    stop: CancellationToken,
}

async fn connection(client: Client, stream: TcpStream, tls: Option<Tls>, _place: OwnedSemaphorePermit) {
    let connections = client.door.metrics.connections.clone();
    connections.increment(1.0);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection waits for full packets");
    }
    match tls {
        None => client.talk(stream, false).await,
        #[cfg(feature = "tls")]
        Some(tls) => {
            let shaken = tokio::select! {
                shaken = tls.handshake(stream, HANDSHAKE) => Some(shaken),
                () = client.stop.cancelled() => None,
            };
            match shaken {
                Some(Ok(stream)) => client.talk(stream, true).await,
                Some(Err(error)) => tracing::debug!(%error, "a TLS handshake has failed"),
                None => {}
            }
        }
        #[cfg(not(feature = "tls"))]
        Some(tls) => match tls {},
    }
    connections.decrement(1.0);
}

impl Client {
    /// Answers its requests, until one of the two has enough.
    async fn talk<S>(self, stream: S, is_secure: bool)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Self { door, peer, stop } = self;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let door = Arc::clone(&door);
            async move { Ok::<_, Infallible>(door.answer(peer, is_secure, request).await) }
        });
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    }
}
