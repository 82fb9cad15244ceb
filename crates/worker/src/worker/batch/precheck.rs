//! Asks the mirror which keys are known.

use std::time::Instant;

use crate::worker::candidate::Candidate;
use crate::worker::prediction::KeyPrediction;
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::{HitDecision, PrecheckMode, confirms, on_hit};
use oncely_core::identity::Identity;
use oncely_failpoint::step;
use oncely_mirror::Tag;
use oncely_postgres::{self as pg, Session};

/// Returns which candidates are known to have taken effect, and the epoch for which that holds. There is no answer if it is not worth a round
/// trip, or after an error: then PostgreSQL decides.
pub(crate) async fn precheck(
    shared: &ConsumerContext,
    prediction: &KeyPrediction,
    slot: &mut Option<Session>,
    candidates: &[&Candidate],
) -> Option<(Vec<bool>, String)> {
    let precheck = shared.precheck.as_ref()?;
    if precheck.mode == PrecheckMode::Off || !prediction.should_precheck(candidates) {
        return None;
    }
    let status = precheck.watch.latest()?;
    let keys = shared.keys.now();
    let mut hits = vec![false; candidates.len()];
    let (sample, rest) = sample(candidates);
    for part in [sample, rest] {
        if part.is_empty() {
            continue;
        }
        let tag_of = |&index: &usize| {
            let one = candidates[index];
            keys.tags.tag(&status.epoch, &one.identity, one.fingerprint.as_ref())
        };
        let tags: Vec<Tag> = part.iter().map(tag_of).collect();
        step("worker.precheck.before");
        let asked = Instant::now();
        let answer = precheck.mirror.look_up(&keys.tags, &tags, shared.clock.now()).await;
        shared.counters.metrics.prechecked(answer.as_deref(), tags.len(), asked.elapsed());
        step("worker.precheck.after");
        for (index, hit) in part.into_iter().zip(answer?) {
            hits[index] = hit;
        }
        // None known in the sample: PostgreSQL detects the few that may be.
        if !hits.contains(&true) {
            return Some((hits, status.epoch.clone()));
        }
    }
    match on_hit(precheck.mode, status.may_lose_commits, status.is_fresh()) {
        HitDecision::Believe => return Some((hits, status.epoch.clone())),
        HitDecision::Ignore => return None,
        HitDecision::Confirm => {}
    }
    let unconfirmed_hits: Vec<usize> = (0..hits.len()).filter(|&index| hits[index]).collect();
    let identities: Vec<&Identity> =
        unconfirmed_hits.iter().map(|&index| &candidates[index].identity).collect();
    let session = match slot {
        Some(session) if shared.factory.admits(session) => session,
        _ => slot.insert(shared.open_session().await.ok()?),
    };
    let client_timeout = shared.postgres.client_timeout();
    let epoch = session.cell.epoch.clone();
    let answer = async {
        let asked = pg::look_up(&mut session.connection, &shared.consumer.name, &identities);
        let records = pg::within(client_timeout, asked).await?;
        pg::within(client_timeout, pg::await_standby(&mut session.connection)).await?;
        Ok::<_, sqlx::Error>(records)
    };
    let Ok(records) = answer.await else {
        *slot = None;
        return None;
    };
    for (&index, record) in unconfirmed_hits.iter().zip(records) {
        hits[index] =
            confirms(record.as_ref(), candidates[index].fingerprint.as_ref(), shared.consumer.on_conflict);
    }
    Some((hits, epoch))
}

/// Messages of a batch that are looked up first. If one in ten is known, five samples of six contain one.
const SAMPLE: usize = 16;

/// Returns the positions to look up first, and the others: only if one of the first is known. Nearly always none is, and then a lookup for
/// each message would cost Redis and this process more than it ever saves PostgreSQL. Redelivered messages are the most likely to be known,
/// so all of them are looked up first.
fn sample(candidates: &[&Candidate]) -> (Vec<usize>, Vec<usize>) {
    let every = candidates.len().div_ceil(SAMPLE);
    let is_first =
        |index: &usize| index.is_multiple_of(every) || candidates[*index].delivery.message.redelivered;
    (0..candidates.len()).partition(is_first)
}
