//! Connections: how many, and how patient with each.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

use super::app::Shared;
use super::guard::{self, Verdict};
use super::seats::{Seat, Seats};

/// From the first byte of a request to the end of its headers, and between two requests.
const HEADERS: Duration = Duration::from_secs(15);
/// A browser that takes nothing of an answer for so long is not waited for.
const WRITE: Duration = Duration::from_secs(15);
/// Bytes of a request's line and headers.
const HEAD: usize = 32 << 10;
/// From the signal to stop to the end of what was begun.
const STOP: Duration = Duration::from_secs(5);
/// For whom there is no place.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\nconnection: close\r\n\r\n";
/// After an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Answers until it is told to stop, and finishes what it has begun.
pub(super) async fn serve(app: Shared, router: Router, listener: TcpListener, stop: CancellationToken) {
    let seats = Seats::new(!app.access.is_behind_proxy());
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            // Not a byte is read of whom nothing is believed.
            Ok((_, peer)) if !app.access.answers(peer.ip()) => {
                tracing::debug!(peer = %peer.ip(), "not from the proxy's networks");
            }
            Ok((stream, peer)) => match seats.take(peer.ip()) {
                Some(seat) => {
                    let app = Arc::clone(&app);
                    tasks.spawn(connection(
                        app,
                        router.clone(),
                        stream,
                        peer.ip(),
                        Arc::new(seat),
                        stop.clone(),
                    ));
                }
                None => {
                    // As much as goes at once: nobody is waited for.
                    let _ = stream.try_write(FULL);
                }
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    tasks.close();
    if tokio::time::timeout(STOP, tasks.wait()).await.is_err() {
        tracing::warn!("answers that were under way are broken off");
    }
}

async fn connection(
    app: Shared,
    router: Router,
    stream: TcpStream,
    peer: IpAddr,
    seat: Arc<Seat>,
    stop: CancellationToken,
) {
    let own = Arc::clone(&seat);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, router, seat) = (Arc::clone(&app), router.clone(), Arc::clone(&own));
        async move { Ok::<_, Infallible>(answer(app, router, peer, &seat, request.map(Body::new)).await) }
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
        () = seat.leave.cancelled() => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn answer(
    app: Shared,
    mut router: Router,
    peer: IpAddr,
    seat: &Seat,
    request: axum::extract::Request,
) -> Response {
    let mut response = match guard::check(&app, peer, seat, request).await {
        Verdict::Answer(response) => response,
        Verdict::Pass(request) => {
            let Ok(response) = router.call(request).await;
            response
        }
    };
    guard::harden(&mut response);
    response
}
