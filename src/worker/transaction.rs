//! One transaction: claim, handle, complete, audit, outbox, COMMIT.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::prepare::Candidate;
use super::shared::Shared;
use crate::decide::{FailureDecision, KeyDecision, after_failure, decide};
use crate::fault::{Fault, FaultClass};
use crate::fingerprint::Fingerprint;
use crate::handler::{Context, EachFault, HandlerError, Incoming, Run, call_all, call_each};
use crate::identity::Identity;
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{self, AuditRecord, Failure, Outage, PgFault, Session, classify};
use crate::reason::Rejection;

/// How the handler is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// All messages at once: the first failure rolls all back.
    Together,
    /// Each message in a subtransaction of its own.
    Each,
}

/// Why a transaction did not commit (or is not known to have committed).
#[derive(Debug)]
pub(crate) enum Stop {
    /// The connection is gone. If it went while COMMIT was on its way, nobody knows whether it happened; the claim of the
    /// next try will tell.
    Outage(Outage),
    /// No message is to blame: wait and try again.
    NotNow(Fault),
    /// Some message failed, or all of them did.
    Failed(Fault),
    /// The handler left the connection in a state that nobody knows.
    Tainted(Fault),
}

impl Stop {
    /// From an error of a handler, or of what comes after it.
    fn of_handler(error: sqlx::Error) -> Self {
        match classify(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) => Self::of_fault(fault),
        }
    }

    fn of_fault(fault: Fault) -> Self {
        match fault.code.as_deref() {
            // The server ended the session because the handler dawdled (idle_in_transaction_session_timeout,
            // transaction_timeout): the handler's failure, and the connection is gone.
            Some("25P03" | "25P04") => Self::Tainted(fault),
            _ if fault.class == FaultClass::Environment => Self::NotNow(fault),
            _ => Self::Failed(fault),
        }
    }

    /// From an error of our own statements before any handler ran: never a message's fault.
    fn of_ours(error: sqlx::Error) -> Self {
        match classify(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) => Self::NotNow(fault),
        }
    }
}

/// What the claim says of a candidate.
enum Claim {
    Run { attempt: u32 },
    Duplicate,
    Refuse(Rejection),
}

/// Runs one transaction for `candidates` (with distinct identities). When it returns outcomes, they are committed.
pub(crate) async fn transact(
    shared: &Shared,
    session: &mut Session,
    pass: Pass,
    candidates: &[&Candidate],
) -> Result<Vec<Outcome>, Stop> {
    let started = Instant::now();
    let now = session.clock.now();
    let epoch = session.cell.epoch.clone();
    let mut transaction = session.connection.begin().await.map_err(Stop::of_ours)?;
    let claims = claim(shared, &mut transaction, now, candidates).await?;
    let running: Vec<(usize, u32)> = claims
        .iter()
        .enumerate()
        .filter_map(|(index, claim)| match claim {
            Claim::Run { attempt } => Some((index, *attempt)),
            _ => None,
        })
        .collect();
    let incoming: Vec<Incoming<'_>> = running
        .iter()
        .map(|&(index, attempt)| Incoming {
            identity: &candidates[index].identity,
            message: &candidates[index].delivery.message,
            attempt,
            is_json: candidates[index].is_json,
        })
        .collect();
    let results = if incoming.is_empty() {
        Vec::new()
    } else {
        handle(shared, &mut transaction, pass, &incoming).await?
    };

    let mut outcomes: Vec<Outcome> = claims
        .into_iter()
        .map(|claim| match claim {
            Claim::Run { attempt } => Outcome::Completed { attempt, response: None },
            Claim::Duplicate => Outcome::Duplicate(DuplicateSource::Postgres),
            Claim::Refuse(rejection) => Outcome::refused(rejection),
        })
        .collect();
    for (&(index, attempt), result) in running.iter().zip(results) {
        outcomes[index] = match result {
            Ok(response) => Outcome::Completed { attempt, response },
            Err(fault) => outcome_of(shared, fault, attempt)?,
        };
    }
    record(shared, &mut transaction, now, started, &epoch, candidates, &outcomes).await?;
    // From here on the reply may be lost while the commit happens: an error of the connection says nothing about it.
    transaction.commit().await.map_err(Stop::of_handler)?;
    Ok(outcomes)
}

