//! The right to run, for each candidate of a batch.

use std::time::Duration;

use chrono::TimeDelta;
use sqlx::PgConnection;

use super::batch_run::BatchRun;
use super::unconfirmed::Unconfirmed;
use crate::decide::{EARLY, KeyDecision, decide, leased, wait};
use crate::failpoint::step;
use crate::fault::{Fault, FaultClass};
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::pg::{self, FreshClaim};
use crate::reason::Rejection;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::ExpectedKeys;

/// What the claim says of a candidate.
pub(crate) enum Claim {
    Run {
        attempt: u32,
        /// SQLSTATE of the failure that it answered for before.
        failed_with: Option<String>,
    },
    Duplicate,
    Reject(Rejection),
    /// It came before its key may run again; it waits in this rung's queue.
    Early(Duration),
    /// Its failure is recorded already.
    Recorded(Outcome),
    /// A process died while it was at work, and it came as if it were new: it runs as redelivered ones do.
    Suspect,
}

/// Of a key that nobody had.
const FIRST: Claim = Claim::Run { attempt: 1, failed_with: None };

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is left for later.
pub(crate) const CLAIM_ROUNDS: usize = 8;

/// Claims what nobody has, retakes what failed before, and says of the rest what is known.
pub(crate) async fn claim(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    unconfirmed: &mut Unconfirmed,
) -> Result<Vec<Claim>, Interrupt> {
    let BatchRun { shared, candidates, now, .. } = *run;
    let consumer = &shared.consumer;
    let mut claims: Vec<Option<Claim>> = candidates.iter().map(|_| None).collect();
    let of = |indices: &[usize]| -> Vec<(&Identity, Option<Fingerprint>)> {
        indices.iter().map(|&index| (&candidates[index].identity, candidates[index].fingerprint)).collect()
    };
    let mut open: Vec<usize> = (0..candidates.len()).collect();
    if run.keys == ExpectedKeys::Fresh {
        step("worker.claim_fresh.before");
        let claimed = pg::claim_fresh(transaction, &consumer.name, now, &of(&open)).await;
        step("worker.claim_fresh.after");
        return match claimed.map_err(Interrupt::of_ours)? {
            FreshClaim::Won => Ok(candidates.iter().map(|_| FIRST).collect()),
            FreshClaim::Taken => Err(Interrupt::Known),
        };
    }
    for _ in 0..CLAIM_ROUNDS {
        step("worker.claim.before");
        let won =
            pg::claim(transaction, &consumer.name, now, &of(&open)).await.map_err(Interrupt::of_ours)?;
        step("worker.claim.after");
        for won in won {
            claims[open[won]] = Some(FIRST);
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
        let identities: Vec<&Identity> = open.iter().map(|&index| &candidates[index].identity).collect();
        step("worker.look_up.before");
        let records =
            pg::look_up(transaction, &consumer.name, &identities).await.map_err(Interrupt::of_ours)?;
        step("worker.look_up.after");
        let (mut failed_before, mut failed_with) = (Vec::new(), Vec::new());
        for (&index, record) in open.iter().zip(records) {
            // Neither claimed nor there: collected in between, so it is claimed in the next round.
            let Some(record) = record else { continue };
            match decide(&record, candidates[index].fingerprint.as_ref(), consumer.on_conflict) {
                KeyDecision::Duplicate => claims[index] = Some(Claim::Duplicate),
                KeyDecision::Reject(rejection) => claims[index] = Some(Claim::Reject(rejection)),
                KeyDecision::Leased => {
                    claims[index] = Some(match wait(&record, now) {
                        None => Claim::Reject(leased()),
                        Some(wait) => match consumer.retry.rung_for(wait) {
                            Some(rung) => Claim::Early(rung),
                            // Without a queue to wait in it waits here, as for a transaction that holds the key.
                            None => return Err(Interrupt::Held(held_by_lease())),
                        },
                    });
                }
                KeyDecision::Retake => match unconfirmed.recorded(&candidates[index].identity, &record) {
                    Some(outcome) => claims[index] = Some(Claim::Recorded(outcome)),
                    None => match wait(&record, now).and_then(|wait| consumer.retry.rung_for(wait)) {
                        Some(rung) => claims[index] = Some(Claim::Early(rung)),
                        // What is known as redelivered has been told apart already.
                        None if record.crash_attempts > 0
                            && !candidates[index].delivery.message.redelivered =>
                        {
                            claims[index] = Some(Claim::Suspect);
                        }
                        None => {
                            failed_before.push(index);
                            failed_with.push(record.error_code);
                        }
                    },
                },
            }
        }
        if !failed_before.is_empty() {
            step("worker.retake.before");
            // Without a queue to wait in, nothing waits.
            let early =
                if consumer.retry.delays.is_empty() { TimeDelta::weeks(5_000) } else { TimeDelta::zero() };
            let due = now + EARLY + early;
            let retaken = pg::retake(transaction, &consumer.name, now, due, &of(&failed_before)).await;
            let retaken = retaken.map_err(Interrupt::of_ours)?;
            step("worker.retake.after");
            for (position, attempt) in retaken {
                let failed_with: Option<String> = failed_with[position].take();
                claims[failed_before[position]] = Some(Claim::Run { attempt, failed_with });
            }
        }
        open.retain(|&index| claims[index].is_none());
        if open.is_empty() {
            break;
        }
    }
    claims.into_iter().collect::<Option<Vec<_>>>().ok_or_else(too_quick)
}

/// Somebody runs the message under a lease.
pub(crate) fn held_by_lease() -> Fault {
    Fault::new(FaultClass::Contention, None, "a run under a lease holds the key")
}

/// The key keeps appearing and disappearing.
pub(crate) fn too_quick() -> Interrupt {
    Interrupt::Held(Fault::new(FaultClass::Contention, None, "a key changes faster than it can be claimed"))
}
