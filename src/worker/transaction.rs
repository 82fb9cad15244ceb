//! One transaction: claim, handle, complete, audit, mirror queue, COMMIT.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use super::call::{Attempt, Pass, handle};
use super::claim::{CLAIM_ROUNDS, Claim, claim, too_quick};
use super::deadline::in_time;
use super::forecast::{Expect, SMALL};
use super::fresh::{handler_for, run_alone, run_fresh};
use super::letters::{GivenUp, keep_letters};
use super::prepare::{Candidate, Known};
use super::record::{audit_records, failure, record, refusal, refusal_record};
use super::replies::{check_responses, write_replies};
use super::shared::Shared;
use super::stop::Stop;
use super::unconfirmed::Unconfirmed;
use crate::amqp::Delivery;
use crate::blame::{Blame, Circumstances, blame};
use crate::decide::{FailureDecision, KeyDecision, after_failure, decide, wait};
use crate::failpoint::{step, step_with};
use crate::fault::Fault;
use crate::handler::Message;
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{self, AuditRecord, Backend, LockWait, Session};
use crate::reason::Reason;

/// Runs one transaction for `candidates` (with distinct identities). When it returns outcomes, they are committed.
pub(crate) async fn transact(
    shared: &Shared,
    session: &mut Session,
    attempt: Attempt,
    candidates: &[&Candidate],
    expect: Expect,
    unconfirmed: &mut Unconfirmed,
) -> Result<Vec<Outcome>, Stop> {
    let small = handler_for(shared, attempt, expect, candidates.len());
    if let Some(handler) = small
        && let Some(outcomes) = run_alone(shared, session, handler, candidates).await?
    {
        return Ok(outcomes);
    }
    if candidates.len() > SMALL {
        in_time(shared, async { session.keep_memory().await.map_err(Stop::of_ours) }).await?;
    }
    let started = Instant::now();
    let now = session.clock.now();
    let epoch = session.cell.epoch.clone();
    let backend = session.backend;
    step("worker.begin.before");
    let begun = in_time(shared, async {
        match small {
            // Claims, runs and records in one statement: it begins in the handler's search_path.
            Some(_) => session.connection.begin().await,
            None => pg::begin_to_claim(&mut session.connection, attempt.pass == Pass::Single).await,
        }
        .map_err(Stop::of_ours)
    });
    let mut transaction = begun.await?;
    step("worker.begin.after");
    let (place, times) = ((backend, epoch.as_str()), (started, now));
    let outcomes = match small {
        Some(handler) => run_fresh(shared, &mut transaction, place, times, handler, candidates).await?,
        None => {
            let how = (attempt, expect);
            run_step_by_step(shared, &mut transaction, place, times, how, candidates, unconfirmed).await?
        }
    };
    // What the handler deferred runs at COMMIT.
    in_time(shared, async {
        pg::enter_handler(&mut transaction, LockWait::Session).await.map_err(Stop::of_ours)
    })
    .await?;
    // From here on the reply may be lost while the commit happens: an error of the connection says nothing about it.
    unconfirmed.remember(candidates, &outcomes);
    step("worker.commit.before");
    pg::within(shared.postgres.patience(), transaction.commit()).await.map_err(Stop::of_handler)?;
    step("worker.commit.after");
    unconfirmed.clear();
    Ok(outcomes)
}

