//! The garbage collection: over all consumers that the database knows.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::quotas::count;
use crate::config::Config;
use crate::decide::KeyStatus;
use crate::failpoint::step;
use crate::pg::{self, CollectionReport, ConsumerCollection, Memory, ObservedClock, Session};

/// The time before which what is kept for so long may go.
fn before(now: DateTime<Utc>, retention: Duration) -> DateTime<Utc> {
    chrono::Duration::from_std(retention)
        .ok()
        .and_then(|age| now.checked_sub_signed(age))
        .unwrap_or(DateTime::UNIX_EPOCH)
}

/// Percent of the time in which the collection works. It deletes ten times as fast as messages can come, and would take a core
/// from those who wait for theirs.
#[derive(Clone, Copy, Debug)]
struct Pace(u32);

/// So that a stop is noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Pace {
    fn pause_after(self, worked: Duration) -> Duration {
        let load = self.0.clamp(1, 100);
        (worked * (100 - load) / load).min(LONGEST_PAUSE)
    }
}

/// How a collection ended.
pub(crate) enum Ended {
    /// Another collection is at work.
    Busy,
    /// The database's clock is not believed: nothing was deleted.
    Refused(ObservedClock),
    Done(CollectionReport),
}

/// Deletes all keys past their consumer's retention, in bounded transactions, until `stop` says otherwise. How long that is stands in
/// the database: this process's configuration may be another than the workers'. Keys of consumers that the database does not know are
/// left alone; those of `oncely.claim` say it themselves.
pub(crate) async fn collect(
    config: &Config,
    session: &mut Session,
    stop: impl Fn() -> bool,
) -> Result<Ended, sqlx::Error> {
    step("gc.lock.before");
    if !pg::try_collection_lock(&mut session.connection).await? {
        return Ok(Ended::Busy);
    }
    step("gc.lock.after");
    let clock =
        pg::within(config.postgres.client_timeout(), pg::observe_clock(&mut session.connection)).await?;
    if !clock.explained {
        pg::collection_unlock(&mut session.connection).await?;
        return Ok(Ended::Refused(clock));
    }
    // Not a moment later: what is younger is protected (the policies on the keys).
    let now = clock.at;
    let asked = pg::memories(&mut session.connection, now);
    let memories = pg::within(config.postgres.client_timeout(), asked).await?;
    let limit = i64::from(config.gc.batch);
    let pace = Pace(config.gc.load);
    let mut report = CollectionReport::default();
    for memory in memories {
        let mut deleted = [0; 3];
        for (count, status) in
            deleted.iter_mut().zip([KeyStatus::Completed, KeyStatus::Failed, KeyStatus::InProgress])
        {
            let mut walk = Walk { from: None, limit };
            loop {
                let began = Instant::now();
                step("gc.delete.before");
                let batch =
                    pg::collect_batch(&mut session.connection, status, &memory, walk.limit, walk.from);
                let collected = pg::within(config.postgres.client_timeout(), batch).await?;
                step("gc.delete.after");
                *count += collected.deleted;
                if !walk.goes_on(&collected, limit) || stop() {
                    break;
                }
                tokio::time::sleep(pace.pause_after(began.elapsed())).await;
            }
        }
        add(&mut report, memory, deleted);
    }
    let mut from = None;
    while !stop() {
        let began = Instant::now();
        step("gc.delete.before");
        let batch = pg::collect_expired(&mut session.connection, now, limit, from);
        let collected = pg::within(config.postgres.client_timeout(), batch).await?;
        step("gc.delete.after");
        report.expired += collected.deleted;
        from = collected.last;
        if is_last(config, &collected) {
            break;
        }
        tokio::time::sleep(pace.pause_after(began.elapsed())).await;
    }
    if !stop() {
        collect_letters(config, session, &stop).await?;
        collect_ordering_keys(config, session, &stop).await?;
        pg::within(config.postgres.client_timeout(), pg::forget_secrets(&mut session.connection)).await?;
        count(config, session).await?;
    }
    pg::collection_unlock(&mut session.connection).await?;
    Ok(Ended::Done(report))
}

/// Where a walk over the keys of a consumer is, oldest first. It passes by those that stay.
struct Walk {
    from: Option<DateTime<Utc>>,
    limit: i64,
}

