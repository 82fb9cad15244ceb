//! Runs messages through the handler without a broker, and rolls all of it back: shows the decisions of a worker.

use std::sync::Arc;

use super::batch::prepare::prepare;
use super::candidate::{Candidate, PartialIdentity};
use super::progress::ConsumerProgress;
use super::shared::{ConsumerContext, ProcessContext};
use super::transaction::batch_run::BatchPlan;
use super::transaction::rehearsal::{Effect, Rehearsal, RehearsalError, RehearsedRun};
use oncely_amqp::Delivery;
use oncely_config::ConsumerSettings;
use oncely_core::decide::{KeyDecision, KeyRecord, KeyStatus, decide_on_key, find_leaders};
use oncely_core::fault::Fault;
use oncely_core::identity::Identity;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_handler::{SqlFunction, SqlHandler};
use oncely_process::metrics::ConsumerMetrics;

/// Reason why a dry run was broken off, and the position of the message that was running; `at` is `None` if no single message was.
#[derive(Debug)]
pub struct DryRunError {
    pub at: Option<usize>,
    pub why: RehearsalError,
}

impl From<RehearsalError> for DryRunError {
    fn from(why: RehearsalError) -> Self {
        Self { at: None, why }
    }
}

/// Consumer and settings of a dry run.
#[derive(Debug)]
pub struct DryRun<'a> {
    pub consumer: &'a ConsumerSettings,
    pub function: SqlFunction,
    /// Number of the run for the handler, from 1.
    pub attempt: u32,
    /// No message sees the writes of those before it.
    pub one_by_one: bool,
}

/// Results of a dry run.
#[derive(Debug)]
pub struct DryRunReport {
    /// By message.
    pub messages: Vec<TriedMessage>,
    /// Second runs, as batches, of the messages that succeeded by themselves.
    pub batches: Vec<TriedBatch>,
}

/// Result of a message.
#[derive(Debug)]
pub struct TriedMessage {
    pub identity: PartialIdentity,
    /// Decision of a worker.
    pub outcome: Outcome,
    pub effect: Option<Effect>,
    /// Earlier message with the same identity, which decides the outcome.
    pub leader: Option<usize>,
    /// Key that is not new to the database.
    pub database: Option<KnownKey>,
    /// The writes of earlier messages are lost for those after it.
    pub is_session_lost: bool,
}

/// A known key's record, and a worker's decision about it. Here the handler runs all the same.
#[derive(Debug)]
pub struct KnownKey {
    pub record: KeyRecord,
    pub decision: KeyDecision,
}

/// Result of messages together.
#[derive(Debug)]
pub struct TriedBatch {
    /// Their positions.
    pub messages: Vec<usize>,
    pub result: Result<(), Fault>,
}

impl TriedMessage {
    /// Returns whether the message ran by itself and completed.
    fn has_run(&self) -> bool {
        self.leader.is_none() && self.outcome.has_completed_key() && self.effect.is_some()
    }

    /// Creates the result of a message that did not run.
    fn new_unrun(identity: PartialIdentity, outcome: Outcome) -> Self {
        Self { identity, outcome, effect: None, leader: None, database: None, is_session_lost: false }
    }
}

