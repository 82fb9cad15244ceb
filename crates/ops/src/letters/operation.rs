//! A requeue or a discard of the letters of a plan, from the first decision to the sweep.
//!
//! It runs in steps. Each is committed and recorded in one transaction, then published chunk by chunk; the sweep comes last. If the program
//! ends before a step's commit, the step's letters are unchanged. After it, they have the state requeueing, and the next requeue publishes
//! them. After a publish that was not recorded they are published again: a duplicate, which runs nothing. Letters that were not swept stay
//! in their dead-letter queue until the next sweep.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::outcome::LetterOutcome;
use super::plan::{Change, LetterChangePlan};
use super::requeue::{ChangeAuthor, Overrides, Requeue, discard, read_outcomes};
use super::sweep::{SweepResult, sweep_after_change};
use oncely_config::Config;
use oncely_postgres::{PlannedLetter, RequeueDecision, Session, TenantLetter};

/// Maximum number of letters in a step.
const MAX_STEP_LETTERS: usize = 1_000;
/// Maximum number of copies that are published at once.
const MAX_CONCURRENT_PUBLISHES: usize = 64;

/// The phase of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationPhase {
    Running,
    /// Reading the dead-letter queues.
    Sweeping,
    Done,
    /// An operator has stopped it.
    Stopped,
    /// A server failed, with this error.
    Broken(String),
}

/// A letter of an operation.
#[derive(Clone, Debug)]
pub struct OperationItem {
    pub letter: PlannedLetter,
    pub outcome: LetterOutcome,
}

/// State of an operation at one time.
#[derive(Clone, Debug)]
pub struct OperationProgress {
    /// In the order of the plan.
    pub items: Vec<OperationItem>,
    pub phase: OperationPhase,
    pub swept: Vec<SweepResult>,
}

impl OperationProgress {
    /// Counts the letters with an outcome that satisfies `predicate`.
    pub fn count(&self, predicate: impl Fn(&LetterOutcome) -> bool) -> usize {
        self.items.iter().filter(|item| predicate(&item.outcome)).count()
    }

    /// Returns the letters with an outcome that satisfies `predicate`.
    fn letters_with(&self, predicate: impl Fn(&LetterOutcome) -> bool) -> Vec<TenantLetter> {
        self.items
            .iter()
            .filter(|item| predicate(&item.outcome))
            .map(|item| item.letter.tenant_letter())
            .collect()
    }

    /// Returns the queues of the letters of committed steps, as far as their dead-letter queues have copies.
    fn queues(&self) -> Vec<String> {
        let decided = |item: &&OperationItem| {
            !item.letter.from_client && !matches!(item.outcome, LetterOutcome::Waits | LetterOutcome::Changed)
        };
        let queues: BTreeSet<&String> =
            self.items.iter().filter(decided).map(|item| &item.letter.queue).collect();
        queues.into_iter().cloned().collect()
    }
}

/// An operator's order: the change that the operator has confirmed.
pub struct Order {
    pub plan: LetterChangePlan,
    pub actor: String,
    pub reason: Option<String>,
    /// Maximum number of letters per second; `None`: as fast as the servers are.
    pub rate: Option<u32>,
    pub overrides: Overrides,
    /// The name of its connections to RabbitMQ.
    pub application: &'static str,
}

/// A running or ended change.
pub struct Operation {
    pub id: Uuid,
    pub change: Change,
    pub actor: String,
    pub reason: Option<String>,
    pub rate: Option<u32>,
    pub began: DateTime<Utc>,
    overrides: Overrides,
    application: &'static str,
    filter: Value,
    /// Index of each letter among the items.
    indices: HashMap<TenantLetter, usize>,
    progress: Mutex<OperationProgress>,
    stop: CancellationToken,
    /// Cancelled when the program ends.
    end: CancellationToken,
}

impl Operation {
    /// Creates an operation that has not begun. Once `end` is cancelled it commits no further step.
    pub fn new(order: Order, end: CancellationToken) -> Self {
        let id = Uuid::new_v4();
        let Order { plan, actor, reason, rate, overrides, application } = order;
        let mut filter = serde_json::to_value(&plan.filter).unwrap_or_default();
        if let Value::Object(fields) = &mut filter {
            // Each step leaves a record: this field links them.
            fields.insert("operation".to_owned(), json!(id));
        }
        let item = |letter| OperationItem { letter, outcome: LetterOutcome::Waits };
        let items: Vec<OperationItem> = plan.letters.into_iter().map(item).collect();
        let indices =
            items.iter().enumerate().map(|(index, item)| (item.letter.tenant_letter(), index)).collect();
        Self {
            id,
            change: plan.change,
            actor,
            reason,
            rate: rate.map(|rate| rate.max(1)),
            began: plan.now,
            overrides,
            application,
            filter,
            indices,
            progress: Mutex::new(OperationProgress {
                items,
                phase: OperationPhase::Running,
                swept: Vec::new(),
            }),
            stop: end.child_token(),
            end,
        }
    }

