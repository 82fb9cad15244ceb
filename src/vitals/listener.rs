//! `/metrics`, `/livez`, `/readyz`, `/statusz`: on a thread of their own, so that whoever asks takes nothing from messages, whatever he asks.

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
use crate::http_server::{Limits, accept, serve_connection};
use crate::pg::Readiness;

/// How often observations are put into their buckets.
const UPKEEP: Duration = Duration::from_secs(1);
/// A text is good for so long.
const GOOD: Duration = Duration::from_secs(1);
/// Connections at the same time. The next one displaces the oldest: a probe is answered, whoever holds others.
const CONNECTIONS: usize = 32;
const LIMITS: Limits =
    Limits { headers: Duration::from_secs(5), write: WHOLE, head: 8 << 10, keep_alive: false };
/// From the beginning of a connection to its end, the answer's last byte included.
const WHOLE: Duration = Duration::from_secs(15);
/// Answers until the runtime ends that this is called in.
///
/// # Errors
/// When the thread can't be started.
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
                Err(error) => tracing::error!(%error, "metrics and health are not told"),
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

/// What somebody asks for again and again is made once a second.
#[derive(Default)]
struct Kept(Mutex<Option<(Instant, String)>>);

impl Kept {
    fn get(&self, make: impl FnOnce() -> String) -> String {
        // Every change is one assignment.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, text)) if at.elapsed() < GOOD => text.clone(),
            _ => kept.insert((Instant::now(), make())).1.clone(),
        }
    }
}

struct Told {
    vitals: Arc<Vitals>,
    collector: metrics_process::Collector,
    metrics: Kept,
    status: Kept,
}

async fn answer(vitals: Arc<Vitals>, listener: TcpListener, stop: CancellationToken) {
    let collector = metrics_process::Collector::default();
    vitals.with_registry(|| collector.describe());
    let told = Told { vitals, collector, metrics: Kept::default(), status: Kept::default() };
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
    // The oldest first.
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

/// One request, and the connection's end.
async fn connection(router: Router, stream: TcpStream, stop: CancellationToken) {
    let service = TowerToHyperService::new(router);
    // An error is logged there, and ends the connection.
    let _ = serve_connection(stream, &LIMITS, service, &stop, tokio::time::sleep(WHOLE)).await;
}

/// What listens for this machine alone answers to no other name: a page of another site, whose name leads to this machine, could read it in a
/// browser here. Addresses are no such names.
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

async fn metrics(State(told): State<Arc<Told>>) -> Response {
    let text = told.metrics.get(|| {
        told.vitals.with_registry(|| told.collector.collect());
        told.vitals.registry.render()
    });
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Never for a server that is away: an outage must not restart all processes.
async fn livez(State(told): State<Arc<Told>>) -> Response {
    let overdue = told.vitals.liveness.overdue();
    if overdue.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {}\n", overdue.join(", "))).into_response()
}

async fn readyz(State(told): State<Arc<Told>>) -> Response {
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

async fn statusz(State(told): State<Arc<Told>>) -> Response {
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
