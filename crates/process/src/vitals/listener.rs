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
const UPKEEP: Duration = Duration::from_secs(1);
/// How long a rendered text is reused.
const GOOD: Duration = Duration::from_secs(1);
/// Limit of connections. A new one displaces the oldest, so that probes are answered in any case.
const CONNECTIONS: usize = 32;
const LIMITS: ConnectionLimits =
    ConnectionLimits { headers: Duration::from_secs(5), write: WHOLE, head: 8 << 10, keep_alive: false };
/// Limit of a connection, including the answer's last byte.
const WHOLE: Duration = Duration::from_secs(15);
/// Answers until the current runtime ends.
///
/// # Errors
/// If the thread can't be started.
pub(super) fn serve(vitals: Arc<Vitals>, listener: TcpListener) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    std::thread::Builder::new().name("listener".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => answer(vitals, listener, stopped).await,
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
    fn get(&self, make: impl FnOnce() -> String) -> String {
        // Every change is one assignment.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, text)) if at.elapsed() < GOOD => text.clone(),
            _ => kept.insert((Instant::now(), make())).1.clone(),
        }
    }
}

struct ListenerState {
    vitals: Arc<Vitals>,
    collector: metrics_process::Collector,
    metrics: CachedText,
    status: CachedText,
}

async fn answer(vitals: Arc<Vitals>, listener: TcpListener, stop: CancellationToken) {
    let collector = metrics_process::Collector::default();
    vitals.with_registry(|| collector.describe());
    let told =
        ListenerState { vitals, collector, metrics: CachedText::default(), status: CachedText::default() };
    let told = Arc::new(told);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/statusz", get(statusz))
        .with_state(Arc::clone(&told));
    let router = match listener.local_addr() {
        Ok(address) if address.ip().is_loopback() => router.layer(from_fn(local)),
        _ => router,
    };
    let mut upkeep = tokio::time::interval(UPKEEP);
    upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut connections = JoinSet::new();
    // Connections, the oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            _ = upkeep.tick() => {
                told.vitals.registry.upkeep();
                continue;
            }
            Some(_) = connections.join_next() => {
                open.retain(|connection| !connection.is_finished());
                continue;
            }
            (stream, _) = accept(&listener) => stream,
        };
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connections.spawn(connection(router.clone(), stream, stop.clone())));
    }
}

/// Serves one request, and closes the connection.
async fn connection(router: Router, stream: TcpStream, stop: CancellationToken) {
    let service = TowerToHyperService::new(router);
    // An error is logged there, and ends the connection.
    let _ = serve_connection(stream, &LIMITS, service, &stop, tokio::time::sleep(WHOLE)).await;
}

/// Restricts a local listener to local host names: a page of another site with a name that resolves to this machine could read it in a
/// local browser. IP addresses are allowed.
async fn local(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    if host.is_none_or(|host| host.to_str().is_ok_and(is_local)) {
        return next.run(request).await;
    }
    let told = "This listens on a loopback address, and is reached by an address or as localhost.\n";
    (StatusCode::MISDIRECTED_REQUEST, told).into_response()
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

async fn metrics(State(told): State<Arc<ListenerState>>) -> Response {
    let text = told.metrics.get(|| {
        told.vitals.with_registry(|| told.collector.collect());
        told.vitals.registry.render()
    });
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Does not depend on servers: an outage must not restart all processes.
async fn livez(State(told): State<Arc<ListenerState>>) -> Response {
    let overdue = told.vitals.liveness.overdue();
    if overdue.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {}\n", overdue.join(", "))).into_response()
}

async fn readyz(State(told): State<Arc<ListenerState>>) -> Response {
    let vitals = &told.vitals;
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

async fn statusz(State(told): State<Arc<ListenerState>>) -> Response {
    let text = told.status.get(|| format!("{:#}\n", told.vitals.status()));
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