/// Records that a message failed, in a transaction of its own, after everything that it did was rolled back.
pub(crate) async fn record_failure(
    shared: &Shared,
    session: &mut Session,
    candidate: &Candidate,
    fault: &Fault,
) -> Result<Outcome, Stop> {
    let started = Instant::now();
    let now = session.clock.now();
    let consumer = &shared.consumer;
    let mut transaction = session.connection.begin().await.map_err(Stop::of_ours)?;
    // Since the rollback anything may have happened to the key: another worker completed it, or it is another payload's.
    let mut outcome = None;
    for _ in 0..CLAIM_ROUNDS {
        let known = pg::look_up(&mut transaction, &consumer.name, &[&candidate.identity]).await;
        let record = known.map_err(Stop::of_ours)?.into_iter().flatten().next();
        let attempts = match &record {
            None => 0,
            Some(record) => match decide(record, candidate.fingerprint.as_ref(), consumer.on_conflict) {
                KeyDecision::Duplicate => {
                    outcome = Some(Outcome::Duplicate(DuplicateSource::Postgres));
                    break;
                }
                KeyDecision::Refuse(rejection) => {
                    outcome = Some(Outcome::refused(rejection));
                    break;
                }
                KeyDecision::Retake => record.attempts,
            },
        };
        let failed = outcome_of(shared, fault.clone(), attempts.saturating_add(1))?;
        let failure = failure(candidate, &failed);
        let written = pg::fail(&mut transaction, &consumer.name, now, false, failure.as_slice()).await;
        // Nothing written: the row has changed since the look-up, so it is looked at again.
        if written.map_err(Stop::of_ours)? == 1 {
            outcome = Some(failed);
            break;
        }
    }
    let outcome = outcome.ok_or_else(too_quick)?;
    let records = audit_records(shared, started, &[candidate], std::slice::from_ref(&outcome));
    pg::append_audit(&mut transaction, &consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Stop::of_ours)?;
    transaction.commit().await.map_err(Stop::of_ours)?;
    Ok(outcome)
}

/// Writes audit rows in a transaction of their own, for decisions that needed no other.
pub(crate) async fn audit_only(
    shared: &Shared,
    session: &mut Session,
    records: &[AuditRecord],
) -> Result<(), Stop> {
    let now = session.clock.now();
    let mut transaction = session.connection.begin().await.map_err(Stop::of_ours)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, records)
        .await
        .map_err(Stop::of_ours)?;
    transaction.commit().await.map_err(Stop::of_ours)
}

/// Rounds of claim and look-up before a key that is there and not there by turns is left for later.
const CLAIM_ROUNDS: usize = 8;