    /// Returns the current progress of the operation.
    pub fn progress(&self) -> OperationProgress {
        self.lock().clone()
    }

    /// Returns whether the operation has ended.
    pub fn has_ended(&self) -> bool {
        !matches!(self.lock().phase, OperationPhase::Running | OperationPhase::Sweeping)
    }

    /// Stops the operation after the current step.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Records that the operation ended without a result of [`Operation::run`].
    pub fn break_off(&self, error: String) {
        self.set_phase(OperationPhase::Broken(error));
    }

    /// Returns the letters that were published or discarded, or that the sweep publishes.
    pub fn changed_letters(&self) -> Vec<TenantLetter> {
        self.lock().letters_with(|outcome| {
            matches!(
                outcome,
                LetterOutcome::Published | LetterOutcome::FromQueue(_) | LetterOutcome::Discarded
            )
        })
    }

    /// Carries out the operation. Letters of committed steps are published and swept, even if a later step fails.
    ///
    /// # Errors
    /// If a server fails: [`Operation::progress`] has the letters that were done.
    pub async fn run(&self, config: &Config, session: &mut Session) -> anyhow::Result<()> {
        let requeue = match self.change {
            Change::Requeue => {
                Some(Requeue::prepare(config, session, self.application, self.overrides).await?)
            }
            Change::Discard => None,
        };
        let steps_result = self.run_steps(requeue.as_ref(), session).await;
        let sweep_result = self.sweep(config, session, steps_result.is_err()).await;
        if let Err(error) = &sweep_result {
            if steps_result.is_err() {
                tracing::error!(operation = %self.id, "sweep failed: {error:#}");
            }
            let unswept_letters = self.lock().letters_with(LetterOutcome::is_from_queue);
            let failure = LetterOutcome::Failed("its dead-letter queue could not be swept".to_owned());
            self.record_outcomes(unswept_letters.into_iter().map(|letter| (letter, failure.clone())));
        }
        let phase = steps_result?;
        sweep_result?;
        self.set_phase(phase);
        Ok(())
    }

    /// Works off the letters step by step, until all are done or the operation is stopped.
    async fn run_steps(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
    ) -> anyhow::Result<OperationPhase> {
        let letters: Vec<TenantLetter> = self.lock().letters_with(|_| true);
        for step in letters.chunks(self.limit_to_rate(MAX_STEP_LETTERS)) {
            if self.stop.is_cancelled() {
                return Ok(OperationPhase::Stopped);
            }
            let unpublished = self.commit_step(requeue, session, step).await?;
            if let Some(requeue) = requeue
                && let Err(error) = self.publish(requeue, session, &unpublished).await
            {
                let outcome = LetterOutcome::Failed("it is not known whether it was published".to_owned());
                let unpublished_letters = self.waiting_letters(&unpublished);
                self.record_outcomes(unpublished_letters.into_iter().map(|letter| (letter, outcome.clone())));
                return Err(error);
            }
        }
        Ok(OperationPhase::Done)
    }

    /// Commits a step in one transaction: marks its letters for requeue or discards them. Records the outcomes, and waits for the rate or
    /// the stop. Returns the letters to publish.
    ///
    /// # Errors
    /// If the database fails: the step is unchanged then, unless the reply to the COMMIT is lost.
    async fn commit_step(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
        step: &[TenantLetter],
    ) -> anyhow::Result<Vec<TenantLetter>> {
        let author = ChangeAuthor { user: &self.actor, filter: &self.filter, reason: self.reason.as_deref() };
        let (unpublished, closed, outcome) = match requeue {
            Some(requeue) => {
                let RequeueDecision { unpublished, closed } = requeue.begin(session, step, author).await?;
                (unpublished, closed, LetterOutcome::TookEffect)
            }
            None => (Vec::new(), discard(session, step, author).await?, LetterOutcome::Discarded),
        };
        let with_outcome =
            |letters: &[TenantLetter], outcome: &LetterOutcome| -> Vec<(TenantLetter, LetterOutcome)> {
                letters.iter().map(|letter| (letter.clone(), outcome.clone())).collect()
            };
        let changed = with_outcome(step, &LetterOutcome::Changed).into_iter();
        self.record_outcomes(
            changed
                .chain(with_outcome(&unpublished, &LetterOutcome::Waits))
                .chain(with_outcome(&closed, &outcome)),
        );
        self.wait_for_rate(closed.len()).await;
        Ok(unpublished)
    }

