//! Connections: how many, and how patient with each.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

use super::app::Shared;
use super::guard::{self, Verdict};
use super::seats::{Seat, Seats};
use crate::http_server::{Limits, accept, serve_connection};

const LIMITS: Limits = Limits {
    headers: Duration::from_secs(15),
    write: Duration::from_secs(15),
    head: 32 << 10,
    keep_alive: true,
};
/// From the signal to stop to the end of what was begun.
const STOP: Duration = Duration::from_secs(5);
/// For whom there is no place.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\nconnection: close\r\n\r\n";
/// Answers until it is told to stop, and finishes what it has begun.
pub(super) async fn serve(app: Shared, router: Router, listener: TcpListener, stop: CancellationToken) {
    let seats = Seats::new(!app.access.is_behind_proxy());
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let peer = peer.ip();
        // Not a byte is read of an address that is not believed.
        if !app.access.answers(peer) {
            tracing::debug!(%peer, "not from the proxy's networks");
            continue;
        }
        match seats.take(peer) {
            Some(seat) => {
                let app = Arc::clone(&app);
                tasks.spawn(connection(app, router.clone(), stream, peer, Arc::new(seat), stop.clone()));
            }
            None => {
                // As much as goes at once, without a wait.
                let _ = stream.try_write(FULL);
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
    // An error is logged there, and ends the connection.
    let _ = serve_connection(stream, &LIMITS, service, &stop, seat.leave.cancelled()).await;
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