async fn claim(
    shared: &Shared,
    transaction: &mut PgConnection,
    now: DateTime<Utc>,
    candidates: &[&Candidate],
) -> Result<Vec<Claim>, Stop> {
    let consumer = &shared.consumer;
    let mut claims: Vec<Option<Claim>> = candidates.iter().map(|_| None).collect();
    let of = |indices: &[usize]| -> Vec<(&Identity, Option<Fingerprint>)> {
        indices.iter().map(|&index| (&candidates[index].identity, candidates[index].fingerprint)).collect()
    };
    let mut open: Vec<usize> = (0..candidates.len()).collect();
    for _ in 0..CLAIM_ROUNDS {
        for won in pg::claim(transaction, &consumer.name, now, &of(&open)).await.map_err(Stop::of_ours)? {
            claims[open[won]] = Some(Claim::Run { attempt: 1 });
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
        let identities: Vec<&Identity> = open.iter().map(|&index| &candidates[index].identity).collect();
        let records = pg::look_up(transaction, &consumer.name, &identities).await.map_err(Stop::of_ours)?;
        let mut failed_before = Vec::new();
        for (&index, record) in open.iter().zip(records) {
            // Neither claimed nor there: collected in between, so it is claimed in the next round.
            let Some(record) = record else { continue };
            match decide(&record, candidates[index].fingerprint.as_ref(), consumer.on_conflict) {
                KeyDecision::Duplicate => claims[index] = Some(Claim::Duplicate),
                KeyDecision::Refuse(rejection) => claims[index] = Some(Claim::Refuse(rejection)),
                KeyDecision::Retake => failed_before.push(index),
            }
        }
        if !failed_before.is_empty() {
            let retaken = pg::retake(transaction, &consumer.name, now, &of(&failed_before)).await;
            for (position, attempt) in retaken.map_err(Stop::of_ours)? {
                claims[failed_before[position]] = Some(Claim::Run { attempt });
            }
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
    }
    claims.into_iter().collect::<Option<Vec<_>>>().ok_or_else(too_quick)
}

fn too_quick() -> Stop {
    Stop::NotNow(Fault::new(FaultClass::Transient, None, "a key changes faster than it can be claimed"))
}

/// A handler's results, by message.
type Results = Vec<Result<Option<Value>, Fault>>;

async fn handle(
    shared: &Shared,
    transaction: &mut PgConnection,
    pass: Pass,
    incoming: &[Incoming<'_>],
) -> Result<Results, Stop> {
    let consumer = &shared.consumer.name;
    match (&shared.run, pass) {
        (Run::Sql(function), Pass::Together) => {
            let responses = call_all(transaction, function, consumer, incoming).await;
            Ok(responses.map_err(Stop::of_handler)?.into_iter().map(Ok).collect())
        }
        (Run::Sql(function), Pass::Each) => {
            let answers =
                call_each(transaction, function, consumer, incoming).await.map_err(Stop::of_handler)?;
            answers
                .into_iter()
                .map(|answer| match answer {
                    Ok(response) => Ok(Ok(response)),
                    Err(EachFault::Fault(fault)) => Ok(Err(fault)),
                    Err(EachFault::Outage(code)) => {
                        let what = "a server that the handler calls is away";
                        Err(Stop::NotNow(Fault::new(FaultClass::Environment, Some(code), what)))
                    }
                })
                .collect()
        }
        (run, Pass::Together) => {
            begin_guard(transaction).await?;
            let mut results = Results::with_capacity(incoming.len());
            match run {
                Run::RustBatch(handler) => {
                    let mut context = Context::new(transaction);
                    let called = caught(async { handler.handle_batch(&mut context, incoming).await }).await;
                    let responses = called?.map_err(stop_of)?;
                    if responses.len() != incoming.len() {
                        return Err(Stop::Failed(wrong_count(responses.len(), incoming.len())));
                    }
                    results.extend(responses.into_iter().map(Ok));
                }
                _ => {
                    for message in incoming {
                        let response = call_one(run, transaction, message).await?.map_err(stop_of)?;
                        results.push(Ok(response));
                    }
                }
            }
            end_guard(transaction).await?;
            Ok(results)
        }
        (run, Pass::Each) => {
            let mut results = Results::with_capacity(incoming.len());
            for message in incoming {
                begin_guard(transaction).await?;
                match call_one(run, transaction, message).await? {
                    Ok(response) => match end_guard(transaction).await {
                        Ok(()) => results.push(Ok(response)),
                        Err(Stop::Failed(fault)) => {
                            undo_to_guard(transaction, &fault).await?;
                            results.push(Err(fault));
                        }
                        Err(other) => return Err(other),
                    },
                    Err(error) => match stop_of(error) {
                        Stop::Failed(fault) => {
                            undo_to_guard(transaction, &fault).await?;
                            results.push(Err(fault));
                        }
                        other => return Err(other),
                    },
                }
            }
            Ok(results)
        }
    }
}

fn wrong_count(got: usize, wanted: usize) -> Fault {
    let text = format!("the batch handler returned {got} responses for {wanted} messages");
    Fault::new(FaultClass::Transient, None, text)
}

fn stop_of(error: HandlerError) -> Stop {
    match error.into_fault() {
        PgFault::Outage(outage) => Stop::Outage(outage),
        PgFault::Fault(fault) => Stop::of_fault(fault),
    }
}

/// Runs a handler, from its call on. A panic is the handler's failure; what it left on the connection nobody knows.
async fn caught<T>(called: impl Future<Output = T>) -> Result<T, Stop> {
    AssertUnwindSafe(called).catch_unwind().await.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a text".to_owned());
        Stop::Tainted(Fault::new(FaultClass::Transient, None, format!("the handler panicked: {text}")))
    })
}

async fn call_one(
    run: &Run,
    transaction: &mut PgConnection,
    message: &Incoming<'_>,
) -> Result<Result<Option<Value>, HandlerError>, Stop> {
    let mut context = Context::new(transaction);
    match run {
        Run::Rust(handler) => caught(async { handler.handle(&mut context, message).await }).await,
        Run::RustBatch(handler) => {
            let called = async { handler.handle_batch(&mut context, std::slice::from_ref(message)).await };
            let called = caught(called).await?;
            Ok(called.and_then(|mut responses| match (responses.pop(), responses.len()) {
                (Some(response), 0) => Ok(response),
                (_, more) => Err(HandlerError::transient(wrong_count(more, 1).message)),
            }))
        }
        Run::Sql(_) => Ok(Err(HandlerError::environment("a SQL function is not called this way"))),
    }
}

/// A savepoint round Rust handlers: releasing it fails where the handler ended the transaction, or swallowed an error
/// that aborted it. Without it, COMMIT of an aborted transaction reports success.
async fn begin_guard(transaction: &mut PgConnection) -> Result<(), Stop> {
    transaction.execute("savepoint oncely_handler").await.map(drop).map_err(Stop::of_ours)
}

async fn end_guard(transaction: &mut PgConnection) -> Result<(), Stop> {
    match transaction.execute("release savepoint oncely_handler").await {
        Ok(_) => Ok(()),
        Err(error) => match classify(error) {
            PgFault::Outage(outage) => Err(Stop::Outage(outage)),
            // in_failed_sql_transaction: the handler went on after an error of its own.
            PgFault::Fault(fault) if fault.code.as_deref() == Some("25P02") => {
                let text = "the handler ignored an error that aborted its transaction";
                Err(Stop::Failed(Fault::new(FaultClass::Transient, fault.code, text)))
            }
            PgFault::Fault(fault) => {
                let text = "the handler ended the transaction that it ran in";
                tracing::error!(code = fault.code, "{text}; its connection is closed");
                Err(Stop::Tainted(Fault::new(FaultClass::Transient, fault.code, text)))
            }
        },
    }
}

/// Takes back what a failed handler did. Where that can't be done the connection is given up, and the handler's failure
/// stays its failure: asking the same handler again and again would spend no attempt.
async fn undo_to_guard(transaction: &mut PgConnection, fault: &Fault) -> Result<(), Stop> {
    let undone = transaction.execute("rollback to savepoint oncely_handler").await;
    undone.map(drop).map_err(|error| {
        tracing::debug!(error = %error, "a handler's savepoint could not be restored");
        Stop::Tainted(fault.clone())
    })
}

fn outcome_of(shared: &Shared, fault: Fault, attempt: u32) -> Result<Outcome, Stop> {
    match after_failure(&fault, attempt, &shared.consumer.retry) {
        FailureDecision::Pause => Err(Stop::NotNow(fault)),
        FailureDecision::Retry(delay) => {
            Ok(Outcome::Retried { attempt, delay, detail: fault.to_string(), code: fault.code })
        }
        FailureDecision::GiveUp(rejection) => {
            Ok(Outcome::DeadLettered { attempt, rejection, code: fault.code })
        }
    }
}

fn failure<'a>(candidate: &'a Candidate, outcome: &Outcome) -> Option<Failure<'a>> {
    let (attempt, reason, error) = match outcome {
        Outcome::Retried { attempt, detail, .. } => (*attempt, None, detail.clone()),
        // Attempt 0 did not run: the row, if there is one, is another message's.
        Outcome::DeadLettered { attempt, rejection, .. } if *attempt > 0 => {
            (*attempt, Some(rejection.reason), rejection.detail.clone())
        }
        _ => return None,
    };
    Some(Failure {
        identity: &candidate.identity,
        fingerprint: candidate.fingerprint,
        attempt,
        reason,
        error,
    })
}

