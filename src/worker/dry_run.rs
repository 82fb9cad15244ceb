//! Messages without a broker, through the handler and back: what a worker would decide of them, with nothing left behind.

use std::sync::Arc;

use super::batch::prepare::prepare;
use super::candidate::{Candidate, Known};
use super::progress::Progress;
use super::shared::{Common, Shared};
use super::transaction::plan::Plan;
use super::transaction::rehearsal::{Effect, Rehearsal, Run, Unrehearsed};
use crate::amqp::Delivery;
use crate::config::Consumer;
use crate::decide::{KeyDecision, KeyRecord, KeyStatus, decide, leaders};
use crate::fault::Fault;
use crate::handler::{SqlFunction, SqlHandler};
use crate::identity::Identity;
use crate::metrics::ConsumerMetrics;
use crate::outcome::{DuplicateSource, Outcome};

/// The end of it all, at this message where it was at one.
#[derive(Debug)]
pub(crate) struct BrokenOff {
    pub(crate) at: Option<usize>,
    pub(crate) why: Unrehearsed,
}

impl From<Unrehearsed> for BrokenOff {
    fn from(why: Unrehearsed) -> Self {
        Self { at: None, why }
    }
}

/// What is to be tried, and how.
#[derive(Debug)]
pub(crate) struct DryRun<'a> {
    pub(crate) consumer: &'a Consumer,
    pub(crate) function: SqlFunction,
    /// Which run it is for the handler, from 1.
    pub(crate) attempt: u32,
    /// No message sees what those before it wrote.
    pub(crate) one_by_one: bool,
}

/// All that came of it.
#[derive(Debug)]
pub(crate) struct Rehearsed {
    /// By message.
    pub(crate) messages: Vec<Tried>,
    /// The messages that succeeded by themselves once more, as batches.
    pub(crate) batches: Vec<TriedBatch>,
}

/// What came of a message.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) known: Known,
    /// What a worker would decide.
    pub(crate) outcome: Outcome,
    pub(crate) effect: Option<Effect>,
    /// The earlier message with the same identity, whose fate decides.
    pub(crate) leader: Option<usize>,
    /// Its key is not new to the database.
    pub(crate) database: Option<KnownKey>,
    /// What those before it wrote is gone for those behind it.
    pub(crate) is_session_lost: bool,
}

/// What the database knows of a key, and what a worker would make of that. Here the handler runs all the same.
#[derive(Debug)]
pub(crate) struct KnownKey {
    pub(crate) record: KeyRecord,
    pub(crate) decision: KeyDecision,
}

/// What came of messages together.
#[derive(Debug)]
pub(crate) struct TriedBatch {
    /// Their positions.
    pub(crate) messages: Vec<usize>,
    pub(crate) result: Result<(), Fault>,
}

