//! Connections: limits of their number and of time.

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

use super::app::SharedApp;
use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::guard::{self, GuardDecision};
use oncely_net::http_server::{ConnectionLimits, accept, serve_connection};

const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    headers: Duration::from_secs(15),
    write: Duration::from_secs(15),
    head: 32 << 10,
    keep_alive: true,
};
/// Time to finish running requests after the signal to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Response to a connection without a slot.
const FULL_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\nconnection: close\r\n\r\n";
/// Serves until `stop`. Then finishes running requests, for up to [`STOP_TIMEOUT`].
pub(super) async fn serve(app: SharedApp, router: Router, listener: TcpListener, stop: CancellationToken) {
    let slots = ConnectionSlots::new(!app.access.is_behind_proxy());
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let peer = peer.ip();
        // No byte is read from an untrusted address.
        if !app.access.is_allowed_peer(peer) {
            tracing::debug!(%peer, "not from the proxy's networks");
            continue;
        }
        match slots.take(peer) {
            Some(slot) => {
                let app = Arc::clone(&app);
                tasks.spawn(serve_client(app, router.clone(), stream, peer, Arc::new(slot), stop.clone()));
            }
            None => {
                // Writes as much as possible without waiting.
                let _ = stream.try_write(FULL_RESPONSE);
            }
        }
    }
    tasks.close();
    if tokio::time::timeout(STOP_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!("shutdown limit reached; open responses are cut off");
    }
}

/// Serves a connection until it ends or its slot is taken away; after `stop` it ends with the current request.
async fn serve_client(
    app: SharedApp,
    router: Router,
    stream: TcpStream,
    peer: IpAddr,
    slot: Arc<ConnectionSlot>,
    stop: CancellationToken,
) {
    let own = Arc::clone(&slot);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, router, slot) = (Arc::clone(&app), router.clone(), Arc::clone(&own));
        async move { Ok::<_, Infallible>(handle_request(app, router, peer, &slot, request.map(Body::new)).await) }
    });
    // The error has been logged, and ends the connection.
    let _ = serve_connection(stream, &CONNECTION_LIMITS, service, &stop, slot.eviction.cancelled()).await;
}

/// Checks a request, and calls its page; every response gets the security headers.
async fn handle_request(
    app: SharedApp,
    mut router: Router,
    peer: IpAddr,
    slot: &ConnectionSlot,
    request: axum::extract::Request,
) -> Response {
    let mut response = match guard::check(&app, peer, slot, request).await {
        GuardDecision::Respond(response) => response,
        GuardDecision::Pass(request) => {
            let Ok(response) = router.call(request).await;
            response
        }
    };
    guard::add_security_headers(&mut response);
    response
}
