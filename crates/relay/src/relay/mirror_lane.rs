//! Relays mirror records to Redis.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::activity::LaneReporter;
use super::idle::{IdleBackoff, REPORT};
use super::mirror_batch::{MirrorReport, mirror_batch};
use super::sessions::RelaySessions;
use oncely_config::Config;
use oncely_core::backoff::Backoff;
use oncely_mirror::{Mirror, TagKey, tag_keys};
use oncely_postgres::{self as pg, Session, SessionFactory, within};
use oncely_process::metrics::{RelayResult, Target};

/// Longest pause between two reads.
const LONGEST: Duration = Duration::from_secs(60);
/// Interval at which the lifetime of entries is registered in the database again, in case another relay or an operator has changed it.
const TELL_TTL_EVERY: Duration = Duration::from_secs(3_600);
/// Interval at which the key of the tags is read.
const READ_KEY_EVERY: Duration = Duration::from_secs(10);

/// State of a lane while its connections are open.
struct MirrorLaneState {
    sessions: RelaySessions,
    tag_key: Option<TagKey>,
    /// Time at which it was read: workers and relays change to a new one at the same time, or nearly.
    read_key: Instant,
    /// Time at which the lifetime of entries was registered in the database.
    told_ttl: Option<Instant>,
}

/// Drains the mirror queue: after a full batch it goes on at once, after an empty one after a growing pause, up to `relay.poll`.
pub(super) async fn relay_mirror_records(
    config: Config,
    mirror: Option<Mirror>,
    factory: SessionFactory,
    watched: LaneReporter,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {}", config.worker.name);
    let mut open: Option<MirrorLaneState> = None;
    let mut backoff = Backoff::default();
    let mut idle = IdleBackoff::new(config.relay.poll);
    let mut total = MirrorReport::default();
    let mut reported = tokio::time::Instant::now();
    tracing::info!("mirror lane started");
    while !stop.is_cancelled() {
        watched
            .beat
            .expect(LONGEST + config.postgres.client_timeout() * 4 + config.postgres.longest_connect() * 2);
        let began = Instant::now();
        let relayed = relay_batch(&config, &application, &factory, &mut open, mirror.as_ref()).await;
        let (report, failed) = relayed.unwrap_or_else(|error| (MirrorReport::default(), Some(error)));
        total.records += report.records;
        total.tags += report.tags;
        if report.records > 0 {
            watched.pulse.count(Target::Redis, RelayResult::Done, report.records);
            watched.pulse.batch(Target::Redis, began.elapsed(), report.oldest, report.at);
        }
        let pause = match failed {
            None => {
                backoff.reset();
                watched.pulse.succeeded(Target::Redis);
                idle.after(report.records, config.relay.batch)
            }
            Some(error) => {
                tracing::warn!(error, "cannot write mirror records to Redis; retrying");
                watched.pulse.count(Target::Redis, RelayResult::Failed, 1);
                watched.pulse.failed(Target::Redis, error);
                open = None;
                backoff.next_pause()
            }
        };
        if reported.elapsed() >= REPORT && total.records > 0 {
            tracing::info!(records = total.records, tags = total.tags, "mirror records written");
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
        tracing::info!(records = total.records, tags = total.tags, "mirror records written");
    }
    if let Some(open) = open {
        open.sessions.close().await;
    }
}

async fn relay_batch(
    config: &Config,
    application: &str,
    factory: &SessionFactory,
    open: &mut Option<MirrorLaneState>,
    mirror: Option<&Mirror>,
) -> Result<(MirrorReport, Option<String>), String> {
    open.take_if(|open| !open.sessions.are_admitted(factory));
    let MirrorLaneState { sessions, tag_key, read_key, told_ttl } = match open {
        Some(open) => open,
        None => {
            let mut sessions =
                RelaySessions::open(factory, application).await.map_err(|error| error.to_string())?;
            let tag_key = tag_key(config, &mut sessions.records).await?;
            open.insert(MirrorLaneState { sessions, tag_key, read_key: Instant::now(), told_ttl: None })
        }
    };
    if read_key.elapsed() >= READ_KEY_EVERY {
        *tag_key = self::tag_key(config, &mut sessions.records).await?;
        *read_key = Instant::now();
    }
    // Before the first entry: shortening a retention depends on the lifetime of entries.
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
        Ok(Ok((report, failed))) => Ok((report, failed.map(|error| error.to_string()))),
        Ok(Err(error)) => Err(error.to_string()),
        // Its connection is dropped with it, by the caller.
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// Returns the key for tags of `oncely.complete`, if there is a mirror.
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
