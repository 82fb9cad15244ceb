//! Transactions without a handler: a failure that ended its own transaction, audit rows, refusals, and the reading of keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::claim::{MAX_CLAIM_ROUNDS, build_changing_key_interrupt, build_leased_key_fault};
use super::deadline::run_in_time;
use super::letters::{GivenUpDelivery, keep_letters};
use super::record::{build_audit_records, build_rejection_record, to_key_failure, to_refusal};
use super::replies::write_replies;
use super::runner::TransactionRunner;
use super::verdict::decide_failure;
use crate::worker::batch::prepare::ReadingStretch;
use crate::worker::candidate::{Candidate, DecidedDelivery};
use crate::worker::interrupt::{AbandonedBatch, Interrupt};
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::{KeyDecision, build_leased_rejection, decide_on_key, remaining_wait};
use oncely_core::fault::Fault;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, AuditRecord, Session};
use oncely_process::witnesses::Began;

/// Maximum wait for a key when the failure of its message is recorded.
const KEYS_LOCK_WAIT: Duration = Duration::from_secs(1);

impl TransactionRunner {
    /// Records a failure that is the message's own. `began`: when its run began, for a refusal at COMMIT is an answer.
    pub(crate) async fn record_failed(
        &mut self,
        began: Began,
        candidate: &Candidate,
        fault: &Fault,
    ) -> Result<Outcome, AbandonedBatch> {
        let mut attempt = None;
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.ensure_session().await?;
            match run_in_time(&shared, record_failure(&shared, session, candidate, fault, &mut attempt)).await
            {
                Ok(outcome) => {
                    self.record_epoch();
                    if shared
                        .progress
                        .record_outcomes(began, std::iter::once((&candidate.identity, &outcome)))
                    {
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
            let session = self.ensure_session().await?;
            match run_in_time(&shared, write_audit_rows(&shared, session, records)).await {
                Ok(()) => {
                    self.record_epoch();
                    return Ok(());
                }
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }

    /// Reads the signing keys and the tag key unless they were read after `since`. Retries the query until PostgreSQL answers or the batch
    /// is abandoned.
    pub(crate) async fn refresh_keys(&mut self, since: Instant) -> Result<(), AbandonedBatch> {
        loop {
            let shared = Arc::clone(&self.shared);
            let connection = &mut self.ensure_session().await?.connection;
            let statement =
                async { shared.keys.refresh(since, connection).await.map_err(Interrupt::from_statement) };
            match run_in_time(&shared, statement).await {
                Ok(()) => {
                    self.backoff.reset();
                    // A stall for lack of keys is over.
                    shared.health.record_statement_success();
                    return Ok(());
                }
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }

    /// Records messages that are rejected before any transaction.
    pub(crate) async fn record_rejected(
        &mut self,
        rejected: &mut [DecidedDelivery],
    ) -> Result<(), AbandonedBatch> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.ensure_session().await?;
            match run_in_time(&shared, record_rejected(&shared, session, rejected)).await {
                Ok(()) => return Ok(()),
                Err(interrupt) => self.wait_out(interrupt).await?,
            }
        }
    }
}

/// Records that a message failed, in a transaction of its own, after all of its work was rolled back. `attempt`: its attempt, from the
/// first try on; a try with a lost reply may have recorded it.
async fn record_failure(
    shared: &ConsumerContext,
    session: &mut Session,
    candidate: &Candidate,
    fault: &Fault,
    attempt: &mut Option<u32>,
) -> Result<Outcome, Interrupt> {
    let started = Instant::now();
    let now = session.clock.now();
    let consumer = &shared.consumer;
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::from_statement)?;
    pg::limit_lock_wait(&mut transaction, KEYS_LOCK_WAIT).await.map_err(Interrupt::from_statement)?;
    let mut outcome = match count_failure(shared, &mut transaction, candidate, fault, attempt, now).await? {
        CountedFailure::Now(outcome) => outcome,
        CountedFailure::Before(outcome) => {
            transaction.commit().await.map_err(Interrupt::from_statement)?;
            return Ok(outcome);
        }
    };
    let duration = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
    let records = build_audit_records(shared, duration, std::iter::once((candidate, &outcome)));
    pg::append_audit(&mut transaction, &consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Interrupt::from_statement)?;
    write_replies(
        shared,
        &mut transaction,
        now,
        Interrupt::from_statement,
        std::iter::once((candidate, &outcome)),
    )
    .await?;
    let given_up = vec![GivenUpDelivery::new(candidate, &mut outcome)];
    keep_letters(shared, &mut transaction, now, Interrupt::from_statement, given_up).await?;
    step("worker.record_failure.before");
    transaction.commit().await.map_err(Interrupt::from_statement)?;
    step("worker.record_failure.after");
    Ok(outcome)
}

/// A failure in its key's row.
enum CountedFailure {
    /// To be recorded in the audit trail.
    Now(Outcome),
    /// This run's, of a COMMIT with a lost reply, or that of a copy that failed at the same time: it is counted, with its audit row.
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
    for _ in 0..MAX_CLAIM_ROUNDS {
        let records = pg::look_up(transaction, &consumer.name, &[&candidate.identity]).await;
        let record = records.map_err(Interrupt::from_statement)?.into_iter().flatten().next();
        let attempts = match &record {
            None => 0,
            Some(record) => match decide_on_key(record, candidate.fingerprint.as_ref(), consumer.on_conflict)
            {
                KeyDecision::Duplicate => {
                    pg::wait_for_standby(transaction).await.map_err(Interrupt::from_statement)?;
                    return Ok(CountedFailure::Now(Outcome::Duplicate(DuplicateSource::Postgres)));
                }
                KeyDecision::Reject(rejection) => {
                    return Ok(CountedFailure::Now(Outcome::from_rejection(rejection)));
                }
                KeyDecision::Leased => {
                    return Ok(CountedFailure::Now(match remaining_wait(record, now) {
                        None => Outcome::from_rejection(build_leased_rejection()),
                        Some(wait) => match consumer.retry.rung_for(wait) {
                            Some(delay) => Outcome::Postponed { delay },
                            None => return Err(Interrupt::Held(build_leased_key_fault())),
                        },
                    }));
                }
                KeyDecision::Retake => record.attempts,
            },
        };
        // Another copy ran and failed since this run was rolled back: the message came too early, and spends nothing.
        let rung = record
            .as_ref()
            .and_then(|record| remaining_wait(record, now))
            .and_then(|wait| consumer.retry.rung_for(wait));
        if let (None, Some(delay)) = (&counted, rung) {
            return Ok(CountedFailure::Now(Outcome::Postponed { delay }));
        }
        let mut attempt = *counted.get_or_insert(attempts.saturating_add(1));
        let mut outcome = decide_failure(shared, fault.clone(), attempt);
        if attempts >= attempt {
            if matches!(outcome, Outcome::Retried { .. }) {
                return Ok(CountedFailure::Before(outcome));
            }
            // A final verdict of this run would be in the row: it has the attempt of a copy, and this run's comes after it.
            attempt = attempts.saturating_add(1);
            *counted = Some(attempt);
            outcome = decide_failure(shared, fault.clone(), attempt);
        }
        let written = match to_refusal(candidate, &outcome) {
            Some(refusal) => pg::record_refusals(transaction, &consumer.name, now, false, &[refusal]).await,
            None => {
                let failure = to_key_failure(candidate, &outcome, now);
                pg::record_failures(transaction, &consumer.name, now, false, failure.as_slice()).await
            }
        };
        // Nothing written: the row has changed since the look-up, so it is read again.
        if written.map_err(Interrupt::from_statement)? == 1 {
            return Ok(CountedFailure::Now(outcome));
        }
    }
    Err(build_changing_key_interrupt())
}

/// Writes audit rows in a transaction of their own, for decisions that needed no other.
pub(crate) async fn write_audit_rows(
    shared: &ConsumerContext,
    session: &mut Session,
    records: &[AuditRecord<'_>],
) -> Result<(), Interrupt> {
    let now = session.clock.now();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::from_statement)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, records)
        .await
        .map_err(Interrupt::from_statement)?;
    transaction.commit().await.map_err(Interrupt::from_statement)
}

/// Writes audit rows and dead letters of messages that are rejected before any transaction.
pub(crate) async fn record_rejected(
    shared: &ConsumerContext,
    session: &mut Session,
    rejected: &mut [DecidedDelivery],
) -> Result<(), Interrupt> {
    let now = session.clock.now();
    let records: Vec<AuditRecord<'_>> = rejected
        .iter()
        .map(|one| build_rejection_record(&one.delivery.message, &one.identity, &one.outcome))
        .collect();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Interrupt::from_statement)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Interrupt::from_statement)?;
    let mut given_up = Vec::with_capacity(rejected.len());
    let mut stretch = ReadingStretch::default();
    for DecidedDelivery { delivery, identity, outcome } in rejected {
        stretch.add(delivery.message.body.len()).await;
        let fingerprint = shared.consumer.fingerprint.fingerprint(&delivery.message.body);
        given_up.push(GivenUpDelivery { fingerprint, delivery, identity: identity.clone(), outcome });
    }
    keep_letters(shared, &mut transaction, now, Interrupt::from_statement, given_up).await?;
    step("worker.reject.before");
    transaction.commit().await.map_err(Interrupt::from_statement)?;
    step("worker.reject.after");
    Ok(())
}
