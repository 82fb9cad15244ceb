//! `oncely gateway`: a reverse proxy that adds the idempotency layer to a service without changing it.
//!
//! Only one request of a key at a time is sent on, and final answers are replayed. A request with a key is a run under a lease
//! ([`oncely_http`]) with one step, the call of the service (`keyed`): if the gateway crashes during it, or the answer breaks off, the
//! outcome is unknown, and the step's rule decides. All other requests stream through.
//!
//! connection (`server`, `tls`) → refusals and removed headers (`request_handler`, `request`) → the layer → `upstream` (`keyed`, `answer`).

mod answer;
mod answer_memory;
mod body;
mod connection_limiter;
mod cors;
mod heartbeat;
mod keyed;
mod layer;
mod problem;
mod readiness;
mod request;
mod request_handler;
mod server;
mod service_client;
mod tls;
mod upstream;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use chrono::Utc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::heartbeat::GatewayMember;
use self::layer::build_layer;
use self::problem::answer_names;
use self::readiness::ReadinessWatch;
use self::request_handler::RequestHandler;
use self::tls::Tls;
use self::upstream::Upstream;
use oncely_config::GatewayConfig;
use oncely_postgres::{self as pg, Readiness, SessionPool, Timelines};
use oncely_process::heartbeat::Heartbeat;
use oncely_process::metrics::{GatewayMetrics, Server};
use oncely_process::preflight::{preflight_database, warn_of_gateway_files};
use oncely_process::process::Lifecycle;
use oncely_process::shutdown::StopOutcome;
use oncely_process::vitals::Program;

/// Limit of concurrent PostgreSQL sessions. A request holds one for a statement, and none while the service works.
const MAX_SESSIONS: usize = 16;
/// Limit for closing the sessions after the last answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A gateway.
pub struct Gateway(pub GatewayConfig);

impl Gateway {
    /// Answers requests until `stop` completes, and finishes requests at work for up to `worker.shutdown`. While PostgreSQL is unavailable
    /// requests with a key are refused, and all others stream through.
    ///
    /// # Errors
    /// If the configuration, the database or the address can't be used; every problem is reported.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<StopOutcome> {
        let config = self.0;
        let program = Program {
            kind: "gateway",
            name: &config.worker.name,
            digest: &config.digest,
            servers: &[Server::Postgres],
            listen: config.gateway.metrics,
            setting: "gateway.metrics",
            notifies_systemd: true,
        };
        let lifecycle = match Lifecycle::start(program, &config.worker, &config.log, stop).await? {
            ControlFlow::Continue(lifecycle) => lifecycle,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        let (vitals, stop) = (&lifecycle.vitals, &lifecycle.stop);
        warn_of_gateway_files(&config);
        warn_of_settings(&config);
        check_database(&config).await?;
        let name = format!("oncely gateway {}", config.worker.name);
        let timelines = Timelines::default();
        let factory =
            pg::SessionFactory::new(config.postgres.clone(), config.cell.clone(), timelines.clone());
        let sessions = SessionPool::new(factory, name, MAX_SESSIONS, config.postgres.connect_timeout);
        let metrics = Arc::new(
            vitals.with_registry(|| GatewayMetrics::register(&config.gateway.consumer, answer_names)),
        );
        let upstream = Upstream::load(&config, Arc::clone(&metrics)).context("gateway.upstream")?;
        let layer = build_layer(&config, sessions.clone())?;
        let handler = Arc::new(RequestHandler::new(&config.gateway, layer, upstream, metrics)?);
        let tls =
            config.gateway.listen_tls.as_ref().map(Tls::load).transpose().context("gateway.listen_tls")?;
        let listener = listen(config.gateway.listen).await?;
        let _reload_task = tls
            .clone()
            .map(|tls| AbortOnDropHandle::new(tokio::spawn(tls::reload_certificates(tls, stop.clone()))));
        let heartbeat = Heartbeat::start(
            Arc::clone(vitals),
            &config.postgres,
            &config.cell,
            // Clock for stats, of which a gateway writes none.
            pg::DatabaseClock::new(Utc::now(), Instant::now()),
            timelines,
            GatewayMember,
        );
        let watch_stop = CancellationToken::new();
        let watch = ReadinessWatch {
            sessions,
            vitals: Arc::clone(vitals),
            metrics: Arc::clone(&handler.metrics),
            consumer: config.gateway.consumer.clone(),
            settings: config.postgres.clone(),
        };
        let mut watch_task = AbortOnDropHandle::new(tokio::spawn(watch.run(watch_stop.clone())));
        let limit = config.worker.shutdown;
        let connections =
            server::serve(&handler, listener, tls, config.gateway.connections, stop.clone()).await;
        vitals.set_readiness(Readiness::Stopping);
        let finished = tokio::time::timeout(limit, async {
            connections.wait().await;
            // Requests that have lost their client.
            handler.drain().await;
        });
        let outcome = finished.await.map_or(StopOutcome::Deadline, |()| StopOutcome::Clean);
        if outcome == StopOutcome::Deadline {
            tracing::error!(?limit, "shutdown limit reached; unanswered requests are cut off");
        }
        watch_stop.cancel();
        // A server that does not answer is not awaited: the query ends with its session.
        let _ = tokio::join!(tokio::time::timeout(CLOSE_TIMEOUT, &mut watch_task), heartbeat.end());
        Ok(outcome)
    }
}

/// Checks the database, if it answers. Logs the conditions under which requests with a key are refused.
///
/// # Errors
/// If the configuration has to be changed: all its problems.
async fn check_database(config: &GatewayConfig) -> anyhow::Result<()> {
    let mut preflight = preflight_database(&config.postgres, &config.cell).await;
    if let Some(session) = preflight.session.take() {
        session.close().await;
    }
    for condition in preflight.wait_conditions() {
        tracing::warn!("{condition}; requests with a key are refused until then");
    }
    Ok(preflight.problems.into_result(())?)
}

/// Listens at the address, and logs it.
async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    // The port, if the system chose it.
    tracing::info!(address = %listener.local_addr()?, "gateway listening");
    Ok(listener)
}

/// Logs a warning for settings that are allowed, but rarely intended.
fn warn_of_settings(config: &GatewayConfig) {
    let max_run = config.gateway.max_run;
    if max_run >= config.worker.shutdown {
        tracing::warn!(?max_run, shutdown = ?config.worker.shutdown,
            "gateway.max_run is not shorter than worker.shutdown: a shutdown may cut off calls, outcome unknown");
    }
}
