//! Transactions without a handler: a failure that ended its own transaction, audit rows, refusals, and the reading of keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::claim::{CLAIM_ROUNDS, held_by_lease, too_quick};
use super::deadline::in_time;
use super::letters::{GivenUpDelivery, keep_letters};
use super::record::{audit_records, failure, refusal, refusal_record};
use super::replies::write_replies;
use super::runner::TransactionRunner;
use super::verdict::failure_outcome;
use crate::worker::batch::prepare::ReadingStretch;
use crate::worker::candidate::{Candidate, DecidedDelivery};
use crate::worker::interrupt::{AbandonedBatch, Interrupt};
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::{KeyDecision, decide, leased, wait};
use oncely_core::fault::Fault;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, AuditRecord, Session};
use oncely_process::witnesses::Began;

/// Longest wait for a key when the failure of its message is recorded.
const KEYS_LOCK_WAIT: Duration = Duration::from_secs(1);

impl TransactionRunner {
    /// Records a failure that is the message's own. `began`: when its run began, for a refusal at COMMIT is an answer.
    pub(crate) async fn record_failed(
        &mut self,
        began: Began,
        one: &Candidate,
        fault: &Fault,
    ) -> Result<Outcome, AbandonedBatch> {
        let mut counted = None;
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, record_failure(&shared, session, one, fault, &mut counted)).await {
                Ok(outcome) => {
                    self.note_epoch();
                    if shared.progress.note(began, std::iter::once((&one.identity, &outcome))) {
                        self.arrivals.aside.resume(tokio::time::Instant::now());
                    }
                    return Ok(outcome);
                }
                // The key itself is held: the message is left for later, and its failure is not recorded.
                Err(Interrupt::Held(fault)) => {
                    self.session = None;
                    return Ok(Outcome::Undecided { attempts: 0, fault });
                }
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }

