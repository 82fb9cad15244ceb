//! Connections of clients: how many, and how patient with each.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Version;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::door::Door;
use super::places::{Place, Places};
use super::problem::FULL;
use super::tls::Tls;
use crate::http_server::{Broken, Limits, accept, serve_connection};

const LIMITS: Limits = Limits {
    headers: Duration::from_secs(30),
    write: Duration::from_secs(30),
    head: 64 << 10,
    keep_alive: true,
};
/// For a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For whom there is no place.
const NO_PLACE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";
/// How many of them get to read it at the same time, and for how long.
const TURNED_AWAY: usize = 100;
const LINGER: Duration = Duration::from_secs(1);
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
    let places = Places::new(usize::try_from(connections).unwrap_or(usize::MAX));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        match places.enter(peer.ip(), door.trusts(peer.ip())) {
            Some(place) => {
                let client = Client { door: Arc::clone(door), peer: peer.ip(), place, stop: stop.clone() };
                tasks.spawn(connection(client, stream, tls.clone()));
            }
            None => {
                door.metrics.plain.answered(FULL);
                // Without a handshake there is nothing to be said by TLS: the connection ends.
                if tls.is_none()
                    && let Ok(place) = Arc::clone(&turned_away).try_acquire_owned()
                {
                    tasks.spawn(turn_away(stream, place));
                }
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
    place: Arc<Place>,
    stop: CancellationToken,
}

/// A client's bytes, and the socket that they go through.
trait Wire: AsyncRead + AsyncWrite + Send + 'static {
    fn socket(&self) -> &TcpStream;
}

impl Wire for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

#[cfg(feature = "tls")]
impl Wire for tokio_rustls::server::TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

async fn connection(client: Client, stream: TcpStream, tls: Option<Tls>) {
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
                () = client.place.lost() => None,
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
    /// Answers its requests, until one of the two has enough, or another client has its place.
    async fn talk<S: Wire>(self, stream: S, is_secure: bool) {
        let Self { door, peer, place, stop } = self;
        // An answer whose end is that of the connection is on its way.
        let is_unsized = Arc::new(AtomicBool::new(false));
        let (seen, at) = (Arc::clone(&is_unsized), Arc::clone(&place));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (door, place, is_unsized) = (Arc::clone(&door), Arc::clone(&at), Arc::clone(&seen));
            async move {
                if !place.begin() {
                    // The connection ends.
                    std::future::pending::<()>().await;
                }
                let is_old = request.version() == Version::HTTP_10;
                let answer = door.answer(peer, is_secure, request, &place).await;
                let has_length = answer.headers().contains_key(CONTENT_LENGTH)
                    || answer.body().size_hint().exact().is_some();
                is_unsized.store(is_old && !has_length, Ordering::Relaxed);
                Ok::<_, Infallible>(answer)
            }
        });
        let served = serve_connection(stream, &LIMITS, service, &stop, place.lost()).await;
        let Err(Broken { error, stream }) = served else { return };
        // What was passed on has broken off. A client of HTTP/1.0 that was told no length takes the end of the connection for the end of the answer,
        // unless it is no ordinary one.
        if error.is_user()
            && is_unsized.load(Ordering::Relaxed)
            && let Err(error) = stream.get_ref().socket().set_zero_linger()
        {
            tracing::warn!(%error, "cannot reset a connection: half of an answer may look whole to its client");
        }
    }
}