impl Walk {
    /// Goes on behind a batch; false where that was the last one. A batch begins at the time at which the one before ended, so where all
    /// that it saw are of that one time, and stay, the next one looks at twice as many.
    fn goes_on(&mut self, collected: &pg::Collected, limit: i64) -> bool {
        if i64::try_from(collected.found).is_ok_and(|found| found < self.limit) {
            return false;
        }
        let is_stuck = collected.deleted == 0 && collected.last == self.from;
        self.limit = if is_stuck { self.limit.saturating_mul(2) } else { limit };
        self.from = collected.last;
        true
    }
}

/// Adds what was deleted of a memory to its consumer's.
fn add(report: &mut CollectionReport, memory: Memory, deleted: [u64; 3]) {
    let Memory { consumer, before, is_own, .. } = memory;
    match report.consumers.last_mut().filter(|last| is_own && last.consumer == consumer) {
        Some(last) => last.deleted.iter_mut().zip(deleted).for_each(|(count, more)| *count += more),
        None => report.consumers.push(ConsumerCollection { consumer, before, deleted }),
    }
}

/// Is there nothing more to delete? What is found and not deleted is found again.
fn is_last(config: &Config, collected: &pg::Collected) -> bool {
    collected.found < u64::from(config.gc.batch) || collected.deleted == 0
}

/// Deletes dead letters that were requeued or discarded longer ago than the trail is kept, in bounded transactions.
async fn collect_letters(
    config: &Config,
    session: &mut Session,
    stop: &impl Fn() -> bool,
) -> Result<(), sqlx::Error> {
    let before = before(session.clock.now(), config.audit.retention);
    let mut gone = 0;
    loop {
        let batch = pg::collect_letters(&mut session.connection, before, i64::from(config.gc.batch));
        let now_gone = pg::within(config.postgres.client_timeout(), batch).await?;
        gone += now_gone;
        if now_gone < u64::from(config.gc.batch) || stop() {
            break;
        }
    }
    if gone > 0 {
        tracing::info!(letters = gone, "collected dead letters that were requeued or discarded");
    }
    Ok(())
}

/// An ordering key that was not used for so long and has no event left begins anew with its next event.
const IDLE: Duration = Duration::from_secs(86_400);

/// Deletes idle ordering keys, in bounded transactions.
async fn collect_ordering_keys(
    config: &Config,
    session: &mut Session,
    stop: &impl Fn() -> bool,
) -> Result<(), sqlx::Error> {
    let before = before(session.clock.now(), IDLE);
    let mut next = Some((String::new(), String::new()));
    let mut gone = 0;
    while let Some(after) = next.take_if(|_| !stop()) {
        let limit = i64::from(config.gc.batch);
        let batch = pg::collect_ordering_keys(&mut session.connection, before, after, limit);
        let (last, now_gone) = pg::within(config.postgres.client_timeout(), batch).await?;
        gone += now_gone;
        next = last;
    }
    if gone > 0 {
        tracing::info!(keys = gone, "collected idle ordering keys");
    }
    Ok(())
}

/// What a collection would delete. Changes nothing.
pub(crate) async fn plan(session: &mut Session) -> Result<CollectionReport, sqlx::Error> {
    let now = session.clock.now();
    let mut report = CollectionReport::default();
    for memory in pg::memories(&mut session.connection, now).await? {
        let deleted = pg::count_expired(&mut session.connection, &memory).await?;
        add(&mut report, memory, deleted);
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
        let seen = |found, deleted, last| pg::Collected { found, deleted, last };
        let mut walk = Walk { from: None, limit: 10 };
        assert!(walk.goes_on(&seen(10, 0, at(1)), 10) && walk.limit == 10);
        assert!(walk.goes_on(&seen(10, 0, at(1)), 10) && walk.limit == 20);
        assert!(walk.goes_on(&seen(20, 0, at(1)), 10) && walk.limit == 40);
        assert!(walk.goes_on(&seen(40, 0, at(2)), 10) && walk.limit == 10);
        assert_eq!(walk.from, at(2));
        assert!(walk.goes_on(&seen(10, 10, at(2)), 10) && walk.limit == 10);
        assert!(!walk.goes_on(&seen(9, 9, at(3)), 10));
    }

    #[test]
    fn a_fifth_of_the_time_means_pauses_four_times_as_long() {
        let worked = Duration::from_millis(15);
        assert_eq!(Pace(20).pause_after(worked), Duration::from_millis(60));
        assert_eq!(Pace(100).pause_after(worked), Duration::ZERO);
        assert_eq!(Pace(1).pause_after(worked), LONGEST_PAUSE);
    }
}
