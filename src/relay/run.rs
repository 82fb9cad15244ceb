//! Builds and runs a relay.

use secrecy::ExposeSecret as _;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::event_lane::publish_events;
use super::idle::{Idle, REPORT};
use super::mirror_batch::{MirrorReport, mirror_batch};
use super::sessions::Sessions;
use crate::backoff::Backoff;
use crate::config::{Config, Problems};
use crate::heartbeat::Heartbeat;
use crate::maintenance;
use crate::mirror::{Mirror, TagKey};
use crate::pg::{Door, History, Session, secret, within};
use crate::preflight::preflight;
use crate::shutdown::{self, Stopped};
use crate::watchdog;

/// A relay: the way of mirror records to Redis, of events to RabbitMQ, and the maintenance of the tables. Several may run.
#[derive(Debug)]
pub struct Relay {
    config: Config,
}

impl Relay {
    /// A relay with this configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Relays until `stop` is over; a batch that has begun is finished, for up to `worker.shutdown`. Servers that are away
    /// are waited for.
    ///
    /// # Errors
    /// When the configuration contradicts what the servers hold.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<Stopped, Problems> {
        let (stop, _waiting) = shutdown::when(stop);
        let _watchdog = watchdog::watch(self.config.worker.watchdog)?;
        if !self.start(&stop).await? {
            return Ok(Stopped::Clean);
        }
        let mut tasks = JoinSet::new();
        let door = Door::new(self.config.postgres.clone(), self.config.cell.clone(), History::default());
        tasks.spawn(maintenance::run(self.config.clone(), door.clone(), stop.clone()));
        let mirror = self.config.mirror.as_ref().map(Mirror::open).transpose()?;
        if mirror.is_none() {
            tracing::info!(
                "no [redis] url: nothing is mirrored, mirror records of workers that have one are dropped"
            );
        }
        for lane in 1..=self.config.events.lanes {
            tasks.spawn(publish_events(self.config.clone(), lane, door.clone(), stop.clone()));
        }
        tasks.spawn(relay(self.config.clone(), mirror, door, stop.clone()));
        let heartbeat = Heartbeat::start("relay", &self.config, || Value::Array(Vec::new()));
        let mut stopped = Stopped::Clean;
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(self.config.worker.shutdown).await;
        };
        tokio::pin!(overdue);
        loop {
            let ended = tokio::select! {
                ended = tasks.join_next() => ended,
                () = &mut overdue => {
                    // Whatever it waits for (a server that went silent, say) is rolled back, and taken again.
                    tracing::error!(limit = ?self.config.worker.shutdown, "not all work was finished in time");
                    tasks.shutdown().await;
                    heartbeat.end().await;
                    return Ok(Stopped::Deadline);
                }
            };
            match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(error = %error, "a task of the relay has failed: the relay stops");
                    stop.cancel();
                    stopped = Stopped::Failed;
                }
            }
        }
        heartbeat.end().await;
        Ok(stopped)
    }

    async fn start(&self, stop: &CancellationToken) -> Result<bool, Problems> {
        let mut backoff = Backoff::default();
        loop {
            let found = preflight(&self.config, false).await;
            if !found.problems.is_empty() {
                return Err(found.problems);
            }
            if let Some(session) = found.session {
                session.close().await;
                return Ok(true);
            }
            tracing::warn!(servers = found.unreachable.join("; "), "waiting for servers");
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}

/// Drains the mirror queue: a full batch means go on at once, an empty one a pause that grows up to `relay.poll`.
async fn relay(config: Config, mirror: Option<Mirror>, door: Door, stop: CancellationToken) {
    let application = format!("oncely relay {}", config.worker.name);
    let mut session: Option<(Sessions, Option<TagKey>)> = None;
    let mut backoff = Backoff::default();
    let mut idle = Idle::new(config.relay.poll);
    let mut total = MirrorReport::default();
    let mut reported = tokio::time::Instant::now();
    tracing::info!("relaying");
    while !stop.is_cancelled() {
        let pause = match one(&config, &application, &door, &mut session, mirror.as_ref()).await {
            Ok(report) => {
                backoff.reset();
                total.records += report.records;
                total.tags += report.tags;
                idle.after(report.records, config.relay.batch)
            }
            Err(error) => {
                tracing::warn!(error, "the mirror queue was not relayed; tried again");
                session = None;
                backoff.next()
            }
        };
        if reported.elapsed() >= REPORT && total.records > 0 {
            tracing::info!(records = total.records, tags = total.tags, "relayed");
            total = MirrorReport::default();
            reported = tokio::time::Instant::now();
        }
        if !pause.is_zero() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
    if total.records > 0 {
        tracing::info!(records = total.records, tags = total.tags, "relayed");
    }
    if let Some((sessions, _)) = session {
        sessions.close().await;
    }
}

async fn one(
    config: &Config,
    application: &str,
    door: &Door,
    session: &mut Option<(Sessions, Option<TagKey>)>,
    mirror: Option<&Mirror>,
) -> Result<MirrorReport, String> {
    let (open, tag_key) = match session {
        Some(open) => open,
        None => {
            let mut sessions = Sessions::open(door, application).await.map_err(|error| error.to_string())?;
            let tag_key = tag_key(config, &mut sessions.records).await?;
            session.insert((sessions, tag_key))
        }
    };
    let witness = open.standby_witness.as_mut().map(|witness| &mut witness.connection);
    let mirror = mirror.zip(tag_key.as_ref());
    let limit = config.postgres.client_timeout() * 2;
    match tokio::time::timeout(limit, mirror_batch(&mut open.records, witness, mirror, config.relay.batch))
        .await
    {
        Ok(done) => done.map_err(|error| error.to_string()),
        // Its connection is dropped with it, by the caller.
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// With what the tags of `oncely.complete` are made, where there is a mirror.
async fn tag_key(config: &Config, session: &mut Session) -> Result<Option<TagKey>, String> {
    let Some(settings) = &config.mirror else { return Ok(None) };
    if let Some(key) = &settings.key {
        return Ok(Some(TagKey::derive(key.expose_secret().as_bytes())));
    }
    match within(config.postgres.client_timeout(), secret(&mut session.connection)).await {
        Ok(secret) => Ok(Some(TagKey::derive(&secret))),
        Err(error) => Err(format!("oncely.cell.secret can't be read (role oncely_relay): {error}")),
    }
}
