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
    for Memory { consumer, before } in memories {
        let name = consumer.as_str();
        let mut deleted = [0; 3];
        for (count, status) in
            deleted.iter_mut().zip([KeyStatus::Completed, KeyStatus::Failed, KeyStatus::InProgress])
        {
            let mut from = None;
            loop {
                let began = Instant::now();
                step("gc.delete.before");
                let batch = pg::collect_batch(&mut session.connection, status, name, before, limit, from);
                let collected = pg::within(config.postgres.client_timeout(), batch).await?;
                step("gc.delete.after");
                *count += collected.deleted;
                from = collected.last;
                if is_last(config, &collected) || stop() {
                    break;
                }
                tokio::time::sleep(pace.pause_after(began.elapsed())).await;
            }
        }
        report.consumers.push(ConsumerCollection { consumer, before, deleted });
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
    for Memory { consumer, before } in pg::memories(&mut session.connection, now).await? {
        let deleted = pg::count_expired(&mut session.connection, &consumer, before).await?;
        report.consumers.push(ConsumerCollection { consumer, before, deleted });
    }
    report.expired = pg::count_self_expired(&mut session.connection, now).await?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_time_means_pauses_four_times_as_long() {
        let worked = Duration::from_millis(15);
        assert_eq!(Pace(20).pause_after(worked), Duration::from_millis(60));
        assert_eq!(Pace(100).pause_after(worked), Duration::ZERO);
        assert_eq!(Pace(1).pause_after(worked), LONGEST_PAUSE);
    }
}
