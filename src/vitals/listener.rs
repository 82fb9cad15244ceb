//! `/metrics`, `/livez`, `/readyz`, `/statusz`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::Vitals;
use crate::pg::Readiness;

/// How often observations are put into their buckets.
const UPKEEP: Duration = Duration::from_secs(1);

/// Answers until the runtime ends. What is asked here waits for no server and for no lane.
pub(super) fn serve(vitals: Arc<Vitals>, listener: TcpListener) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "listening: /metrics, /livez, /readyz, /statusz");
    }
    let upkeep = Arc::clone(&vitals);
    tokio::spawn(async move {
        let mut turns = tokio::time::interval(UPKEEP);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            upkeep.registry.upkeep();
        }
    });
    let collector = metrics_process::Collector::default();
    vitals.with_registry(|| collector.describe());
    let router = Router::new()
        .route(
            "/metrics",
            get(move |State(vitals): State<Arc<Vitals>>| async move {
                vitals.with_registry(|| collector.collect());
                (
                    [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
                    vitals.registry.render(),
                )
            }),
        )
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/statusz", get(statusz))
        .with_state(vitals);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "metrics and health are not told any more");
        }
    });
}

/// Never for a server that is away: an outage must not restart all processes.
async fn livez(State(vitals): State<Arc<Vitals>>) -> Response {
    let overdue = vitals.liveness.overdue();
    if overdue.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {}\n", overdue.join(", "))).into_response()
}

async fn readyz(State(vitals): State<Arc<Vitals>>) -> Response {
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

async fn statusz(State(vitals): State<Arc<Vitals>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], format!("{:#}\n", vitals.status())).into_response()
}