/// Everything that must commit with the effects, each write with its number of rows checked: this is also what notices a
/// transaction that is none any more.
async fn record(
    shared: &Shared,
    transaction: &mut PgConnection,
    now: DateTime<Utc>,
    started: Instant,
    epoch: &str,
    candidates: &[&Candidate],
    outcomes: &[Outcome],
) -> Result<(), Stop> {
    let consumer = &shared.consumer;
    let pairs = || candidates.iter().zip(outcomes);
    let failures: Vec<Failure<'_>> =
        pairs().filter_map(|(candidate, outcome)| failure(candidate, outcome)).collect();
    if !failures.is_empty() {
        let written = pg::fail(transaction, &consumer.name, now, true, &failures).await;
        expect_rows("failures", written, failures.len())?;
    }
    let responses: Vec<(&Identity, &Value)> = pairs()
        .filter_map(|(candidate, outcome)| match outcome {
            Outcome::Completed { response: Some(response), .. } => Some((&candidate.identity, response)),
            _ => None,
        })
        .collect();
    if !responses.is_empty() {
        let written = pg::store_responses(transaction, &consumer.name, &responses).await;
        expect_rows("responses", written, responses.len())?;
    }
    let records = audit_records(shared, started, candidates, outcomes);
    if !records.is_empty() {
        let written = pg::append_audit(transaction, &consumer.name, &shared.worker, now, &records).await;
        expect_rows("audit rows", written, records.len())?;
    }
    if shared.precheck.is_some() {
        let completed: Vec<&Candidate> = pairs()
            .filter(|(_, outcome)| matches!(outcome, Outcome::Completed { .. }))
            .map(|(candidate, _)| *candidate)
            .collect();
        if let Some(first) = completed.first() {
            let tags: Vec<u8> = completed
                .iter()
                .flat_map(|c| shared.tag_key.tag(epoch, &c.identity, c.fingerprint.as_ref()).0)
                .collect();
            let expires_at = now + consumer.retention;
            let tenant = first.identity.tenant.as_str();
            let written = pg::append_mirror(transaction, tenant, &tags, now, expires_at).await;
            expect_rows("outbox rows", written, 1)?;
        }
    }
    Ok(())
}

