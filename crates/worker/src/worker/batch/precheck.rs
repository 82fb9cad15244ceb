//! Queries the mirror for known keys.

use std::time::Instant;

use crate::worker::candidate::Candidate;
use crate::worker::prediction::KeyPrediction;
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::{HitDecision, PrecheckMode, decide_on_hit, is_hit_confirmed};
use oncely_core::identity::Identity;
use oncely_failpoint::step;
use oncely_mirror::Tag;
use oncely_postgres::{self as pg, Session};

/// Queries the mirror for candidates that have taken effect; returns that by position, with the epoch for which it holds. Returns `None`
/// if the query is not worth a round trip, or after an error: then PostgreSQL decides.
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
    let status = precheck.watch.latest_status()?;
    let keys = shared.keys.current();
    let mut hits = vec![false; candidates.len()];
    let (sample, others) = split_sample(candidates);
    for part in [sample, others] {
        if part.is_empty() {
            continue;
        }
        let tag_of = |&index: &usize| {
            let candidate = candidates[index];
            keys.tags.tag(&status.epoch, &candidate.identity, candidate.fingerprint.as_ref())
        };
        let tags: Vec<Tag> = part.iter().map(tag_of).collect();
        step("worker.precheck.before");
        let query_time = Instant::now();
        let part_hits = precheck.mirror.look_up(&keys.tags, &tags, shared.clock.now()).await;
        shared.counters.metrics.count_precheck(part_hits.as_deref(), tags.len(), query_time.elapsed());
        step("worker.precheck.after");
        for (index, hit) in part.into_iter().zip(part_hits?) {
            hits[index] = hit;
        }
        // None known in the sample: PostgreSQL detects the few that may be.
        if !hits.contains(&true) {
            return Some((hits, status.epoch.clone()));
        }
    }
    match decide_on_hit(precheck.mode, status.may_lose_commits, status.is_fresh()) {
        HitDecision::Believe => return Some((hits, status.epoch.clone())),
        HitDecision::Ignore => return None,
        HitDecision::Confirm => {}
    }
    let unconfirmed_hits: Vec<usize> = (0..hits.len()).filter(|&index| hits[index]).collect();
    let identities: Vec<&Identity> =
        unconfirmed_hits.iter().map(|&index| &candidates[index].identity).collect();
    let session = match slot {
        Some(session) if shared.factory.record_timeline(session) => session,
        _ => slot.insert(shared.open_session().await.ok()?),
    };
    let client_timeout = shared.postgres.client_timeout();
    let epoch = session.cell.epoch.clone();
    let query = async {
        let look_up = pg::look_up(&mut session.connection, &shared.consumer.name, &identities);
        let records = pg::wait_for_answer(client_timeout, look_up).await?;
        pg::wait_for_answer(client_timeout, pg::wait_for_standby(&mut session.connection)).await?;
        Ok::<_, sqlx::Error>(records)
    };
    let Ok(records) = query.await else {
        *slot = None;
        return None;
    };
    for (&index, record) in unconfirmed_hits.iter().zip(records) {
        hits[index] = is_hit_confirmed(
            record.as_ref(),
            candidates[index].fingerprint.as_ref(),
            shared.consumer.on_conflict,
        );
    }
    Some((hits, epoch))
}

/// Messages of a batch that are looked up first. If one in ten is known, five samples of six contain one.
const SAMPLE_MESSAGES: usize = 16;

/// Splits the positions into those to look up first, and the others: only if one of the first is known. Nearly always none is, and then a
/// lookup for each message would cost Redis and this process more than it ever saves PostgreSQL. Redelivered messages are the most likely
/// to be known, so all of them are looked up first.
fn split_sample(candidates: &[&Candidate]) -> (Vec<usize>, Vec<usize>) {
    let every = candidates.len().div_ceil(SAMPLE_MESSAGES);
    let is_first =
        |index: &usize| index.is_multiple_of(every) || candidates[*index].delivery.message.redelivered;
    (0..candidates.len()).partition(is_first)
}
