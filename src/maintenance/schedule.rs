//! When the maintenance happens.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::{Ended, Kept, collect, keep_partitions};
use crate::backoff::Backoff;
use crate::config::{Config, GcSettings};
use crate::metrics::GcMetrics;
use crate::pg::{
    Door, NoSession, Session, bury_processes, describe, is_outage, prune_stats, roll_up_stats, within,
};
use crate::vitals::Beat;

/// How often the partitions are looked at: they are made `audit.ahead` before they are needed, a week at least, so an hour is plenty.
const PARTITIONS: Duration = Duration::from_secs(3_600);

/// Processes that were silent for so long are forgotten.
const FORGOTTEN: chrono::Duration = chrono::Duration::hours(1);

/// What the maintenance says of itself by.
#[derive(Debug)]
pub(crate) struct Signs {
    pub(crate) beat: Beat,
    pub(crate) metrics: GcMetrics,
}

/// Keeps the tables until told to stop. Two relays at once are correct: a lock only saves work.
pub(crate) async fn run(config: Config, door: Door, signs: Signs, stop: CancellationToken) {
    tracing::info!(schedule = config.gc.expression, "garbage collection is scheduled (UTC)");
    let application = format!("oncely relay {} maintenance", config.worker.name);
    let mut backoff = Backoff::default();
    let mut next_collection: Option<DateTime<Utc>> = None;
    while !stop.is_cancelled() {
        // How long a collection takes depends on what there is to collect; each of its steps has a limit.
        signs.beat.idle();
        let pause =
            match maintain(&config, &door, &application, &signs.metrics, &mut next_collection, &stop).await {
                Ok(pause) => {
                    backoff.reset();
                    pause
                }
                // Somebody has to mend it.
                Err(error @ NoSession::OtherCell { .. }) => {
                    tracing::error!(error = %error, "no maintenance; looked at again within the hour");
                    PARTITIONS
                }
                Err(error) => {
                    tracing::warn!(error = %error, "maintenance of the tables failed; tried again");
                    backoff.next()
                }
            };
        signs.beat.expect(pause);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Does what is due; returns how long nothing will be.
async fn maintain(
    config: &Config,
    door: &Door,
    application: &str,
    metrics: &GcMetrics,
    next_collection: &mut Option<DateTime<Utc>>,
    stop: &CancellationToken,
) -> Result<Duration, NoSession> {
    // Connected only while there is something to do. The schedule follows the database's clock.
    let mut session = door.open(application).await?;
    // Without a limit here: each step of it has its own.
    log_kept(&keep_partitions(config, &mut session, || stop.is_cancelled()).await?);
    let now = session.clock.now();
    keep_small(config, &mut session, now).await?;
    if next_collection.is_some_and(|due| due <= now) {
        let began = Instant::now();
        match collect(config, &mut session, || stop.is_cancelled()).await? {
            Ended::Done(report) => {
                metrics.duration.record(began.elapsed());
                #[allow(clippy::cast_precision_loss)] // seconds
                metrics.last_success.set(now.timestamp() as f64);
                for collected in report.consumers {
                    metrics.deleted.of(&collected.consumer).increment(collected.deleted.iter().sum());
                    let [completed, failed, in_progress] = collected.deleted;
                    tracing::info!(consumer = collected.consumer, before = %collected.before, completed, failed, in_progress, "collected keys");
                }
                if report.expired > 0 {
                    tracing::info!(expired = report.expired, "collected keys of oncely.claim");
                }
            }
            Ended::Busy => tracing::info!("another relay is collecting"),
            // Said when the partitions were looked at, a moment ago.
            Ended::Refused(_) => tracing::error!("nothing was collected"),
        }
    }
    let now = session.clock.now();
    session.close().await;
    let due = next(&config.gc, now);
    *next_collection = due;
    let until = due.and_then(|due| (due - now).to_std().ok()).unwrap_or(PARTITIONS);
    // A moment past the due time, so that waking early by a clock's grain does not miss it.
    Ok((until + Duration::from_millis(20)).min(PARTITIONS))
}

/// Removes what processes said long ago, and makes minutes of stats. Each by itself: none is kept by another that fails.
async fn keep_small(config: &Config, session: &mut Session, now: DateTime<Utc>) -> Result<(), sqlx::Error> {
    let limit = config.postgres.client_timeout();
    let connection = &mut session.connection;
    let buried = within(limit, bury_processes(connection, now - FORGOTTEN)).await;
    let buried = told(buried, "silent processes were not removed")?;
    if buried > 0 {
        tracing::info!(buried, "removed processes that were silent for an hour");
    }
    let pruned = within(limit, prune_stats(connection)).await;
    let pruned = told(pruned, "stats older than seven days were not removed")?;
    let minutes = within(limit, roll_up_stats(connection)).await;
    let minutes = told(minutes, "minutes of stats were not made")?;
    tracing::debug!(pruned, minutes, "kept stats small");
    Ok(())
}

/// How many; none where it failed, which is logged. Only an outage ends what is behind it.
fn told(done: Result<i64, sqlx::Error>, failed: &'static str) -> Result<i64, sqlx::Error> {
    match done {
        Err(error) if !is_outage(&error) => {
            tracing::warn!(error = describe(&error), "{failed}");
            Ok(0)
        }
        other => other,
    }
}

/// Says what was done to the trail, and what was not.
fn log_kept(kept: &Kept) {
    for name in &kept.made {
        tracing::info!(name, "made an audit partition");
    }
    for name in &kept.dropped {
        tracing::info!(name, "dropped an audit partition");
    }
    if let Some((until, hash)) = &kept.sealed {
        // Whoever changes the trail can forge the chain, and not this line.
        tracing::info!(until = %until, hash, seals = kept.seals, "sealed the audit trail");
    }
    for note in &kept.notes {
        tracing::warn!("{note}");
    }
    // Rows without a partition go to the default one, and what is not dropped now is dropped later.
    for failure in &kept.failures {
        tracing::warn!("{failure}; tried again within the hour");
    }
}

fn next(gc: &GcSettings, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    gc.schedule.find_next_occurrence(&now, false).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_names_the_next_time_in_utc() {
        let gc = GcSettings {
            schedule: "17 3 * * *".parse().unwrap(),
            expression: String::new(),
            batch: 1,
            load: 100,
        };
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        assert_eq!(next(&gc, at("2026-11-20T03:16:59Z")), Some(at("2026-11-20T03:17:00Z")));
        assert_eq!(next(&gc, at("2026-11-20T03:17:00Z")), Some(at("2026-11-21T03:17:00Z")));
    }
}
