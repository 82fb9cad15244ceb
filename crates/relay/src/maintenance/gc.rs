//! The garbage collection, over all consumers that the database knows.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::quotas::count_letters;
use oncely_config::Config;
use oncely_core::decide::KeyStatus;
use oncely_failpoint::step;
use oncely_postgres::{
    self as pg, CollectionReport, ConsumerCollection, ObservedClock, RetentionRule, Session, Unit,
};

/// Computes the time before which rows of this retention may be deleted; the epoch of Unix if it is out of range.
fn compute_cutoff(now: DateTime<Utc>, retention: Duration) -> DateTime<Utc> {
    chrono::Duration::from_std(retention)
        .ok()
        .and_then(|age| now.checked_sub_signed(age))
        .unwrap_or(DateTime::UNIX_EPOCH)
}

/// Percentage of time that the collection works. It deletes ten times as fast as messages can arrive, and without pauses would occupy a
/// core that other sessions need.
#[derive(Clone, Copy, Debug)]
struct DutyCycle(u32);

/// Maximum pause: bounded, so that a stop is noticed soon.
const MAX_PAUSE: Duration = Duration::from_secs(1);

impl DutyCycle {
    /// Returns the pause after work of this duration, a second at most.
    fn pause_after(self, worked: Duration) -> Duration {
        let load = self.0.clamp(1, 100);
        (worked * (100 - load) / load).min(MAX_PAUSE)
    }
}

/// The result of a collection.
pub enum CollectionOutcome {
    /// Another collection is running.
    Busy,
    /// The database's clock is not plausible: nothing was deleted.
    Refused(ObservedClock),
    Done(CollectionReport),
}

/// Deletes all keys past their consumer's retention, in bounded transactions, until `stop` returns true. The retention is read from the
/// database: this process's configuration may differ from the workers'. Keys of consumers unknown to the database are kept; keys of
/// `oncely.claim` carry their own expiry. A step that fails is in the report, and the others go on.
///
/// # Errors
/// If PostgreSQL is away.
pub async fn collect(
    config: &Config,
    session: &mut Session,
    stop: impl Fn() -> bool,
) -> Result<CollectionOutcome, sqlx::Error> {
    step("gc.lock.before");
    if !pg::try_collection_lock(&mut session.connection).await? {
        return Ok(CollectionOutcome::Busy);
    }
    step("gc.lock.after");
    let clock =
        pg::wait_for_answer(config.postgres.client_timeout(), pg::observe_clock(&mut session.connection))
            .await?;
    if !clock.explained {
        pg::release_collection_lock(&mut session.connection).await?;
        return Ok(CollectionOutcome::Refused(clock));
    }
    // The time of that reading and no later one: younger keys are protected by the policies on the keys.
    let now = clock.at;
    let query = pg::list_retention_rules(&mut session.connection, now);
    let rules = pg::wait_for_answer(config.postgres.client_timeout(), query).await?;
    let units = pg::list_units(&mut session.connection);
    let units = pg::wait_for_answer(config.postgres.client_timeout(), units).await?;
    let mut report = CollectionReport::default();
    for rule in rules {
        let mut deleted = [0; 3];
        for (count, status) in
            deleted.iter_mut().zip([KeyStatus::Completed, KeyStatus::Failed, KeyStatus::InProgress])
        {
            let result =
                delete_keys(config, session, &units, CollectedKeys::OfConsumer(&rule, status), &stop, count)
                    .await;
            record_failure(&mut report, &rule.consumer, result)?;
        }
        add_deleted(&mut report, rule, deleted);
    }
    let mut expired = 0;
    let result = delete_keys(config, session, &units, CollectedKeys::Expired(now), &stop, &mut expired).await;
    record_failure(&mut report, "keys of oncely.claim", result)?;
    report.expired = expired;
    if !stop() {
        let result = collect_letters(config, session, &units, &stop).await;
        record_failure(&mut report, "dead letters", result)?;
        let result = collect_ordering_keys(config, session, &units, &stop).await;
        record_failure(&mut report, "ordering keys", result)?;
        let deletion = pg::forget_secrets(&mut session.connection);
        let result = pg::wait_for_answer(config.postgres.client_timeout(), deletion).await;
        record_failure(&mut report, "secrets", result)?;
        count_letters(config, session).await?;
    }
    pg::release_collection_lock(&mut session.connection).await?;
    Ok(CollectionOutcome::Done(report))
}

