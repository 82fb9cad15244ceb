//! Claims the right to run, for each candidate of a batch.

use std::time::Duration;

use chrono::TimeDelta;
use sqlx::PgConnection;

use super::batch_run::BatchRun;
use super::unconfirmed::UnconfirmedOutcomes;
use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::ExpectedKeys;
use oncely_core::decide::{
    EARLY_TOLERANCE, KeyDecision, KeyRecord, build_leased_rejection, decide_on_key, remaining_wait,
};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_core::reason::Rejection;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, FreshClaim};

/// Result of the claim for a candidate.
pub(crate) enum CandidateClaim {
    Run {
        attempt: u32,
        /// SQLSTATE of the failure that it was charged with before.
        failed_with: Option<String>,
    },
    Duplicate,
    Reject(Rejection),
    /// It came before its key may run again; it waits in this rung's queue.
    Early(Duration),
    /// Its failure is recorded already.
    Recorded(Outcome),
    /// A process crashed while it was at work, and it came as a new delivery: it runs as redelivered ones do.
    Suspect,
}

/// Claim of a new key.
const FIRST_CLAIM: CandidateClaim = CandidateClaim::Run { attempt: 1, failed_with: None };

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is left for later.
pub(crate) const MAX_CLAIM_ROUNDS: usize = 8;

/// Claims new keys, retakes those that failed before, and returns the known state of the rest.
pub(crate) async fn claim(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    unconfirmed: &mut UnconfirmedOutcomes,
) -> Result<Vec<CandidateClaim>, Interrupt> {
    if run.keys == ExpectedKeys::Fresh {
        return claim_fresh(run, transaction).await;
    }
    let BatchRun { shared, candidates, now, .. } = *run;
    let consumer = &shared.consumer;
    let mut claims: Vec<Option<CandidateClaim>> = candidates.iter().map(|_| None).collect();
    let mut open: Vec<usize> = (0..candidates.len()).collect();
    for _ in 0..MAX_CLAIM_ROUNDS {
        step("worker.claim.before");
        let winners = pg::claim(transaction, &consumer.name, now, &keys_of(candidates, &open))
            .await
            .map_err(Interrupt::from_statement)?;
        step("worker.claim.after");
        for winner in winners {
            claims[open[winner]] = Some(FIRST_CLAIM);
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
        let identities: Vec<&Identity> = open.iter().map(|&index| &candidates[index].identity).collect();
        step("worker.look_up.before");
        let records =
            pg::look_up(transaction, &consumer.name, &identities).await.map_err(Interrupt::from_statement)?;
        step("worker.look_up.after");
        let mut failed_before = Vec::new();
        for (&index, record) in open.iter().zip(records) {
            // Neither claimed nor found: collected in between, so it is claimed in the next round.
            let Some(record) = record else { continue };
            match decide_known(run, candidates[index], &record, unconfirmed)? {
                Some(claim) => claims[index] = Some(claim),
                None => failed_before.push((index, record.error_code)),
            }
        }
        for (index, claim) in retake(run, transaction, failed_before).await? {
            claims[index] = Some(claim);
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
    }
    claims.into_iter().collect::<Option<Vec<_>>>().ok_or_else(build_changing_key_interrupt)
}

/// Claims keys that are all expected to be new.
async fn claim_fresh(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
) -> Result<Vec<CandidateClaim>, Interrupt> {
    let BatchRun { shared, candidates, now, .. } = *run;
    let all: Vec<usize> = (0..candidates.len()).collect();
    let keys = keys_of(candidates, &all);
    step("worker.claim_fresh.before");
    let result = pg::claim_fresh(transaction, &shared.consumer.name, now, &keys).await;
    step("worker.claim_fresh.after");
    match result.map_err(Interrupt::from_statement)? {
        FreshClaim::Won => Ok(candidates.iter().map(|_| FIRST_CLAIM).collect()),
        FreshClaim::Taken => Err(Interrupt::Known),
    }
}

/// Retakes keys that failed before, each with the SQLSTATE of its failure; returns the claims of those that may run now.
async fn retake(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    mut failed_before: Vec<(usize, Option<String>)>,
) -> Result<Vec<(usize, CandidateClaim)>, Interrupt> {
    if failed_before.is_empty() {
        return Ok(Vec::new());
    }
    let BatchRun { shared, candidates, now, .. } = *run;
    let consumer = &shared.consumer;
    let indices: Vec<usize> = failed_before.iter().map(|(index, _)| *index).collect();
    step("worker.retake.before");
    // Without a retry queue, no message waits.
    let grace = if consumer.retry.delays.is_empty() { TimeDelta::weeks(5_000) } else { TimeDelta::zero() };
    let keys = keys_of(candidates, &indices);
    let retaken = pg::retake(transaction, &consumer.name, now, now + EARLY_TOLERANCE + grace, &keys).await;
    let retaken = retaken.map_err(Interrupt::from_statement)?;
    step("worker.retake.after");
    let claim = |(position, attempt): (usize, u32)| {
        let (index, failed_with) = &mut failed_before[position];
        (*index, CandidateClaim::Run { attempt, failed_with: failed_with.take() })
    };
    Ok(retaken.into_iter().map(claim).collect())
}

/// Returns the identities and fingerprints of the candidates at these positions; `None` for a candidate without a fingerprint.
fn keys_of<'a>(candidates: &[&'a Candidate], indices: &[usize]) -> Vec<(&'a Identity, Option<Fingerprint>)> {
    indices.iter().map(|&index| (&candidates[index].identity, candidates[index].fingerprint)).collect()
}

/// Decides about a candidate with a known key; `None` if the key failed before and is to be retaken.
fn decide_known(
    run: &BatchRun<'_>,
    candidate: &Candidate,
    record: &KeyRecord,
    unconfirmed: &mut UnconfirmedOutcomes,
) -> Result<Option<CandidateClaim>, Interrupt> {
    let (consumer, now) = (&run.shared.consumer, run.now);
    let rung = |wait| consumer.retry.rung_for(wait);
    Ok(Some(match decide_on_key(record, candidate.fingerprint.as_ref(), consumer.on_conflict) {
        KeyDecision::Duplicate => CandidateClaim::Duplicate,
        KeyDecision::Reject(rejection) => CandidateClaim::Reject(rejection),
        KeyDecision::Leased => match remaining_wait(record, now) {
            None => CandidateClaim::Reject(build_leased_rejection()),
            // Without a retry queue it waits here, as for a transaction that holds the key.
            Some(wait) => {
                CandidateClaim::Early(rung(wait).ok_or_else(|| Interrupt::Held(build_leased_key_fault()))?)
            }
        },
        KeyDecision::Retake => match unconfirmed.find_recorded(&candidate.identity, record) {
            Some(outcome) => CandidateClaim::Recorded(outcome),
            None => match remaining_wait(record, now).and_then(rung) {
                Some(rung) => CandidateClaim::Early(rung),
                // Messages known as redelivered have been classified already.
                None if record.crash_attempts > 0 && !candidate.delivery.message.redelivered => {
                    CandidateClaim::Suspect
                }
                None => return Ok(None),
            },
        },
    }))
}

/// Builds the fault of a key that a run under a lease holds.
pub(crate) fn build_leased_key_fault() -> Fault {
    Fault::new(FaultClass::Contention, None, "a run under a lease holds the key")
}

/// Builds the interrupt of a key that keeps appearing and disappearing.
pub(crate) fn build_changing_key_interrupt() -> Interrupt {
    Interrupt::Held(Fault::new(FaultClass::Contention, None, "a key changes faster than it can be claimed"))
}
