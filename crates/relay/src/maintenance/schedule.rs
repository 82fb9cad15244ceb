//! The schedule of the maintenance.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::{CollectionOutcome, PartitionReport, collect, maintain_partitions};
use oncely_config::{Config, GcSettings};
use oncely_core::backoff::Backoff;
use oncely_postgres::{
    NoSession, Session, SessionFactory, delete_processes_before, describe, is_outage, prune_stats,
    roll_up_stats, wait_for_answer,
};
use oncely_process::metrics::GcMetrics;
use oncely_process::vitals::LoopBeat;

/// Time between two checks of the partitions. They are created `audit.ahead` before they are needed, a week at least, so an hour suffices.
const PARTITION_INTERVAL: Duration = Duration::from_secs(3_600);

/// Rows of processes silent for this long are removed.
const PROCESS_ROW_LIFETIME: chrono::Duration = chrono::Duration::hours(1);

/// The heartbeat and the metrics that the maintenance reports to.
#[derive(Debug)]
pub(crate) struct MaintenanceReporter {
    pub(crate) beat: LoopBeat,
    pub(crate) metrics: GcMetrics,
}

/// Maintains the tables at intervals until `stop`; errors are logged, and the failed work is done again with the next interval. Two relays
/// at once are correct: the lock only saves work.
pub(crate) async fn run(
    config: Config,
    factory: SessionFactory,
    reporter: MaintenanceReporter,
    stop: CancellationToken,
) {
    tracing::info!(schedule = config.gc.expression, "garbage collection is scheduled (UTC)");
    let application = format!("oncely relay {} maintenance", config.worker.name);
    let mut backoff = Backoff::default();
    let mut next_collection: Option<DateTime<Utc>> = None;
    while !stop.is_cancelled() {
        // The duration of a collection depends on the number of keys to delete; each of its steps has a limit.
        reporter.beat.set_idle();
        let pause = match maintain(
            &config,
            &factory,
            &application,
            &reporter.metrics,
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
                PARTITION_INTERVAL
            }
            Err(error) => {
                tracing::warn!(error = %error, "table maintenance failed; retrying");
                backoff.next_pause()
            }
        };
        reporter.beat.begin_step(pause);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Maintains the partitions, removes old rows, and runs a collection if one is due; sets the time of the next one. Returns the time until
/// the next work is due. Opens a session for the time of the work.
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
    log_partitions(&maintain_partitions(config, &mut session, || stop.is_cancelled()).await?);
    let now = session.clock.now();
    let mut has_failed = false;
    remove_old_rows(config, &mut session, now).await?;
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
    // A failed step runs again within the hour, and not a night later.
    let latest = has_failed.then(|| now + PARTITION_INTERVAL * 9 / 10);
    let latest = latest.or(next_collection.filter(|due| *due > now));
    let due = next_collection_time(&config.gc, now).into_iter().chain(latest).min();
    *next_collection = due;
    let until = due.and_then(|due| (due - now).to_std().ok()).unwrap_or(PARTITION_INTERVAL);
    // A moment past the due time, so that waking early by a clock's grain does not miss it.
    Ok((until + Duration::from_millis(20)).min(PARTITION_INTERVAL))
}

/// Removes rows of silent processes and old stats, and makes minutes of stats. Each step is independent: one that fails does not prevent
/// the others.
async fn remove_old_rows(
    config: &Config,
    session: &mut Session,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let limit = config.postgres.client_timeout();
    let connection = &mut session.connection;
    let deleted =
        wait_for_answer(limit, delete_processes_before(connection, now - PROCESS_ROW_LIFETIME)).await;
    let deleted = count_or_log(deleted, "cannot remove silent processes")?;
    if deleted > 0 {
        tracing::info!(buried = deleted, "removed processes that were silent for an hour");
    }
    let pruned = wait_for_answer(limit, prune_stats(connection)).await;
    let pruned = count_or_log(pruned, "cannot remove stats older than seven days")?;
    let minutes = wait_for_answer(limit, roll_up_stats(connection)).await;
    let minutes = count_or_log(minutes, "cannot aggregate stats by minute")?;
    tracing::debug!(pruned, minutes, "kept stats small");
    Ok(())
}

/// Returns the count; 0 after a failure, which is logged with `text`. Only an outage is returned as an error and prevents the following
/// steps.
fn count_or_log(result: Result<i64, sqlx::Error>, text: &'static str) -> Result<i64, sqlx::Error> {
    match result {
        Err(error) if !is_outage(&error) => {
            tracing::warn!(error = describe(&error), "{text}");
            Ok(0)
        }
        other => other,
    }
}

/// Logs the changes made to the audit trail, and the failures.
fn log_partitions(report: &PartitionReport) {
    for name in &report.made {
        tracing::info!(name, "made an audit partition");
    }
    for name in &report.dropped {
        tracing::info!(name, "dropped an audit partition");
    }
    if let Some((until, hash)) = &report.sealed {
        // A role that can change the audit trail can forge the chain, but not this log line.
        tracing::info!(until = %until, hash, seals = report.seals, "sealed the audit trail");
    }
    for note in &report.notes {
        tracing::warn!("{note}");
    }
    // Rows without a partition go to the default one; a partition not dropped now is dropped later.
    for failure in &report.failures {
        tracing::warn!("{failure}; retrying within the hour");
    }
}

/// Returns the next time of the schedule after `now`; `None` if it has none.
fn next_collection_time(gc: &GcSettings, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
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
        assert_eq!(next_collection_time(&gc, at("2026-11-20T03:16:59Z")), Some(at("2026-11-20T03:17:00Z")));
        assert_eq!(next_collection_time(&gc, at("2026-11-20T03:17:00Z")), Some(at("2026-11-21T03:17:00Z")));
    }
}