/// Records the failure of a step in the report, so that the other steps go on. An outage is returned instead.
fn record_failure<T>(
    report: &mut CollectionReport,
    step: &str,
    result: Result<T, sqlx::Error>,
) -> Result<(), sqlx::Error> {
    match result {
        Err(error) if !pg::is_outage(&error) => {
            report.failures.push(format!("cannot collect {step}: {}", pg::describe(&error)));
            Ok(())
        }
        result => result.map(drop),
    }
}

/// Keys of one walk.
#[derive(Clone, Copy)]
enum CollectedKeys<'a> {
    /// Keys of a consumer in this state.
    OfConsumer(&'a RetentionRule, KeyStatus),
    /// Keys with their own expiry, which is before this time.
    Expired(DateTime<Utc>),
}

/// Deletes keys in bounded transactions until none is left or `stop` returns true, and adds their number to `deleted`.
async fn delete_keys(
    config: &Config,
    session: &mut Session,
    units: &[Unit],
    keys: CollectedKeys<'_>,
    stop: &impl Fn() -> bool,
    deleted: &mut u64,
) -> Result<(), sqlx::Error> {
    let limit = i64::from(config.gc.batch);
    let duty_cycle = DutyCycle(config.gc.load);
    for unit in units {
        let mut walk = CollectionWalk { from: None, limit };
        while !stop() {
            let began = Instant::now();
            step("gc.delete.before");
            let connection = &mut session.connection;
            let batch = async {
                match keys {
                    CollectedKeys::OfConsumer(rule, status) => {
                        pg::collect_batch(connection, unit, status, rule, walk.limit, walk.from).await
                    }
                    CollectedKeys::Expired(now) => {
                        pg::collect_expired(connection, unit, now, walk.limit, walk.from).await
                    }
                }
            };
            let collected_batch = pg::wait_for_answer(config.postgres.client_timeout(), batch).await?;
            step("gc.delete.after");
            *deleted += collected_batch.deleted;
            if !walk.advance(&collected_batch, limit) {
                break;
            }
            tokio::time::sleep(duty_cycle.pause_after(began.elapsed())).await;
        }
    }
    Ok(())
}

/// The position of a walk over keys, oldest first. It passes keys that are not deleted.
struct CollectionWalk {
    from: Option<DateTime<Utc>>,
    limit: i64,
}

impl CollectionWalk {
    /// Advances past a batch; returns whether another one follows. A batch begins at the time at which the previous one ended, so if all
    /// its keys have that time and none was deleted, the next batch is twice as large.
    fn advance(&mut self, batch: &pg::CollectedBatch, limit: i64) -> bool {
        if i64::try_from(batch.found).is_ok_and(|found| found < self.limit) {
            return false;
        }
        let is_stuck = batch.deleted == 0 && batch.last == self.from;
        self.limit = if is_stuck { self.limit.saturating_mul(2) } else { limit };
        self.from = batch.last;
        true
    }
}

/// Adds the deletions of one retention to the report of its consumer.
fn add_deleted(report: &mut CollectionReport, rule: RetentionRule, deleted: [u64; 3]) {
    let RetentionRule { consumer, before, is_own, .. } = rule;
    match report.consumers.last_mut().filter(|last| is_own && last.consumer == consumer) {
        Some(last) => last.deleted.iter_mut().zip(deleted).for_each(|(count, more)| *count += more),
        None => report.consumers.push(ConsumerCollection { consumer, before, deleted }),
    }
}

