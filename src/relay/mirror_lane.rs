//! Mirror records on their way to Redis.

use std::time::{Duration, Instant};

use secrecy::ExposeSecret as _;
use tokio_util::sync::CancellationToken;

use super::idle::{Idle, REPORT};
use super::mirror_batch::{MirrorReport, mirror_batch};
use super::pulse::Watched;
use super::sessions::Sessions;
use crate::backoff::Backoff;
use crate::config::Config;
use crate::metrics::{RelayResult, Target};
use crate::mirror::{Mirror, TagKey};
use crate::pg::{Door, Session, secret, within};

/// Longest pause between two looks.
const LONGEST: Duration = Duration::from_secs(60);

/// Drains the mirror queue: a full batch means go on at once, an empty one a pause that grows up to `relay.poll`.
pub(super) async fn relay_mirror_records(
    config: Config,
    mirror: Option<Mirror>,
    door: Door,
    watched: Watched,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {}", config.worker.name);
    let mut session: Option<(Sessions, Option<TagKey>)> = None;
    let mut backoff = Backoff::default();
    let mut idle = Idle::new(config.relay.poll);
    let mut total = MirrorReport::default();
    let mut reported = tokio::time::Instant::now();
    tracing::info!("relaying");
    while !stop.is_cancelled() {
        watched.beat.expect(LONGEST + config.postgres.client_timeout() * 4);
        let began = Instant::now();
        let pause = match relay_batch(&config, &application, &door, &mut session, mirror.as_ref()).await {
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

async fn relay_batch(
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