fn expect_rows(what: &str, written: Result<u64, sqlx::Error>, wanted: usize) -> Result<(), Stop> {
    let written = written.map_err(Stop::of_handler)?;
    if usize::try_from(written) == Ok(wanted) {
        return Ok(());
    }
    let text = format!("{written} {what} were written instead of {wanted}");
    Err(Stop::Failed(Fault::new(FaultClass::Transient, None, text)))
}

/// One row per decision; duplicates only where they are listed.
fn audit_records(
    shared: &Shared,
    started: Instant,
    candidates: &[&Candidate],
    outcomes: &[Outcome],
) -> Vec<AuditRecord> {
    let duration = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
    candidates
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| shared.list_duplicates || !matches!(outcome, Outcome::Duplicate(_)))
        .map(|(candidate, outcome)| {
            let mut record = audit_record(candidate, outcome);
            record.duration_us = (record.attempt > 0).then_some(duration);
            record
        })
        .collect()
}

/// The audit row of one decision.
pub(crate) fn audit_record(candidate: &Candidate, outcome: &Outcome) -> AuditRecord {
    let message = &candidate.delivery.message;
    let mut record = AuditRecord {
        tenant: candidate.identity.tenant.as_str().to_owned(),
        key: candidate.identity.key.as_str().to_owned(),
        queue: message.queue.clone(),
        outcome: outcome.as_str(),
        trace_id: message.trace_id().map(str::to_owned),
        ..AuditRecord::default()
    };
    match outcome {
        Outcome::Completed { attempt, .. } => record.attempt = *attempt,
        Outcome::Duplicate(source) => record.reason = Some(source.as_str().to_owned()),
        Outcome::Retried { attempt, code, detail, .. } => {
            record.attempt = *attempt;
            record.error_code.clone_from(code);
            record.detail = Some(detail.clone());
        }
        Outcome::DeadLettered { attempt, rejection, code } => {
            record.attempt = *attempt;
            record.reason = Some(rejection.reason.as_str().to_owned());
            record.error_code.clone_from(code);
            record.detail = Some(rejection.detail.clone());
        }
    }
    record
}
