//! `oncely gateway`: a reverse proxy that puts the HTTP door before a service that nobody may change.
//!
//! One request of a key at a time is sent on, and final answers are replayed. A request with a key is a run under a lease ([`crate::http`]) with one
//! step, the call of the service ([`keyed`]): where the gateway dies in it, or its answer is torn, nobody knows whether it took effect, and the
//! step's rule decides. All else streams through.
//!
//! connection ([`server`], [`tls`]) → what is refused, and which headers end here ([`door`], [`request`]) → the layer → [`upstream`] ([`keyed`],
//! [`answer`]).

mod answer;
mod body;
mod browser;
mod calls;
mod door;
mod heartbeat;
mod held;
mod keyed;
mod layer;
mod places;
mod problem;
mod readiness;
mod request;
mod server;
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

use self::door::Door;
use self::heartbeat::Silent;
use self::layer::layer;
use self::problem::answers;
use self::readiness::Watch;
use self::tls::Tls;
use self::upstream::Upstream;
use crate::config::GatewayConfig;
use crate::heartbeat::Heartbeat;
use crate::metrics::{GatewayMetrics, Server};
use crate::pg::{self, Readiness, SessionPool, Timelines};
use crate::preflight::{fit_database, warn_of_gateway_files};
use crate::process::Lifecycle;
use crate::shutdown::Stopped;
use crate::vitals::Program;

/// Sessions with PostgreSQL at the same time. A request holds one for a statement, and none while the service works.
const SESSIONS: usize = 16;
/// After the last answer.
const CLOSE: Duration = Duration::from_secs(2);

/// A gateway.
pub(crate) struct Gateway(pub(crate) GatewayConfig);

impl Gateway {
    /// Answers until `stop` is over, and finishes what it has begun, for up to `worker.shutdown`. PostgreSQL may be away: then requests with a key
    /// are refused, and all others stream through.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, the database or the address.
    pub(crate) async fn run(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<Stopped> {
        let config = self.0;
        let program = Program {
            kind: "gateway",
            name: &config.worker.name,
            digest: &config.digest,
            servers: &[Server::Postgres],
            listen: config.gateway.metrics,
            setting: "gateway.metrics",
            tells_systemd: true,
        };
        let lifecycle = match Lifecycle::start(program, &config.worker, &config.log, stop).await? {
            ControlFlow::Continue(lifecycle) => lifecycle,
            ControlFlow::Break(stopped) => return Ok(stopped),
        };
        let (vitals, stop) = (&lifecycle.vitals, &lifecycle.stop);
        warn_of_gateway_files(&config);
        warn(&config);
        let mut found = fit_database(&config.postgres, &config.cell).await;
        if let Some(session) = found.session.take() {
            session.close().await;
        }
        for waits_for in found.waits_for() {
            tracing::warn!("{waits_for}: requests with a key are refused until then");
        }
        found.problems.or(())?;
        let name = format!("oncely gateway {}", config.worker.name);
        let timelines = Timelines::default();
        let door = pg::Door::new(config.postgres.clone(), config.cell.clone(), timelines.clone());
        let sessions = SessionPool::new(door, name, SESSIONS, config.postgres.connect_timeout);
        let metrics =
            Arc::new(vitals.with_registry(|| GatewayMetrics::new(&config.gateway.consumer, answers)));
        let upstream = Upstream::new(&config, Arc::clone(&metrics)).context("gateway.upstream")?;
        let layer = layer(&config, sessions.clone())?;
        let door = Arc::new(Door::new(&config.gateway, layer, upstream, metrics)?);
        let tls =
            config.gateway.listen_tls.as_ref().map(Tls::new).transpose().context("gateway.listen_tls")?;
        let listener = listen(config.gateway.listen).await?;
        let _renewing =
            tls.clone().map(|tls| AbortOnDropHandle::new(tokio::spawn(tls::renew(tls, stop.clone()))));
        let heartbeat = Heartbeat::start(
            Arc::clone(vitals),
            &config.postgres,
            &config.cell,
            // Of stats, of which it writes none.
            pg::Clock::new(Utc::now(), Instant::now()),
            timelines,
            Silent,
        );
        let watched = CancellationToken::new();
        let watch = Watch {
            sessions,
            vitals: Arc::clone(vitals),
            metrics: Arc::clone(&door.metrics),
            consumer: config.gateway.consumer.clone(),
            settings: config.postgres.clone(),
        };
        let mut watching = AbortOnDropHandle::new(tokio::spawn(watch.run(watched.clone())));
        let limit = config.worker.shutdown;
        let open = server::serve(&door, listener, tls, config.gateway.connections, stop.clone()).await;
        vitals.set_readiness(Readiness::Stopping);
        let finished = tokio::time::timeout(limit, async {
            open.end().await;
            // Those whose client has left.
            door.drain().await;
        });
        let stopped = match finished.await {
            Ok(()) => Stopped::Clean,
            Err(_) => {
                tracing::error!(?limit, "not all requests were answered in time: they are broken off");
                Stopped::Deadline
            }
        };
        watched.cancel();
        // A server that does not answer is not waited for: what asks it ends together with its session.
        let _ = tokio::join!(tokio::time::timeout(CLOSE, &mut watching), heartbeat.end());
        Ok(stopped)
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    // The port, where it was left to the system.
    tracing::info!(address = %listener.local_addr()?, "listening: the gateway");
    Ok(listener)
}

/// What is allowed, and seldom meant.
fn warn(config: &GatewayConfig) {
    let max_run = config.gateway.max_run;
    if max_run >= config.worker.shutdown {
        tracing::warn!(?max_run, shutdown = ?config.worker.shutdown,
            "a call of the service may take longer than this process has to stop: then it is cut off, and its outcome is not known");
    }
}
