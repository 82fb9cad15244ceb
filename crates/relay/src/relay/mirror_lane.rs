//! Relays mirror records to Redis.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::activity::LaneReporter;
use super::idle::{IdleBackoff, MIN_PAUSE, REPORT_INTERVAL};
use super::mirror_batch::{MirrorReport, mirror_batch};
use super::sessions::RelaySessions;
use oncely_config::Config;
use oncely_core::backoff::Backoff;
use oncely_mirror::{Mirror, TagKey, read_tag_keys};
use oncely_postgres::{self as pg, Session, SessionFactory, wait_for_answer};
use oncely_process::metrics::{RelayResult, Target};
use oncely_process::vitals::LoopBeat;

/// Maximum pause between two reads.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Interval at which the lifetime of entries is registered in the database again, in case another relay or an operator has changed it.
const TTL_REGISTRATION_INTERVAL: Duration = Duration::from_secs(3_600);
/// Interval at which the key of the tags is read.
const KEY_READ_INTERVAL: Duration = Duration::from_secs(10);

/// State of a lane while its connections are open.
struct MirrorLaneState {
    sessions: RelaySessions,
    tag_key: Option<TagKey>,
    /// Time at which `tag_key` was read: workers and relays change to a new key at nearly the same time.
    key_read_at: Instant,
    /// Time at which the lifetime of entries was registered in the database.
    ttl_registered_at: Option<Instant>,
}

/// Relays records of the mirror queue until `stop`; errors are logged, and the records are tried again. After a full batch it goes on at
/// once, after an empty one after a growing pause, up to `relay.poll`.
pub(super) async fn relay_mirror_records(
    config: Config,
    mirror: Option<Mirror>,
    factory: SessionFactory,
    reporter: LaneReporter,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {}", config.worker.name);
    let mut state: Option<MirrorLaneState> = None;
    // Of the units, the last one that was read.
    let mut turn = 0;
    let mut backoff = Backoff::default();
    let mut idle = IdleBackoff::new(MIN_PAUSE, config.relay.poll);
    let mut total = MirrorReport::default();
    let mut last_report = tokio::time::Instant::now();
    tracing::info!("mirror lane started");
    while !stop.is_cancelled() {
        reporter.beat.begin_step(
            MAX_PAUSE + config.postgres.client_timeout() * 4 + config.postgres.max_connect_time() * 2,
        );
        let began = Instant::now();
        let result = relay_batch(
            &config,
            &application,
            &factory,
            &mut state,
            mirror.as_ref(),
            &reporter.beat,
            &mut turn,
        )
        .await;
        let (report, failure) = result.unwrap_or_else(|error| (MirrorReport::default(), Some(error)));
        total.records += report.records;
        total.tags += report.tags;
        if report.records > 0 {
            reporter.activity.count_results(Target::Redis, RelayResult::Done, report.records);
            reporter.activity.record_batch(Target::Redis, began.elapsed(), report.oldest, report.at);
        }
        let pause = match failure {
            None => {
                backoff.reset();
                reporter.activity.record_success(Target::Redis);
                idle.next_pause(report.records, config.relay.batch)
            }
            Some(error) => {
                tracing::warn!(error, "cannot write mirror records to Redis; retrying");
                reporter.activity.count_results(Target::Redis, RelayResult::Failed, 1);
                reporter.activity.record_failure(Target::Redis, error);
                state = None;
                backoff.next_pause()
            }
        };
        if last_report.elapsed() >= REPORT_INTERVAL && total.records > 0 {
            tracing::info!(records = total.records, tags = total.tags, "mirror records written");
            total = MirrorReport::default();
            last_report = tokio::time::Instant::now();
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
    if let Some(state) = state {
        state.sessions.close().await;
    }
}

/// Writes one batch of records of each unit to Redis, and deletes them. Opens the sessions, reads the key of the tags and registers the
/// lifetime of entries when that is due. Returns the results and the mirror's error, `None` without one. Fails if PostgreSQL refuses a
/// statement, or does not finish the batch within twice the client's limit of a statement.
async fn relay_batch(
    config: &Config,
    application: &str,
    factory: &SessionFactory,
    state: &mut Option<MirrorLaneState>,
    mirror: Option<&Mirror>,
    beat: &LoopBeat,
    turn: &mut usize,
) -> Result<(MirrorReport, Option<String>), String> {
    state.take_if(|state| !state.sessions.are_admitted(factory));
    let MirrorLaneState { sessions, tag_key, key_read_at, ttl_registered_at } = match state {
        Some(state) => state,
        None => {
            let mut sessions =
                RelaySessions::open(factory, application).await.map_err(|error| error.to_string())?;
            let tag_key = read_tag_key(config, &mut sessions.records).await?;
            state.insert(MirrorLaneState {
                sessions,
                tag_key,
                key_read_at: Instant::now(),
                ttl_registered_at: None,
            })
        }
    };
    if key_read_at.elapsed() >= KEY_READ_INTERVAL {
        *tag_key = read_tag_key(config, &mut sessions.records).await?;
        *key_read_at = Instant::now();
    }
    // Before the first entry: shortening a retention depends on the lifetime of entries.
    if ttl_registered_at.is_none_or(|at| at.elapsed() >= TTL_REGISTRATION_INTERVAL) {
        let ttl = config.mirror.as_ref().map(|settings| settings.ttl).unwrap_or_default();
        let registration = pg::register_mirror_ttl(&mut sessions.records.connection, ttl);
        wait_for_answer(config.postgres.client_timeout(), registration)
            .await
            .map_err(|error| format!("mirror.ttl can't be registered (role oncely_relay): {error}"))?;
        *ttl_registered_at = Some(Instant::now());
    }
    if let Err(error) = sessions.refresh_units(config.postgres.client_timeout()).await {
        return Err(error.to_string());
    }
    let RelaySessions { records, standby_witness, units, .. } = sessions;
    let mirror = mirror.zip(tag_key.as_ref());
    let limit = config.postgres.client_timeout() * 2;
    let mut total = MirrorReport::default();
    // The unit that failed last time is the last one: it keeps no other one waiting.
    for _ in 0..units.len() {
        beat.begin_step(MAX_PAUSE + limit);
        *turn = (*turn + 1) % units.len();
        let Some(unit) = units.get(*turn) else { break };
        let witness = standby_witness.as_mut().map(|witness| &mut witness.connection);
        let batch = mirror_batch(records, unit, witness, mirror, config.relay.batch);
        let (report, failure) = match tokio::time::timeout(limit, batch).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => return Ok((total, Some(error.to_string()))),
            // Its connection is dropped with it, by the caller.
            Err(_) => return Ok((total, Some(format!("no answer within {limit:?}")))),
        };
        total.add(report);
        if let Some(error) = failure {
            return Ok((total, Some(error.to_string())));
        }
    }
    Ok((total, None))
}

/// Reads the key for tags of `oncely.complete`; `None` without a mirror.
async fn read_tag_key(config: &Config, session: &mut Session) -> Result<Option<TagKey>, String> {
    if config.mirror.is_none() {
        return Ok(None);
    }
    let limit = config.postgres.client_timeout();
    match wait_for_answer(limit, read_tag_keys(config, &mut session.connection)).await {
        Ok((key, _)) => Ok(Some(key)),
        Err(error) => Err(format!("oncely.mirror_keys() gives no key (role oncely_relay): {error}")),
    }
}
