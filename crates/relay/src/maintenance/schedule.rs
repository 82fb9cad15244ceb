//! The schedule of the maintenance.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::{CollectionOutcome, PartitionReport, collect, keep_partitions};
use oncely_config::{Config, GcSettings};
use oncely_core::backoff::Backoff;
use oncely_postgres::{
    NoSession, Session, SessionFactory, bury_processes, describe, is_outage, prune_stats, roll_up_stats,
    within,
};
use oncely_process::metrics::GcMetrics;
use oncely_process::vitals::LoopBeat;

/// Time between two checks of the partitions. They are created `audit.ahead` before they are needed, a week at least, so an hour suffices.
const PARTITIONS: Duration = Duration::from_secs(3_600);

/// Rows of processes silent for this long are removed.
const FORGOTTEN: chrono::Duration = chrono::Duration::hours(1);

/// The heartbeat and the metrics that the maintenance reports to.
#[derive(Debug)]
pub(crate) struct Signs {
    pub(crate) beat: LoopBeat,
    pub(crate) metrics: GcMetrics,
}

/// Maintains the tables until `stop`. Two relays at once are correct: the lock only saves work.
pub(crate) async fn run(config: Config, factory: SessionFactory, signs: Signs, stop: CancellationToken) {
    tracing::info!(schedule = config.gc.expression, "garbage collection is scheduled (UTC)");
    let application = format!("oncely relay {} maintenance", config.worker.name);
    let mut backoff = Backoff::default();
    let mut next_collection: Option<DateTime<Utc>> = None;
    while !stop.is_cancelled() {
        // The duration of a collection depends on the number of keys to delete; each of its steps has a limit.
        signs.beat.idle();
        let pause = match maintain(
            &config,
            &factory,
            &application,
            &signs.metrics,
            &mut next_collection,
            &stop,
        )
        .await
        {
            Ok(pause) => {
                backoff.reset();
                pause
            }
            // An operator has to correct this.
            Err(error @ NoSession::OtherCell { .. }) => {
                tracing::error!(error = %error, "wrong database: no maintenance; checking again within the hour");
                PARTITIONS
            }
            Err(error) => {
                tracing::warn!(error = %error, "table maintenance failed; retrying");
                backoff.next_pause()
            }
        };
        signs.beat.expect(pause);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Does the work that is due; returns the time until more is.
async fn maintain(
    config: &Config,
    factory: &SessionFactory,
    application: &str,
    metrics: &GcMetrics,
    next_collection: &mut Option<DateTime<Utc>>,
    stop: &CancellationToken,
) -> Result<Duration, NoSession> {
    // Connected only while there is work. The schedule follows the database's clock.
    let mut session = factory.open(application).await?;
    // No limit here: each step has its own.
    log_kept(&keep_partitions(config, &mut session, || stop.is_cancelled()).await?);
    let now = session.clock.now();
    let mut has_failed = false;
    keep_small(config, &mut session, now).await?;
    if next_collection.is_some_and(|due| due <= now) {
        let began = Instant::now();
        match collect(config, &mut session, || stop.is_cancelled()).await? {
            CollectionOutcome::Done(report) => {
                metrics.duration.record(began.elapsed());
                if report.failures.is_empty() {
                    #[allow(clippy::cast_precision_loss)] // seconds
                    metrics.last_success.set(now.timestamp() as f64);
                }
                has_failed = !report.failures.is_empty();
                for failure in report.failures {
                    tracing::error!(failure, "a step of the collection failed; repeated within the hour");
                }
                for collected in report.consumers {
                    metrics.deleted.get(&collected.consumer).increment(collected.deleted.iter().sum());
                    let [completed, failed, in_progress] = collected.deleted;
                    tracing::info!(consumer = collected.consumer, before = %collected.before, completed, failed, in_progress, "collected keys");
                }
                if report.expired > 0 {
                    tracing::info!(expired = report.expired, "collected keys of oncely.claim");
                }
            }
            CollectionOutcome::Busy => tracing::info!("collection skipped: another relay is collecting"),
            // The reason was logged with the partitions, a moment ago.
            CollectionOutcome::Refused(_) => tracing::error!("collection refused: the clock jumped"),
        }
    }
    let now = session.clock.now();
    session.close().await;
    // A failed step is repeated within the hour, and not a night later.
    let latest = has_failed.then(|| now + PARTITIONS * 9 / 10);
    let latest = latest.or(next_collection.filter(|due| *due > now));
    let due = next(&config.gc, now).into_iter().chain(latest).min();
    *next_collection = due;
    let until = due.and_then(|due| (due - now).to_std().ok()).unwrap_or(PARTITIONS);
    // A moment past the due time, so that waking early by a clock's grain does not miss it.
    Ok((until + Duration::from_millis(20)).min(PARTITIONS))
}

/// Removes rows of silent processes and old stats, and makes minutes of stats. Each step is independent: one that fails does not prevent
/// the others.
async fn keep_small(config: &Config, session: &mut Session, now: DateTime<Utc>) -> Result<(), sqlx::Error> {
    let limit = config.postgres.client_timeout();
    let connection = &mut session.connection;
    let buried = within(limit, bury_processes(connection, now - FORGOTTEN)).await;
    let buried = count_or_log(buried, "cannot remove silent processes")?;
    if buried > 0 {
        tracing::info!(buried, "removed processes that were silent for an hour");
    }
    let pruned = within(limit, prune_stats(connection)).await;
    let pruned = count_or_log(pruned, "cannot remove stats older than seven days")?;
    let minutes = within(limit, roll_up_stats(connection)).await;
    let minutes = count_or_log(minutes, "cannot aggregate stats by minute")?;
    tracing::debug!(pruned, minutes, "kept stats small");
    Ok(())
}

/// Returns the count; 0 after a failure, which is logged. Only an outage is returned as an error and prevents the following steps.
fn count_or_log(done: Result<i64, sqlx::Error>, failed: &'static str) -> Result<i64, sqlx::Error> {
    match done {
        Err(error) if !is_outage(&error) => {
            tracing::warn!(error = describe(&error), "{failed}");
            Ok(0)
        }
        other => other,
    }
}

/// Logs the changes made to the audit trail, and the failures.
fn log_kept(kept: &PartitionReport) {
    for name in &kept.made {
        tracing::info!(name, "made an audit partition");
    }
    for name in &kept.dropped {
        tracing::info!(name, "dropped an audit partition");
    }
    if let Some((until, hash)) = &kept.sealed {
        // A role that can change the audit trail can forge the chain, but not this log line.
        tracing::info!(until = %until, hash, seals = kept.seals, "sealed the audit trail");
    }
    for note in &kept.notes {
        tracing::warn!("{note}");
    }
    // Rows without a partition go to the default one; a partition not dropped now is dropped later.
    for failure in &kept.failures {
        tracing::warn!("{failure}; retrying within the hour");
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