/// Everything but BEGIN and COMMIT: claim, handler, record.
async fn run_step_by_step(
    shared: &Shared,
    transaction: &mut PgConnection,
    (backend, epoch): (Backend, &str),
    (started, now): (Instant, DateTime<Utc>),
    (attempt, expect): (Attempt, Expect),
    candidates: &[&Candidate],
    unconfirmed: &mut Unconfirmed,
) -> Result<Vec<Outcome>, Stop> {
    let claims = in_time(shared, claim(shared, transaction, now, candidates, expect, unconfirmed)).await?;
    if attempt.is_within_a_statement(&shared.run) {
        let limit = match attempt.lock_wait() {
            LockWait::Session => shared.postgres.lock_timeout,
            LockWait::Moment => CONTENDED,
        };
        in_time(shared, async { limit_lock_wait(transaction, limit).await }).await?;
    }
    let running: Vec<(usize, u32)> = claims
        .iter()
        .enumerate()
        .filter_map(|(index, claim)| match claim {
            Claim::Run { attempt, .. } => Some((index, *attempt)),
            _ => None,
        })
        .collect();
    let incoming: Vec<Message<'_>> = running
        .iter()
        .map(|&(index, attempt)| Message {
            identity: &candidates[index].identity,
            raw: &candidates[index].delivery.message,
            attempt,
            is_json: candidates[index].is_json,
        })
        .collect();
    let results = if incoming.is_empty() {
        Vec::new()
    } else {
        step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
        let results = handle(shared, backend, transaction, attempt, &incoming).await?;
        check_responses(&shared.consumer, &results)?;
        step("worker.handle.after");
        results
    };

    let failed_with: Vec<Option<String>> = claims
        .iter()
        .filter_map(|claim| match claim {
            Claim::Run { failed_with, .. } => Some(failed_with.clone()),
            _ => None,
        })
        .collect();
    // What is recorded already is not recorded again.
    let open: Vec<usize> =
        (0..claims.len()).filter(|&index| !matches!(claims[index], Claim::Recorded(_))).collect();
    let mut outcomes: Vec<Outcome> = claims
        .into_iter()
        .map(|claim| match claim {
            Claim::Run { attempt, .. } => Outcome::Completed { attempt, response: None },
            Claim::Duplicate => Outcome::Duplicate(DuplicateSource::Postgres),
            Claim::Refuse(rejection) => Outcome::refused(rejection),
            Claim::Early(delay) => Outcome::Postponed { delay },
            Claim::Recorded(outcome) => outcome,
        })
        .collect();
    let witness = attempt.witness || results.iter().any(Result::is_ok);
    let mut poisoned = shared.progress.poisoned();
    for ((&(index, number), result), before) in running.iter().zip(results).zip(failed_with) {
        outcomes[index] = match result {
            Ok(response) => Outcome::Completed { attempt: number, response },
            Err(fault) => {
                let circumstances = Circumstances {
                    by_itself: attempt.pass == Pass::Single,
                    witness: witness
                        // While nothing succeeds it may be everybody's after all.
                        || before.is_some() && before == fault.code && !shared.progress.is_stalled()
                        || shared.progress.has_witness(&candidates[index].identity),
                    is_last: shared.consumer.retry.after(number).is_none(),
                    poisoned,
                };
                judged(shared, fault, number, circumstances)
            }
        };
        if outcomes[index].reason() == Some(Reason::Poison) {
            poisoned += 1;
        }
    }
    let recorded = async {
        if open.len() == candidates.len() {
            record(shared, transaction, now, started, epoch, candidates, &mut outcomes).await?;
        } else {
            let fresh: Vec<&Candidate> = open.iter().map(|&index| candidates[index]).collect();
            let mut decided: Vec<Outcome> = open.iter().map(|&index| outcomes[index].clone()).collect();
            record(shared, transaction, now, started, epoch, &fresh, &mut decided).await?;
            // Dead letters have got their names.
            for (&index, outcome) in open.iter().zip(decided) {
                outcomes[index] = outcome;
            }
        }
        // Where a standby may take over, what was found done must have reached it before it is acknowledged.
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Duplicate(_))) {
            pg::await_standby(transaction).await.map_err(Stop::of_ours)?;
        }
        Ok(())
    };
    in_time(shared, recorded).await?;
    Ok(outcomes)
}

