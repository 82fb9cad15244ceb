//! Mirror records on their way to Redis.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::idle::{Idle, REPORT};
use super::mirror_batch::{MirrorReport, mirror_batch};
use super::pulse::Watched;
use super::sessions::Sessions;
use crate::backoff::Backoff;
use crate::config::Config;
use crate::metrics::{RelayResult, Target};
use crate::mirror::{Mirror, TagKey, tag_keys};
use crate::pg::{self, Door, Session, within};

/// Longest pause between two looks.
const LONGEST: Duration = Duration::from_secs(60);
/// How often the database is told again for how long entries live, in case another relay or an operator has changed it.
const TELL_TTL_EVERY: Duration = Duration::from_secs(3_600);
/// How often the key of the tags is read.
const READ_KEY_EVERY: Duration = Duration::from_secs(10);

/// What a lane works with while its connections live.
struct Open {
    sessions: Sessions,
    tag_key: Option<TagKey>,
    /// When that was read: workers and relays go over to a new one at the same time, or nearly.
    read_key: Instant,
    /// When the database was told for how long entries live.
    told_ttl: Option<Instant>,
}

/// Drains the mirror queue: a full batch means go on at once, an empty one a pause that grows up to `relay.poll`.
pub(super) async fn relay_mirror_records(
    config: Config,
    mirror: Option<Mirror>,
    door: Door,
    watched: Watched,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {}", config.worker.name);
    let mut open: Option<Open> = None;
    let mut backoff = Backoff::default();
    let mut idle = Idle::new(config.relay.poll);
    let mut total = MirrorReport::default();
    let mut reported = tokio::time::Instant::now();
    tracing::info!("relaying");
    while !stop.is_cancelled() {
        watched
            .beat
            .expect(LONGEST + config.postgres.client_timeout() * 4 + config.postgres.longest_connect() * 2);
        let began = Instant::now();
        let pause = match relay_batch(&config, &application, &door, &mut open, mirror.as_ref()).await {
            Ok(report) => {
                backoff.reset();
                total.records += report.records;
                total.tags += report.tags;
                watched.pulse.succeeded(Target::Redis);
                if report.records > 0 {
                    watched.pulse.count(Target::Redis, RelayResult::Done, report.records);
                    watched.pulse.batch(Target::Redis, began.elapsed(), report.oldest, report.at);
                }
                idle.after(report.records, config.relay.batch)
            }
            Err(error) => {
                tracing::warn!(error, "the mirror queue was not relayed; tried again");
                watched.pulse.count(Target::Redis, RelayResult::Failed, 1);
                watched.pulse.failed(Target::Redis, error);
                open = None;
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
    if let Some(open) = open {
        open.sessions.close().await;
    }
}

async fn relay_batch(
    config: &Config,
    application: &str,
    door: &Door,
    open: &mut Option<Open>,
    mirror: Option<&Mirror>,
) -> Result<MirrorReport, String> {
    let Open { sessions, tag_key, read_key, told_ttl } = match open {
        Some(open) => open,
        None => {
            let mut sessions = Sessions::open(door, application).await.map_err(|error| error.to_string())?;
            let tag_key = tag_key(config, &mut sessions.records).await?;
            open.insert(Open { sessions, tag_key, read_key: Instant::now(), told_ttl: None })
        }
    };
    if read_key.elapsed() >= READ_KEY_EVERY {
        *tag_key = self::tag_key(config, &mut sessions.records).await?;
        *read_key = Instant::now();
    }
    // Before the first entry: whoever shortens a retention asks for how long entries live.
    if told_ttl.is_none_or(|at| at.elapsed() >= TELL_TTL_EVERY) {
        let ttl = config.mirror.as_ref().map(|settings| settings.ttl).unwrap_or_default();
        let told = pg::register_mirror_ttl(&mut sessions.records.connection, ttl);
        within(config.postgres.client_timeout(), told)
            .await
            .map_err(|error| format!("mirror.ttl can't be registered (role oncely_relay): {error}"))?;
        *told_ttl = Some(Instant::now());
    }
    let witness = sessions.standby_witness.as_mut().map(|witness| &mut witness.connection);
    let mirror = mirror.zip(tag_key.as_ref());
    let limit = config.postgres.client_timeout() * 2;
    let batch = mirror_batch(&mut sessions.records, witness, mirror, config.relay.batch);
    match tokio::time::timeout(limit, batch).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        // Its connection is dropped with it, by the caller.
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// With what the tags of `oncely.complete` are made, where there is a mirror.
async fn tag_key(config: &Config, session: &mut Session) -> Result<Option<TagKey>, String> {
    if config.mirror.is_none() {
        return Ok(None);
    }
    let limit = config.postgres.client_timeout();
    match within(limit, tag_keys(config, &mut session.connection)).await {
        Ok((key, _)) => Ok(Some(key)),
        Err(error) => Err(format!("oncely.mirror_keys() gives no key (role oncely_relay): {error}")),
    }
}