impl DryRun<'_> {
    /// Tries the messages of one consumer.
    ///
    /// # Errors
    /// When PostgreSQL does not answer, or refuses statements of ours.
    pub(crate) async fn run(
        &self,
        common: &Common,
        deliveries: Vec<Box<Delivery>>,
    ) -> Result<Rehearsed, BrokenOff> {
        let run = crate::handler::Run::Sql(Arc::new(SqlHandler::new(self.function.clone())));
        let shared = Shared::new(common, self.consumer, run, None, ConsumerMetrics::new(self.consumer));
        let shared = Arc::new(Shared { progress: Progress::of_a_trial(), ..shared });
        let prepared: Vec<_> = deliveries.into_iter().map(|delivery| prepare(&shared, delivery)).collect();
        let (positions, candidates): (Vec<usize>, Vec<&Candidate>) = prepared
            .iter()
            .enumerate()
            .filter_map(|(position, one)| Some((position, one.as_ref().ok()?)))
            .unzip();
        let mut rehearsal = Rehearsal::new(Arc::clone(&shared)).await?;
        let identities: Vec<&Identity> = candidates.iter().map(|one| &one.identity).collect();
        let leader_of = leaders(identities.iter().copied());
        let mut messages: Vec<Option<Tried>> = prepared.iter().map(|_| None).collect();

        let first: Vec<usize> = (0..candidates.len()).filter(|&index| leader_of[index].is_none()).collect();
        let records =
            rehearsal.look_up(&first.iter().map(|&index| identities[index]).collect::<Vec<_>>()).await?;
        let mut runs = Vec::with_capacity(first.len());
        for &index in &first {
            let plan = Plan::ByItself { witness: false, first: false };
            let run = rehearsal.run(plan, &[candidates[index]], self.attempt).await;
            runs.push(run.map_err(|why| BrokenOff { at: Some(positions[index]), why })?);
            if self.one_by_one {
                rehearsal.take_back().await;
            }
        }
        rehearsal.take_back().await;
        let witness = runs.iter().any(|run| run.result.is_ok());
        for ((&index, run), record) in first.iter().zip(runs).zip(records) {
            let Run { result, is_session_lost } = run;
            let (effect, result) = match result {
                Ok(mut effect) => {
                    let response = effect.responses.pop().flatten();
                    (Some(effect), Ok(response))
                }
                Err(fault) => (None, Err(fault)),
            };
            let one = candidates[index];
            let Some(outcome) = rehearsal.verdict(one, self.attempt, witness, result) else { continue };
            let known = Known::from(&one.identity);
            let database = record.map(|record| {
                let decision = decide(&record, one.fingerprint.as_ref(), self.consumer.on_conflict);
                KnownKey { record, decision }
            });
            messages[positions[index]] =
                Some(Tried { known, outcome, effect, leader: None, database, is_session_lost });
        }
        for (index, leader) in leader_of.iter().enumerate() {
            let Some(leader) = *leader else { continue };
            let Some(first) = &messages[positions[leader]] else { continue };
            let outcome = self.follow(&first.outcome, candidates[leader], candidates[index]);
            let known = Known::from(&candidates[index].identity);
            messages[positions[index]] = Some(Tried {
                known,
                outcome,
                effect: None,
                leader: Some(positions[leader]),
                database: None,
                is_session_lost: false,
            });
        }
        let batches = match self.one_by_one {
            true => Vec::new(),
            false => {
                let completed = |position: usize| {
                    messages[position].as_ref().is_some_and(|one| {
                        one.leader.is_none() && one.outcome.completes() && one.effect.is_some()
                    })
                };
                let good: Vec<usize> =
                    (0..candidates.len()).filter(|&index| completed(positions[index])).collect();
                self.batches(&mut rehearsal, &candidates, &positions, &good).await?
            }
        };
        rehearsal.close().await;
        let messages = prepared.into_iter().zip(messages).filter_map(|(one, tried)| match one {
            Ok(_) => tried,
            Err(rejected) => Some(Tried {
                known: rejected.known,
                outcome: Outcome::rejected(rejected.rejection),
                effect: None,
                leader: None,
                database: None,
                is_session_lost: false,
            }),
        });
        Ok(Rehearsed { messages: messages.collect(), batches })
    }

    /// The same messages as a worker runs them first: many in one call.
    async fn batches(
        &self,
        rehearsal: &mut Rehearsal,
        candidates: &[&Candidate],
        positions: &[usize],
        good: &[usize],
    ) -> Result<Vec<TriedBatch>, BrokenOff> {
        let most = usize::try_from(self.consumer.batch).unwrap_or(usize::MAX).max(1);
        let mut batches = Vec::new();
        for batch in good.chunks(most) {
            let together: Vec<&Candidate> = batch.iter().map(|&index| candidates[index]).collect();
            let plan = Plan::Together { turn: false };
            let Run { result, .. } = rehearsal.run(plan, &together, self.attempt).await?;
            let messages = batch.iter().map(|&index| positions[index]).collect();
            batches.push(TriedBatch { messages, result: result.map(drop) });
        }
        rehearsal.take_back().await;
        Ok(batches)
    }

    /// What becomes of a message behind one with the same identity, once that is decided.
    fn follow(&self, first: &Outcome, leader: &Candidate, follower: &Candidate) -> Outcome {
        if leader.fingerprint == follower.fingerprint
            && let Some(outcome) = first.of_copy()
        {
            return outcome;
        }
        let Some(record) = record_after(first, leader) else { return first.clone() };
        match decide(&record, follower.fingerprint.as_ref(), self.consumer.on_conflict) {
            KeyDecision::Duplicate => Outcome::Duplicate(DuplicateSource::Postgres),
            KeyDecision::Reject(rejection) => Outcome::rejected(rejection),
            KeyDecision::Retake | KeyDecision::Leased => first.clone(),
        }
    }
}

/// What the database would know of a key by then; `None` where nothing is recorded.
fn record_after(outcome: &Outcome, one: &Candidate) -> Option<KeyRecord> {
    let (status, reason, last_error) = match outcome {
        Outcome::Completed { .. } | Outcome::Refused { .. } | Outcome::Duplicate(_) => {
            (KeyStatus::Completed, None, None)
        }
        Outcome::Retried { detail, .. } => (KeyStatus::InProgress, None, Some(detail.clone())),
        Outcome::DeadLettered { attempt, rejection, .. } if *attempt > 0 => {
            (KeyStatus::Failed, Some(rejection.reason), Some(rejection.detail.clone()))
        }
        Outcome::DeadLettered { .. } | Outcome::Postponed { .. } | Outcome::Undecided { .. } => return None,
    };
    Some(KeyRecord {
        status,
        fingerprint: one.fingerprint,
        attempts: outcome.attempt().unwrap_or_default(),
        crash_attempts: 0,
        reason,
        last_error,
        error_code: None,
        not_before: None,
        is_running: false,
        is_leased: false,
    })
}
