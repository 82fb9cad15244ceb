//! Writes the records of decisions beside the effects, in their transaction.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use super::batch_run::BatchRun;
use super::letters::{GivenUpDelivery, keep_letters};
use super::replies::write_replies;
use crate::worker::candidate::{Candidate, MAX_KEPT_BYTES, PartialIdentity, text_or_empty};
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::ConsumerContext;
use oncely_core::encryption::Place;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::message::RawMessage;
use oncely_core::outcome::Outcome;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, AuditRecord, KeyFailure, Refusal};

/// Converts an outcome to the failed run that is recorded with the key; `None` if no run failed.
pub(crate) fn to_key_failure<'a>(
    candidate: &'a Candidate,
    outcome: &Outcome,
    now: DateTime<Utc>,
) -> Option<KeyFailure<'a>> {
    let (attempt, reason, error, delay, code) = match outcome {
        Outcome::Retried { attempt, delay, detail, code } => {
            (*attempt, None, detail.clone(), Some(*delay), code.clone())
        }
        // Its claim is given back.
        Outcome::Undecided { attempts, fault } => (*attempts, None, fault.to_string(), None, None),
        // Attempt 0 did not run: the row, if any, is another message's.
        Outcome::DeadLettered { attempt, rejection, code, .. } if *attempt > 0 => {
            (*attempt, Some(rejection.reason), rejection.detail.clone(), None, code.clone())
        }
        _ => return None,
    };
    Some(KeyFailure {
        identity: &candidate.identity,
        fingerprint: candidate.fingerprint,
        attempt,
        reason,
        not_before: delay.map(|delay| now + delay),
        error,
        code,
    })
}

/// Converts an outcome to the handler's refusal that is recorded with the key; `None` for any other outcome.
pub(crate) fn to_refusal<'a>(candidate: &'a Candidate, outcome: &'a Outcome) -> Option<Refusal<'a>> {
    let Outcome::Refused { attempt, reason } = outcome else { return None };
    Some(Refusal {
        identity: &candidate.identity,
        fingerprint: candidate.fingerprint,
        attempt: *attempt,
        reason,
    })
}

/// Writes all that must commit with the effects, except the decisions that `is_recorded` marks. The number of rows of each write is
/// checked: that also detects a transaction that has already ended. Dead letters get their names in `outcomes`.
pub(crate) async fn write_records(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    outcomes: &mut [Outcome],
    is_recorded: &[bool],
) -> Result<(), Interrupt> {
    let BatchRun { shared, candidates, now, .. } = *run;
    let consumer = &shared.consumer;
    let decisions: Vec<(&Candidate, &Outcome)> = candidates
        .iter()
        .copied()
        .zip(&*outcomes)
        .zip(is_recorded)
        .filter_map(|(decision, is_recorded)| (!is_recorded).then_some(decision))
        .collect();
    let pairs = || decisions.iter().copied();
    let failures: Vec<KeyFailure<'_>> =
        pairs().filter_map(|(candidate, outcome)| to_key_failure(candidate, outcome, now)).collect();
    if !failures.is_empty() {
        step("worker.fail.before");
        let written = pg::record_failures(transaction, &consumer.name, now, true, &failures).await;
        check_rows("failures", written, failures.len())?;
        step("worker.fail.after");
    }
    let refusals: Vec<Refusal<'_>> =
        pairs().filter_map(|(candidate, outcome)| to_refusal(candidate, outcome)).collect();
    if !refusals.is_empty() {
        step("worker.refusal.before");
        let written = pg::record_refusals(transaction, &consumer.name, now, true, &refusals).await;
        check_rows("refusals", written, refusals.len())?;
        step("worker.refusal.after");
    }
    store_responses(shared, transaction, pairs()).await?;
    let records = build_audit_records(shared, run.elapsed_us(), pairs());
    if !records.is_empty() {
        step("worker.audit.before");
        let written = pg::append_audit(transaction, &consumer.name, &shared.worker, now, &records).await;
        check_rows("audit rows", written, records.len())?;
        step("worker.audit.after");
    }
    if shared.precheck.is_some() {
        let completed: Vec<&Candidate> = pairs()
            .filter(|(_, outcome)| outcome.has_completed_key())
            .map(|(candidate, _)| candidate)
            .collect();
        if let Some(first) = completed.first() {
            let tags = build_mirror_tags(run, completed.iter().copied());
            let expires_at = now + consumer.retention;
            let tenant = first.identity.tenant.as_str();
            step("worker.mirror_queue.before");
            let written =
                pg::append_mirror(transaction, tenant, consumer.name.as_str(), &tags, now, expires_at).await;
            check_rows("mirror records", written, tags.len().div_ceil(pg::MAX_RECORD_TAG_BYTES))?;
            step("worker.mirror_queue.after");
        }
    }
    write_replies(shared, transaction, now, Interrupt::from_record, pairs()).await?;
    let given_up =
        candidates.iter().zip(outcomes).zip(is_recorded).filter_map(|((candidate, outcome), is_recorded)| {
            (!is_recorded).then(|| GivenUpDelivery::new(candidate, outcome))
        });
    keep_letters(shared, transaction, now, Interrupt::from_record, given_up.collect()).await
}

