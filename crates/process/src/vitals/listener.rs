//! `/metrics`, `/livez`, `/readyz`, `/statusz`, on their own thread, so that requests don't delay messages.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::Vitals;
use oncely_net::http_server::{ConnectionLimits, accept, serve_connection};
use oncely_postgres::Readiness;

/// Interval at which observations are moved into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a rendered text is reused.
const TEXT_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of connections. A new one displaces the oldest, so that probes are served in any case.
const MAX_CONNECTIONS: usize = 32;
/// Limits of a connection.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    headers: Duration::from_secs(5),
    write: CONNECTION_TIMEOUT,
    head: 8 << 10,
    keep_alive: false,
};
/// Limit of a connection, including the response's last byte.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves requests on a thread of its own, with its own runtime, until the current runtime ends.
///
/// # Errors
/// If the thread or its runtime can't be started.
pub(super) fn serve(vitals: Arc<Vitals>, listener: TcpListener) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = CancellationToken::new();
    let stop_requests = stop.clone();
    std::thread::Builder::new().name("listener".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => serve_requests(vitals, listener, stop_requests).await,
                Err(error) => tracing::error!(%error, "cannot serve metrics and health"),
            }
        });
    })?;
    // Dropped with the runtime's other tasks.
    tokio::spawn(async move {
        let _until_then = stop.drop_guard();
        std::future::pending::<()>().await;
    });
    tracing::info!(%address, "listening: /metrics, /livez, /readyz, /statusz");
    Ok(())
}

/// A text that is rendered at most once a second.
#[derive(Default)]
struct CachedText(Mutex<Option<(Instant, String)>>);

impl CachedText {
    /// Returns the text; renders it with `make` if it is older than [`TEXT_LIFETIME`].
    fn get_or_render(&self, make: impl FnOnce() -> String) -> String {
        // Every change is one assignment.
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((at, text)) if at.elapsed() < TEXT_LIFETIME => text.clone(),
            _ => cached.insert((Instant::now(), make())).1.clone(),
        }
    }
}

struct ListenerState {
    vitals: Arc<Vitals>,
    collector: metrics_process::Collector,
    metrics: CachedText,
    status: CachedText,
}

/// Serves requests for metrics, readiness, liveness and status until `stop`.
async fn serve_requests(vitals: Arc<Vitals>, listener: TcpListener, stop: CancellationToken) {
    let collector = metrics_process::Collector::default();
    vitals.with_registry(|| collector.describe());
    let state =
        ListenerState { vitals, collector, metrics: CachedText::default(), status: CachedText::default() };
    let state = Arc::new(state);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/statusz", get(statusz))
        .with_state(Arc::clone(&state));
    let router = match listener.local_addr() {
        Ok(address) if address.ip().is_loopback() => router.layer(from_fn(require_local_host)),
        _ => router,
    };
    let mut upkeep = tokio::time::interval(UPKEEP_INTERVAL);
    upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut connections = JoinSet::new();
    // Connections, the oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            _ = upkeep.tick() => {
                state.vitals.registry.run_upkeep();
                continue;
            }
            Some(_) = connections.join_next() => {
                open.retain(|connection| !connection.is_finished());
                continue;
            }
            (stream, _) = accept(&listener) => stream,
        };
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connections.spawn(serve_request(router.clone(), stream, stop.clone())));
    }
}

/// Serves one request, and closes the connection, which lasts for up to [`CONNECTION_TIMEOUT`].
async fn serve_request(router: Router, stream: TcpStream, stop: CancellationToken) {
    let service = TowerToHyperService::new(router);
    // An error is logged there, and ends the connection.
    let _ =
        serve_connection(stream, &CONNECTION_LIMITS, service, &stop, tokio::time::sleep(CONNECTION_TIMEOUT))
            .await;
}

/// Refuses requests to a local listener by a name other than `localhost`: a page of another site with a name that resolves to this machine
/// could read it in a local browser. IP addresses are allowed.
async fn require_local_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    if host.is_none_or(|host| host.to_str().is_ok_and(is_local)) {
        return next.run(request).await;
    }
    let text = "This listens on a loopback address, and is reached by an address or as localhost.\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

/// Returns whether a `Host` is `localhost` or an IP address, with or without a port.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Responds with the metrics in Prometheus's text format, rendered at most once a second.
async fn metrics(State(state): State<Arc<ListenerState>>) -> Response {
    let text = state.metrics.get_or_render(|| {
        state.vitals.with_registry(|| state.collector.collect());
        state.vitals.registry.render()
    });
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Responds with 503 if a loop is stuck. Does not depend on servers: an outage must not restart all processes.
async fn livez(State(state): State<Arc<ListenerState>>) -> Response {
    let overdue = state.vitals.liveness.overdue_loops();
    if overdue.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {}\n", overdue.join(", "))).into_response()
}

/// Responds with 503 and the reason, unless the process is ready.
async fn readyz(State(state): State<Arc<ListenerState>>) -> Response {
    let vitals = &state.vitals;
    let readiness = vitals.readiness();
    let text = match (readiness.reason(), vitals.lock().degraded.as_deref()) {
        (Some(reason), _) => format!("{}: {reason}\n", readiness.state()),
        (None, Some(degraded)) => format!("{} (degraded: {degraded})\n", readiness.state()),
        (None, None) => format!("{}\n", readiness.state()),
    };
    match readiness {
        Readiness::Ready => text.into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
    }
}

/// Responds with the process's state as JSON, rendered at most once a second.
async fn statusz(State(state): State<Arc<ListenerState>>) -> Response {
    let text = state.status.get_or_render(|| format!("{:#}\n", state.vitals.status()));
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn addresses_and_localhost_are_no_names_of_others() {
        for host in ["127.0.0.1:9464", "localhost", "LocalHost:9464", "[::1]:9464", "[::1]", "10.0.0.7"] {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]:9464"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