/// Deletes dead letters that were requeued or discarded longer ago than the audit retention, in bounded transactions.
async fn collect_letters(
    config: &Config,
    session: &mut Session,
    units: &[Unit],
    stop: &impl Fn() -> bool,
) -> Result<(), sqlx::Error> {
    let before = compute_cutoff(session.clock.now(), config.audit.retention);
    let mut deleted = 0;
    for unit in units {
        loop {
            let batch =
                pg::collect_letters(&mut session.connection, unit, before, i64::from(config.gc.batch));
            let batch_deleted = pg::wait_for_answer(config.postgres.client_timeout(), batch).await?;
            deleted += batch_deleted;
            if batch_deleted < u64::from(config.gc.batch) || stop() {
                break;
            }
        }
    }
    if deleted > 0 {
        tracing::info!(letters = deleted, "collected dead letters that were requeued or discarded");
    }
    Ok(())
}

/// An ordering key unused for this long and without an event left is deleted, and its next event creates it again.
const ORDERING_KEY_LIFETIME: Duration = Duration::from_secs(86_400);

/// Deletes idle ordering keys, in bounded transactions.
async fn collect_ordering_keys(
    config: &Config,
    session: &mut Session,
    units: &[Unit],
    stop: &impl Fn() -> bool,
) -> Result<(), sqlx::Error> {
    let before = compute_cutoff(session.clock.now(), ORDERING_KEY_LIFETIME);
    let mut deleted = 0;
    for unit in units {
        let mut next = Some((String::new(), String::new()));
        while let Some(after) = next.take_if(|_| !stop()) {
            let limit = i64::from(config.gc.batch);
            let batch = pg::collect_ordering_keys(&mut session.connection, unit, before, after, limit);
            let (last, batch_deleted) = pg::wait_for_answer(config.postgres.client_timeout(), batch).await?;
            deleted += batch_deleted;
            next = last;
        }
    }
    if deleted > 0 {
        tracing::info!(keys = deleted, "collected idle ordering keys");
    }
    Ok(())
}

/// Counts the keys that a collection would delete now. Changes nothing.
///
/// # Errors
/// If a query fails.
pub async fn plan_collection(session: &mut Session) -> Result<CollectionReport, sqlx::Error> {
    let now = session.clock.now();
    let mut report = CollectionReport::default();
    for rule in pg::list_retention_rules(&mut session.connection, now).await? {
        let deleted = pg::count_expired(&mut session.connection, &rule).await?;
        add_deleted(&mut report, rule, deleted);
    }
    report.expired = pg::count_self_expired(&mut session.connection, now).await?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_passes_by_keys_that_stay_however_many_there_are_of_one_time() {
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        let batch = |found, deleted, last| pg::CollectedBatch { found, deleted, last };
        let mut walk = CollectionWalk { from: None, limit: 10 };
        assert!(walk.advance(&batch(10, 0, at(1)), 10) && walk.limit == 10);
        assert!(walk.advance(&batch(10, 0, at(1)), 10) && walk.limit == 20);
        assert!(walk.advance(&batch(20, 0, at(1)), 10) && walk.limit == 40);
        assert!(walk.advance(&batch(40, 0, at(2)), 10) && walk.limit == 10);
        assert_eq!(walk.from, at(2));
        assert!(walk.advance(&batch(10, 10, at(2)), 10) && walk.limit == 10);
        assert!(!walk.advance(&batch(9, 9, at(3)), 10));
    }

    #[test]
    fn a_fifth_of_the_time_means_pauses_four_times_as_long() {
        let worked = Duration::from_millis(15);
        assert_eq!(DutyCycle(20).pause_after(worked), Duration::from_millis(60));
        assert_eq!(DutyCycle(100).pause_after(worked), Duration::ZERO);
        assert_eq!(DutyCycle(1).pause_after(worked), MAX_PAUSE);
    }
}