    /// Writes audit rows of decisions that needed no transaction.
    pub(crate) async fn write_audit(&mut self, records: &[AuditRecord<'_>]) -> Result<(), AbandonedBatch> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, audit_only(&shared, session, records)).await {
                Ok(()) => {
                    self.note_epoch();
                    return Ok(());
                }
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }

    /// Reads the signing keys and the tag key unless they were read after `since`. Repeats the query until PostgreSQL answers or the batch
    /// is abandoned.
    pub(crate) async fn refresh_keys(&mut self, since: Instant) -> Result<(), AbandonedBatch> {
        loop {
            let shared = Arc::clone(&self.shared);
            let connection = &mut self.session().await?.connection;
            let asked = async { shared.keys.refresh(since, connection).await.map_err(Interrupt::of_ours) };
            match in_time(&shared, asked).await {
                Ok(()) => {
                    self.backoff.reset();
                    // A stall for lack of keys is over.
                    shared.health.committed();
                    return Ok(());
                }
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }

    /// Records messages that are rejected before any transaction.
    pub(crate) async fn reject(&mut self, rejected: &mut [DecidedDelivery]) -> Result<(), AbandonedBatch> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, reject(&shared, session, rejected)).await {
                Ok(()) => return Ok(()),
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }
}

/// Records that a message failed, in a transaction of its own, after all of its work was rolled back. `counted`: its attempt, from the
/// first try on; a try with a lost reply may have recorded it.
async fn record_failure(
    shared: &ConsumerContext,
    session: &mut Session,
    candidate: &Candidate,
    fault: &Fault,
    counted: &mut Option<u32>,
) -> Result<Outcome, Interrupt> {
    let started = Instant::now();
    let now = session.clock.now();
    let consumer = &shared.consumer;
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::of_ours)?;
    pg::limit_lock_wait(&mut transaction, KEYS_LOCK_WAIT).await.map_err(Interrupt::of_ours)?;
    let mut outcome = match count_failure(shared, &mut transaction, candidate, fault, counted, now).await? {
        CountedFailure::Now(outcome) => outcome,
        CountedFailure::Before(outcome) => {
            transaction.commit().await.map_err(Interrupt::of_ours)?;
            return Ok(outcome);
        }
    };
    let took = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
    let records = audit_records(shared, took, std::iter::once((candidate, &outcome)));
    pg::append_audit(&mut transaction, &consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Interrupt::of_ours)?;
    write_replies(shared, &mut transaction, now, Interrupt::of_ours, std::iter::once((candidate, &outcome)))
        .await?;
    let given_up = vec![GivenUpDelivery::new(candidate, &mut outcome)];
    keep_letters(shared, &mut transaction, now, Interrupt::of_ours, given_up).await?;
    step("worker.record_failure.before");
    transaction.commit().await.map_err(Interrupt::of_ours)?;
    step("worker.record_failure.after");
    Ok(outcome)
}

/// A failure in its key's row.
enum CountedFailure {
    /// To be recorded in the audit trail.
    Now(Outcome),
    /// Ours, of a COMMIT with a lost reply, or that of a copy that failed at the same time: it is counted, with its audit row.
    Before(Outcome),
}

/// Writes a failure to its key's row, unless the key has changed since the rollback: another worker completed it, or it is another
/// payload's.
async fn count_failure(
    shared: &ConsumerContext,
    transaction: &mut PgConnection,
    candidate: &Candidate,
    fault: &Fault,
    counted: &mut Option<u32>,
    now: DateTime<Utc>,
) -> Result<CountedFailure, Interrupt> {
    let consumer = &shared.consumer;
    for _ in 0..CLAIM_ROUNDS {
        let known = pg::look_up(transaction, &consumer.name, &[&candidate.identity]).await;
        let record = known.map_err(Interrupt::of_ours)?.into_iter().flatten().next();
        let attempts = match &record {
            None => 0,
            Some(record) => match decide(record, candidate.fingerprint.as_ref(), consumer.on_conflict) {
                KeyDecision::Duplicate => {
                    pg::await_standby(transaction).await.map_err(Interrupt::of_ours)?;
                    return Ok(CountedFailure::Now(Outcome::Duplicate(DuplicateSource::Postgres)));
                }
                KeyDecision::Reject(rejection) => {
                    return Ok(CountedFailure::Now(Outcome::rejected(rejection)));
                }
                KeyDecision::Leased => {
                    return Ok(CountedFailure::Now(match wait(record, now) {
                        None => Outcome::rejected(leased()),
                        Some(wait) => match consumer.retry.rung_for(wait) {
                            Some(delay) => Outcome::Postponed { delay },
                            None => return Err(Interrupt::Held(held_by_lease())),
                        },
                    }));
                }
                KeyDecision::Retake => record.attempts,
            },
        };
        // Another copy ran and failed since our run was rolled back: this one came too early, and spends nothing.
        let rung = record
            .as_ref()
            .and_then(|record| wait(record, now))
            .and_then(|wait| consumer.retry.rung_for(wait));
        if let (None, Some(delay)) = (&counted, rung) {
            return Ok(CountedFailure::Now(Outcome::Postponed { delay }));
        }
        let mut attempt = *counted.get_or_insert(attempts.saturating_add(1));
        let mut failed_now = failure_outcome(shared, fault.clone(), attempt);
        if attempts >= attempt {
            if matches!(failed_now, Outcome::Retried { .. }) {
                return Ok(CountedFailure::Before(failed_now));
            }
            // A final verdict of ours would be in the row: this is the attempt of a copy, and ours comes after it.
            attempt = attempts.saturating_add(1);
            *counted = Some(attempt);
            failed_now = failure_outcome(shared, fault.clone(), attempt);
        }
        let written = match refusal(candidate, &failed_now) {
            Some(refusal) => pg::refuse(transaction, &consumer.name, now, false, &[refusal]).await,
            None => {
                let failure = failure(candidate, &failed_now, now);
                pg::fail(transaction, &consumer.name, now, false, failure.as_slice()).await
            }
        };
        // Nothing written: the row has changed since the look-up, so it is read again.
        if written.map_err(Interrupt::of_ours)? == 1 {
            return Ok(CountedFailure::Now(failed_now));
        }
    }
    Err(too_quick())
}

/// Writes audit rows in a transaction of their own, for decisions that needed no other.
pub(crate) async fn audit_only(
    shared: &ConsumerContext,
    session: &mut Session,
    records: &[AuditRecord<'_>],
) -> Result<(), Interrupt> {
    let now = session.clock.now();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::of_ours)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, records)
        .await
        .map_err(Interrupt::of_ours)?;
    transaction.commit().await.map_err(Interrupt::of_ours)
}

/// Writes audit rows and dead letters of messages that are rejected before any transaction.
pub(crate) async fn reject(
    shared: &ConsumerContext,
    session: &mut Session,
    rejected: &mut [DecidedDelivery],
) -> Result<(), Interrupt> {
    let now = session.clock.now();
    let records: Vec<AuditRecord<'_>> =
        rejected.iter().map(|one| refusal_record(&one.delivery.message, &one.known, &one.outcome)).collect();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::of_ours)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Interrupt::of_ours)?;
    let mut given_up = Vec::with_capacity(rejected.len());
    let mut read = ReadingStretch::default();
    for DecidedDelivery { delivery, known, outcome } in rejected {
        read.add(delivery.message.body.len()).await;
        let fingerprint = shared.consumer.fingerprint.fingerprint(&delivery.message.body);
        given_up.push(GivenUpDelivery { fingerprint, delivery, known: known.clone(), outcome });
    }
    keep_letters(shared, &mut transaction, now, Interrupt::of_ours, given_up).await?;
    step("worker.reject.before");
    transaction.commit().await.map_err(Interrupt::of_ours)?;
    step("worker.reject.after");
    Ok(())
}