impl DryRun<'_> {
    /// Tries the messages of one consumer.
    ///
    /// # Errors
    /// If PostgreSQL does not answer, or refuses Oncely's statements.
    pub async fn run(
        &self,
        common: &ProcessContext,
        deliveries: Vec<Box<Delivery>>,
    ) -> Result<DryRunReport, DryRunError> {
        let run = oncely_handler::ConsumerHandler::Sql(Arc::new(SqlHandler::new(
            self.function.clone(),
            self.consumer.largest_response(),
        )));
        let shared =
            ConsumerContext::new(common, self.consumer, run, None, ConsumerMetrics::register(self.consumer));
        let shared =
            Arc::new(ConsumerContext { progress: Arc::new(ConsumerProgress::new_for_trial()), ..shared });
        let prepared: Vec<_> = deliveries.into_iter().map(|delivery| prepare(&shared, delivery)).collect();
        let (positions, candidates): (Vec<usize>, Vec<&Candidate>) = prepared
            .iter()
            .enumerate()
            .filter_map(|(position, candidate)| Some((position, candidate.as_ref().ok()?)))
            .unzip();
        let mut rehearsal = Rehearsal::open(Arc::clone(&shared)).await?;
        let identities: Vec<&Identity> = candidates.iter().map(|candidate| &candidate.identity).collect();
        let leader_of = find_leaders(identities.iter().copied());
        let mut messages: Vec<Option<TriedMessage>> = prepared.iter().map(|_| None).collect();

        let leaders: Vec<usize> = (0..candidates.len()).filter(|&index| leader_of[index].is_none()).collect();
        let records =
            rehearsal.look_up(&leaders.iter().map(|&index| identities[index]).collect::<Vec<_>>()).await?;
        let runs = self.run_each(&mut rehearsal, &candidates, &positions, &leaders).await?;
        let witness = runs.iter().any(|run| run.result.is_ok());
        for ((&index, run), record) in leaders.iter().zip(runs).zip(records) {
            let RehearsedRun { result, is_session_lost } = run;
            let (effect, result) = match result {
                Ok(mut effect) => {
                    let response = effect.responses.pop().flatten();
                    (Some(effect), Ok(response))
                }
                Err(fault) => (None, Err(fault)),
            };
            let candidate = candidates[index];
            let Some(outcome) = rehearsal.decide_outcome(candidate, self.attempt, witness, result) else {
                continue;
            };
            let identity = PartialIdentity::from(&candidate.identity);
            let database = record.map(|record| {
                let decision =
                    decide_on_key(&record, candidate.fingerprint.as_ref(), self.consumer.on_conflict);
                KnownKey { record, decision }
            });
            messages[positions[index]] =
                Some(TriedMessage { identity, outcome, effect, leader: None, database, is_session_lost });
        }
        self.decide_followers(&mut messages, &candidates, &positions, &leader_of);
        let batches = match self.one_by_one {
            true => Vec::new(),
            false => {
                let has_run =
                    |position: usize| messages[position].as_ref().is_some_and(TriedMessage::has_run);
                let succeeded: Vec<usize> =
                    (0..candidates.len()).filter(|&index| has_run(positions[index])).collect();
                self.run_batches(&mut rehearsal, &candidates, &positions, &succeeded).await?
            }
        };
        rehearsal.close().await;
        let messages = prepared.into_iter().zip(messages).filter_map(|(candidate, tried)| match candidate {
            Ok(_) => tried,
            Err(rejected) => {
                Some(TriedMessage::new_unrun(rejected.identity, Outcome::from_rejection(rejected.rejection)))
            }
        });
        Ok(DryRunReport { messages: messages.collect(), batches })
    }

    /// Decides the copies of earlier messages by the outcomes of these.
    fn decide_followers(
        &self,
        messages: &mut [Option<TriedMessage>],
        candidates: &[&Candidate],
        positions: &[usize],
        leader_of: &[Option<usize>],
    ) {
        for (index, leader) in leader_of.iter().enumerate() {
            let Some(leader) = *leader else { continue };
            let Some(leader_message) = &messages[positions[leader]] else { continue };
            let outcome =
                self.decide_follower(&leader_message.outcome, candidates[leader], candidates[index]);
            let identity = PartialIdentity::from(&candidates[index].identity);
            let leader = Some(positions[leader]);
            messages[positions[index]] =
                Some(TriedMessage { leader, ..TriedMessage::new_unrun(identity, outcome) });
        }
    }

    /// Runs these candidates one after another, each of them seeing the writes of the earlier candidates unless each is tried by itself.
    /// Rolls all writes back.
    async fn run_each(
        &self,
        rehearsal: &mut Rehearsal,
        candidates: &[&Candidate],
        positions: &[usize],
        indices: &[usize],
    ) -> Result<Vec<RehearsedRun>, DryRunError> {
        let mut runs = Vec::with_capacity(indices.len());
        for &index in indices {
            let plan = BatchPlan::ByItself { witness: false, first: false };
            let run = rehearsal.run(plan, &[candidates[index]], self.attempt).await;
            runs.push(run.map_err(|why| DryRunError { at: Some(positions[index]), why })?);
            if self.one_by_one {
                rehearsal.take_back().await;
            }
        }
        rehearsal.take_back().await;
        Ok(runs)
    }

    /// Runs messages in batches, as a worker does at first, and rolls their writes back.
    async fn run_batches(
        &self,
        rehearsal: &mut Rehearsal,
        candidates: &[&Candidate],
        positions: &[usize],
        indices: &[usize],
    ) -> Result<Vec<TriedBatch>, DryRunError> {
        let max_messages = usize::try_from(self.consumer.batch).unwrap_or(usize::MAX).max(1);
        let mut batches = Vec::new();
        for batch in indices.chunks(max_messages) {
            let batch_candidates: Vec<&Candidate> = batch.iter().map(|&index| candidates[index]).collect();
            let plan = BatchPlan::Together { turn: false };
            let RehearsedRun { result, .. } = rehearsal.run(plan, &batch_candidates, self.attempt).await?;
            let messages = batch.iter().map(|&index| positions[index]).collect();
            batches.push(TriedBatch { messages, result: result.map(drop) });
        }
        rehearsal.take_back().await;
        Ok(batches)
    }

    /// Decides a message by the outcome of an earlier message with the same identity.
    fn decide_follower(&self, first: &Outcome, leader: &Candidate, follower: &Candidate) -> Outcome {
        if leader.fingerprint == follower.fingerprint
            && let Some(outcome) = first.outcome_for_copy()
        {
            return outcome;
        }
        let Some(record) = build_expected_record(first, leader) else { return first.clone() };
        match decide_on_key(&record, follower.fingerprint.as_ref(), self.consumer.on_conflict) {
            KeyDecision::Duplicate => Outcome::Duplicate(DuplicateSource::Postgres),
            KeyDecision::Reject(rejection) => Outcome::from_rejection(rejection),
            KeyDecision::Retake | KeyDecision::Leased => first.clone(),
        }
    }
}

/// Builds the record that the database would have of a key after this outcome; `None` if nothing is recorded.
fn build_expected_record(outcome: &Outcome, candidate: &Candidate) -> Option<KeyRecord> {
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
        fingerprint: candidate.fingerprint,
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