/// Records that a message failed, in a transaction of its own, after everything that it did was rolled back. `counted`: which
/// attempt it is, from the first try on; a try whose reply was lost may have recorded it.
pub(crate) async fn record_failure(
    shared: &Shared,
    session: &mut Session,
    candidate: &Candidate,
    fault: &Fault,
    counted: &mut Option<u32>,
) -> Result<Outcome, Stop> {
    let started = Instant::now();
    let now = session.clock.now();
    let consumer = &shared.consumer;
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Stop::of_ours)?;
    limit_lock_wait(&mut transaction, KEYS_LOCK_WAIT).await?;
    // Since the rollback anything may have happened to the key: another worker completed it, or it is another payload's.
    let mut outcome = None;
    for _ in 0..CLAIM_ROUNDS {
        let known = pg::look_up(&mut transaction, &consumer.name, &[&candidate.identity]).await;
        let record = known.map_err(Stop::of_ours)?.into_iter().flatten().next();
        let attempts = match &record {
            None => 0,
            Some(record) => match decide(record, candidate.fingerprint.as_ref(), consumer.on_conflict) {
                KeyDecision::Duplicate => {
                    pg::await_standby(&mut transaction).await.map_err(Stop::of_ours)?;
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
        // Another copy ran and failed since our run was rolled back: this one came too early, as it turns out, and spends nothing.
        let rung = record
            .as_ref()
            .and_then(|record| wait(record, now))
            .and_then(|wait| consumer.retry.rung_for(wait));
        if let (None, Some(delay)) = (&counted, rung) {
            outcome = Some(Outcome::Postponed { delay });
            break;
        }
        let attempt = *counted.get_or_insert(attempts.saturating_add(1));
        let failed = outcome_of(shared, fault.clone(), attempt);
        if attempts >= attempt {
            // Ours, of a COMMIT whose reply was lost, or that of a copy which failed at the same time: it is counted, with its audit row.
            transaction.commit().await.map_err(Stop::of_ours)?;
            return Ok(failed);
        }
        let written = match refusal(candidate, &failed) {
            Some(refusal) => pg::refuse(&mut transaction, &consumer.name, now, false, &[refusal]).await,
            None => {
                let failure = failure(candidate, &failed, now);
                pg::fail(&mut transaction, &consumer.name, now, false, failure.as_slice()).await
            }
        };
        // Nothing written: the row has changed since the look-up, so it is looked at again.
        if written.map_err(Stop::of_ours)? == 1 {
            outcome = Some(failed);
            break;
        }
    }
    let mut outcome = outcome.ok_or_else(too_quick)?;
    let records = audit_records(shared, started, &[candidate], std::slice::from_ref(&outcome));
    pg::append_audit(&mut transaction, &consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Stop::of_ours)?;
    write_replies(shared, &mut transaction, now, Stop::of_ours, std::iter::once((candidate, &outcome)))
        .await?;
    let given_up = vec![GivenUp::of(candidate, &mut outcome)];
    keep_letters(shared, &mut transaction, now, Stop::of_ours, given_up).await?;
    step("worker.record_failure.before");
    transaction.commit().await.map_err(Stop::of_ours)?;
    step("worker.record_failure.after");
    Ok(outcome)
}

/// Writes audit rows in a transaction of their own, for decisions that needed no other.
pub(crate) async fn audit_only(
    shared: &Shared,
    session: &mut Session,
    records: &[AuditRecord<'_>],
) -> Result<(), Stop> {
    let now = session.clock.now();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Stop::of_ours)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, records)
        .await
        .map_err(Stop::of_ours)?;
    transaction.commit().await.map_err(Stop::of_ours)
}

/// Writes what is to be known of messages that are refused before any transaction: audit rows and dead letters.
pub(crate) async fn refuse(
    shared: &Shared,
    session: &mut Session,
    refused: &mut [(Box<Delivery>, Known, Outcome)],
) -> Result<(), Stop> {
    let now = session.clock.now();
    let records: Vec<AuditRecord<'_>> = refused
        .iter()
        .map(|(delivery, known, outcome)| refusal_record(&delivery.message, known, outcome))
        .collect();
    let mut transaction = pg::begin(&mut session.connection).await.map_err(Stop::of_ours)?;
    pg::append_audit(&mut transaction, &shared.consumer.name, &shared.worker, now, &records)
        .await
        .map_err(Stop::of_ours)?;
    let given_up = refused.iter_mut().map(|(delivery, known, outcome)| GivenUp {
        fingerprint: shared.consumer.fingerprint.of(&delivery.message.body),
        delivery,
        known: known.clone(),
        outcome,
    });
    keep_letters(shared, &mut transaction, now, Stop::of_ours, given_up.collect()).await?;
    step("worker.refuse.before");
    transaction.commit().await.map_err(Stop::of_ours)?;
    step("worker.refuse.after");
    Ok(())
}

/// A handler's longest wait for a lock in a batch that has met another transaction's.
const CONTENDED: Duration = Duration::from_millis(500);

/// Longest wait for the key of a message whose failure is recorded.
const KEYS_LOCK_WAIT: Duration = Duration::from_secs(1);

async fn limit_lock_wait(transaction: &mut PgConnection, limit: Duration) -> Result<(), Stop> {
    pg::limit_lock_wait(transaction, limit).await.map_err(Stop::of_ours)
}

/// What becomes of a message whose `attempt`-th run failed.
pub(super) fn judged(shared: &Shared, fault: Fault, attempt: u32, circumstances: Circumstances) -> Outcome {
    match blame(fault.class, circumstances) {
        Blame::Message(class) => outcome_of(shared, Fault { class, ..fault }, attempt),
        Blame::Company | Blame::Nobody => Outcome::Undecided { attempts: attempt.saturating_sub(1), fault },
    }
}

fn outcome_of(shared: &Shared, fault: Fault, attempt: u32) -> Outcome {
    match after_failure(&fault, attempt, &shared.consumer.retry) {
        FailureDecision::Retry(delay) => {
            Outcome::Retried { attempt, delay, detail: fault.to_string(), code: fault.code }
        }
        FailureDecision::Refuse(reason) => Outcome::Refused { attempt, reason },
        FailureDecision::GiveUp(rejection) => {
            Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None }
        }
    }
}
