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
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

use super::app::Shared;
use super::guard::{self, Verdict};

/// Connections at the same time; the next one waits.
const CONNECTIONS: usize = 200;
/// From the first byte of a request to the end of its headers, and between two requests.
const HEADERS: Duration = Duration::from_secs(15);
/// Bytes of a request's line and headers.
const HEAD: usize = 32 << 10;
/// From the signal to stop to the end of what was begun.
const STOP: Duration = Duration::from_secs(5);
/// After an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Answers until it is told to stop, and finishes what it has begun.
pub(super) async fn serve(app: Shared, router: Router, listener: TcpListener, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let tasks = TaskTracker::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection =
                    connection(Arc::clone(&app), router.clone(), stream, peer.ip(), stop.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
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

async fn connection(app: Shared, router: Router, stream: TcpStream, peer: IpAddr, stop: CancellationToken) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, router) = (Arc::clone(&app), router.clone());
        async move { Ok::<_, Infallible>(answer(app, router, peer, request.map(Body::new)).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
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

async fn answer(app: Shared, mut router: Router, peer: IpAddr, request: axum::extract::Request) -> Response {
    let mut response = match guard::check(&app, peer, request).await {
        Verdict::Answer(response) => response,
        Verdict::Pass(request) => {
            let Ok(response) = router.call(request).await;
            response
        }
    };
    guard::harden(&mut response);
    response
}