/// Stores the responses of the completed messages, encrypted if that is configured; messages without one are skipped. Fails if a response
/// can't be encrypted, or its row is missing.
async fn store_responses<'a>(
    shared: &ConsumerContext,
    transaction: &mut PgConnection,
    decisions: impl Iterator<Item = (&'a Candidate, &'a Outcome)>,
) -> Result<(), Interrupt> {
    let sealer = shared.sealer();
    let mut responses: Vec<(&Identity, Cow<'_, str>)> = Vec::new();
    for (candidate, outcome) in decisions {
        let Outcome::Completed { response: Some(response), .. } = outcome else { continue };
        let stored = match sealer.seal_text(&Place::response(&candidate.identity), response) {
            Ok(Some(sealed)) => Cow::Owned(sealed),
            Ok(None) => Cow::Borrowed(response.as_str()),
            // Never stored unencrypted: the message is tried again.
            Err(error) => {
                let text = format!("the response can't be encrypted: {error}");
                return Err(Interrupt::NotNow(Fault::new(FaultClass::Environment, None, text)));
            }
        };
        responses.push((&candidate.identity, stored));
    }
    if responses.is_empty() {
        return Ok(());
    }
    let responses: Vec<(&Identity, &str)> =
        responses.iter().map(|(identity, response)| (*identity, response.as_ref())).collect();
    step("worker.responses.before");
    let written = pg::store_responses(transaction, &shared.consumer.name, &responses).await;
    check_rows("responses", written, responses.len())?;
    if responses.iter().map(|(_, response)| response.len()).sum::<usize>() > MAX_KEPT_BYTES {
        transaction.shrink_buffers();
    }
    step("worker.responses.after");
    Ok(())
}

/// Builds the messages' tags for the mirror, one after another.
pub(crate) fn build_mirror_tags<'a>(
    run: &BatchRun<'_>,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> Vec<u8> {
    let keys = run.shared.keys.current();
    let tag = |one: &Candidate| keys.tags.tag(&run.epoch, &one.identity, one.fingerprint.as_ref()).0;
    candidates.flat_map(tag).collect()
}

/// Checks that a write succeeded and changed the expected number of rows.
fn check_rows(name: &str, written: Result<u64, sqlx::Error>, expected: usize) -> Result<(), Interrupt> {
    let written = written.map_err(Interrupt::from_record)?;
    if usize::try_from(written) == Ok(expected) {
        return Ok(());
    }
    let text = format!("{written} {name} were written instead of {expected}");
    Err(Interrupt::Failed(Fault::new(FaultClass::Transient, None, text)))
}

/// Builds one row per decision, with this duration in microseconds; duplicates only if they are listed.
pub(crate) fn build_audit_records<'a>(
    shared: &ConsumerContext,
    duration: i64,
    decisions: impl Iterator<Item = (&'a Candidate, &'a Outcome)>,
) -> Vec<AuditRecord<'a>> {
    decisions
        .filter(|(_, outcome)| match outcome {
            Outcome::Duplicate(_) => shared.list_duplicates,
            // Not decided yet.
            Outcome::Postponed { .. } | Outcome::Undecided { .. } => false,
            _ => true,
        })
        .map(|(candidate, outcome)| {
            let mut record = build_audit_record(candidate, outcome);
            record.duration_us = (record.attempt > 0).then_some(duration);
            record
        })
        .collect()
}

/// Builds the audit row of one decision.
pub(crate) fn build_audit_record<'a>(candidate: &'a Candidate, outcome: &'a Outcome) -> AuditRecord<'a> {
    let Identity { tenant, key, .. } = &candidate.identity;
    build_audit_row(&candidate.delivery.message, tenant.as_str(), key.as_str(), outcome)
}

/// Builds the audit row of a decision about a message with a possibly unknown identity.
pub(crate) fn build_rejection_record<'a>(
    message: &'a RawMessage,
    identity: &'a PartialIdentity,
    outcome: &'a Outcome,
) -> AuditRecord<'a> {
    build_audit_row(
        message,
        text_or_empty(identity.tenant.as_ref()),
        text_or_empty(identity.key.as_ref()),
        outcome,
    )
}

/// Builds the row of the trail for an outcome.
fn build_audit_row<'a>(
    message: &'a RawMessage,
    tenant: &'a str,
    key: &'a str,
    outcome: &'a Outcome,
) -> AuditRecord<'a> {
    let mut record = AuditRecord {
        tenant,
        key,
        queue: &message.queue,
        outcome: outcome.as_str(),
        trace_id: message.trace_id(),
        ..AuditRecord::default()
    };
    match outcome {
        Outcome::Completed { attempt, .. } => record.attempt = *attempt,
        Outcome::Refused { attempt, reason } => {
            record.attempt = *attempt;
            record.detail = Some(reason);
        }
        Outcome::Duplicate(source) => record.reason = Some(source.as_str()),
        Outcome::Postponed { .. } | Outcome::Undecided { .. } => {}
        Outcome::Retried { attempt, code, detail, .. } => {
            record.attempt = *attempt;
            record.error_code = code.as_deref();
            record.detail = Some(detail);
        }
        Outcome::DeadLettered { attempt, rejection, code, .. } => {
            record.attempt = *attempt;
            record.reason = Some(rejection.reason.as_str());
            record.error_code = code.as_deref();
            record.detail = Some(&rejection.detail);
        }
    }
    record
}