    /// Publishes letters of a committed step in chunks, as fast as the rate allows, and records their outcomes.
    async fn publish(
        &self,
        requeue: &Requeue,
        session: &mut Session,
        letters: &[TenantLetter],
    ) -> anyhow::Result<()> {
        for chunk in letters.chunks(self.limit_to_rate(MAX_CONCURRENT_PUBLISHES)) {
            self.record_outcomes(requeue.publish(session, chunk).await?);
            // Another session had locked the others.
            self.record_outcomes(read_outcomes(session, &self.waiting_letters(chunk)).await?);
            self.wait_for_rate(chunk.len()).await;
        }
        Ok(())
    }

    /// Sweeps the queues of the letters of committed steps, and records the outcomes after that. Skipped after a failure or at the end of
    /// the program, unless a letter needs it.
    async fn sweep(&self, config: &Config, session: &mut Session, is_broken: bool) -> anyhow::Result<()> {
        let (queues, in_queue, failed) = {
            let progress = self.lock();
            let failed = progress.count(LetterOutcome::is_failure);
            (progress.queues(), progress.letters_with(LetterOutcome::is_from_queue), failed)
        };
        // No letter needs the sweep: it would retry a failure, or delay the end of the program.
        if in_queue.is_empty() && (is_broken || failed > 0 || self.end.is_cancelled()) {
            return Ok(());
        }
        self.set_phase(OperationPhase::Sweeping);
        let results = sweep_after_change(config, session, &queues, &in_queue).await?;
        self.lock().swept = results;
        let open = self.lock().letters_with(|outcome| outcome.is_from_queue() || outcome.is_failure());
        let outcomes = read_outcomes(session, &open).await?;
        let mut progress = self.lock();
        for (letter, current) in outcomes {
            let Some(outcome) = self.indices.get(&letter).map(|index| &mut progress.items[*index].outcome)
            else {
                continue;
            };
            *outcome = match (&*outcome, current) {
                // The known reason of the failure is more specific.
                (LetterOutcome::Failed(_), LetterOutcome::Failed(_)) => continue,
                // Another session's sweep may have published it from its queue.
                (LetterOutcome::FromQueue(_), LetterOutcome::ByAnother) => continue,
                (_, LetterOutcome::ByAnother) => LetterOutcome::FromQueue(None),
                (_, current) => current,
            };
        }
        Ok(())
    }

    /// Limits a size to the letters that the rate allows in a second.
    fn limit_to_rate(&self, size: usize) -> usize {
        self.rate.and_then(|rate| usize::try_from(rate).ok()).map_or(size, |rate| rate.min(size))
    }

    /// Waits until the rate allows more letters after these, or the operation is stopped.
    async fn wait_for_rate(&self, letters: usize) {
        let Some(rate) = self.rate else { return };
        let letters = f64::from(u32::try_from(letters).unwrap_or(u32::MAX));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(letters / f64::from(rate))) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Returns the letters without an outcome.
    fn waiting_letters(&self, letters: &[TenantLetter]) -> Vec<TenantLetter> {
        let progress = self.lock();
        let waits = |letter: &&TenantLetter| {
            self.indices
                .get(*letter)
                .is_some_and(|index| progress.items[*index].outcome == LetterOutcome::Waits)
        };
        letters.iter().filter(waits).cloned().collect()
    }

    /// Sets the outcomes of letters; other letters than those of the plan are ignored.
    fn record_outcomes(&self, outcomes: impl IntoIterator<Item = (TenantLetter, LetterOutcome)>) {
        let mut progress = self.lock();
        for (letter, outcome) in outcomes {
            if let Some(index) = self.indices.get(&letter) {
                progress.items[*index].outcome = outcome;
            }
        }
    }

    fn set_phase(&self, phase: OperationPhase) {
        self.lock().phase = phase;
    }

    fn lock(&self) -> MutexGuard<'_, OperationProgress> {
        // A panic can't leave it inconsistent.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
