//! A requeue or a discard of the letters of a plan, from the first decision to the sweep.
//!
//! It runs in steps. Each is decided and recorded in one transaction, then published chunk by chunk; the sweep comes last. If the program
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
use super::requeue::{ChangeAuthor, Overrides, Requeue, discard, standing_outcomes};
use super::sweep::{SweepResult, sweep_after_change};
use oncely_config::Config;
use oncely_postgres::{PlannedLetter, RequeueDecision, Session, TenantLetter};

/// Maximum number of letters per decision.
const STEP: usize = 1_000;
/// Copies that are published at once.
const CHUNK: usize = 64;

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
    /// Counts the letters with such an outcome.
    pub fn count(&self, of: impl Fn(&LetterOutcome) -> bool) -> usize {
        self.items.iter().filter(|item| of(&item.outcome)).count()
    }

    fn letters_with(&self, of: impl Fn(&LetterOutcome) -> bool) -> Vec<TenantLetter> {
        self.items.iter().filter(|item| of(&item.outcome)).map(|item| item.letter.tenant_letter()).collect()
    }

    /// Returns the queues of the decided letters, as far as their dead-letter queues have copies.
    fn queues(&self) -> Vec<String> {
        let decided = |item: &&OperationItem| {
            !item.letter.from_client && !matches!(item.outcome, LetterOutcome::Waits | LetterOutcome::Changed)
        };
        let queues: BTreeSet<&String> =
            self.items.iter().filter(decided).map(|item| &item.letter.queue).collect();
        queues.into_iter().cloned().collect()
    }
}

/// The change that an operator has confirmed.
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
    places: HashMap<TenantLetter, usize>,
    progress: Mutex<OperationProgress>,
    stop: CancellationToken,
    /// Cancelled when the program ends.
    end: CancellationToken,
}

impl Operation {
    /// Makes an operation that has not begun. Once `end` is cancelled it decides nothing more.
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
        let places =
            items.iter().enumerate().map(|(place, item)| (item.letter.tenant_letter(), place)).collect();
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
            places,
            progress: Mutex::new(OperationProgress {
                items,
                phase: OperationPhase::Running,
                swept: Vec::new(),
            }),
            stop: end.child_token(),
            end,
        }
    }

    /// Returns the current progress.
    pub fn progress(&self) -> OperationProgress {
        self.lock().clone()
    }

    /// Returns whether it has ended.
    pub fn has_ended(&self) -> bool {
        !matches!(self.lock().phase, OperationPhase::Running | OperationPhase::Sweeping)
    }

    /// Stops the operation after the current step.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Records that the operation ended without a result of [`Operation::run`].
    pub fn break_off(&self, why: String) {
        self.enter(OperationPhase::Broken(why));
    }

    /// Returns the letters that were changed.
    pub fn done(&self) -> Vec<TenantLetter> {
        self.lock().letters_with(|outcome| {
            matches!(
                outcome,
                LetterOutcome::Published | LetterOutcome::FromQueue(_) | LetterOutcome::Discarded
            )
        })
    }

    /// Carries out the operation. Decided letters are published and swept, however the deciding ends.
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
        let decided = self.steps(requeue.as_ref(), session).await;
        let swept = self.sweep(config, session, decided.is_err()).await;
        if let Err(error) = &swept {
            if decided.is_err() {
                tracing::error!(operation = %self.id, "sweep failed: {error:#}");
            }
            let unswept = self.lock().letters_with(LetterOutcome::is_from_queue);
            let failed = LetterOutcome::Failed("its dead-letter queue could not be swept".to_owned());
            self.note(unswept.into_iter().map(|named| (named, failed.clone())));
        }
        let ended = decided?;
        swept?;
        self.enter(ended);
        Ok(())
    }

    async fn steps(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
    ) -> anyhow::Result<OperationPhase> {
        let names: Vec<TenantLetter> = self.lock().letters_with(|_| true);
        for step in names.chunks(self.at_most(STEP)) {
            if self.stop.is_cancelled() {
                return Ok(OperationPhase::Stopped);
            }
            let taken = self.decide(requeue, session, step).await?;
            if let Some(requeue) = requeue
                && let Err(error) = self.publish(requeue, session, &taken).await
            {
                let unknown = LetterOutcome::Failed("it is not known whether it was published".to_owned());
                let waiting = self.waiting(&taken);
                self.note(waiting.into_iter().map(|named| (named, unknown.clone())));
                return Err(error);
            }
        }
        Ok(OperationPhase::Done)
    }

    /// Decides a step's letters, and records it; returns those to publish.
    async fn decide(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
        step: &[TenantLetter],
    ) -> anyhow::Result<Vec<TenantLetter>> {
        let decision =
            ChangeAuthor { user: &self.actor, filter: &self.filter, reason: self.reason.as_deref() };
        let (taken, settled, outcome) = match requeue {
            Some(requeue) => {
                let RequeueDecision { taken, closed } = requeue.decide(session, step, decision).await?;
                (taken, closed, LetterOutcome::TookEffect)
            }
            None => (Vec::new(), discard(session, step, decision).await?, LetterOutcome::Discarded),
        };
        let of = |letters: &[TenantLetter], outcome: &LetterOutcome| -> Vec<(TenantLetter, LetterOutcome)> {
            letters.iter().map(|named| (named.clone(), outcome.clone())).collect()
        };
        let untouched = of(step, &LetterOutcome::Changed).into_iter();
        self.note(untouched.chain(of(&taken, &LetterOutcome::Waits)).chain(of(&settled, &outcome)));
        self.pause(settled.len()).await;
        Ok(taken)
    }

    async fn publish(
        &self,
        requeue: &Requeue,
        session: &mut Session,
        taken: &[TenantLetter],
    ) -> anyhow::Result<()> {
        for chunk in taken.chunks(self.at_most(CHUNK)) {
            self.note(requeue.publish(session, chunk).await?);
            // Another session had locked the others.
            self.note(standing_outcomes(session, &self.waiting(chunk)).await?);
            self.pause(chunk.len()).await;
        }
        Ok(())
    }

    /// Sweeps the queues of the decided letters.
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
        self.enter(OperationPhase::Sweeping);
        let passes = sweep_after_change(config, session, &queues, &in_queue).await?;
        self.lock().swept = passes;
        let open = self.lock().letters_with(|outcome| outcome.is_from_queue() || outcome.is_failure());
        let standing = standing_outcomes(session, &open).await?;
        let mut progress = self.lock();
        for (named, now) in standing {
            let Some(outcome) = self.places.get(&named).map(|place| &mut progress.items[*place].outcome)
            else {
                continue;
            };
            *outcome = match (&*outcome, now) {
                // The known reason of the failure is more specific.
                (LetterOutcome::Failed(_), LetterOutcome::Failed(_)) => continue,
                // Another session's sweep may have published it from its queue.
                (LetterOutcome::FromQueue(_), LetterOutcome::ByAnother) => continue,
                (_, LetterOutcome::ByAnother) => LetterOutcome::FromQueue(None),
                (_, now) => now,
            };
        }
        Ok(())
    }

    /// Limits a size to the letters that the rate allows in a second.
    fn at_most(&self, size: usize) -> usize {
        self.rate.and_then(|rate| usize::try_from(rate).ok()).map_or(size, |rate| rate.min(size))
    }

    /// Waits until the rate allows more letters after these.
    async fn pause(&self, letters: usize) {
        let Some(rate) = self.rate else { return };
        let letters = f64::from(u32::try_from(letters).unwrap_or(u32::MAX));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(letters / f64::from(rate))) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Returns the letters without an outcome.
    fn waiting(&self, letters: &[TenantLetter]) -> Vec<TenantLetter> {
        let progress = self.lock();
        let waits = |named: &&TenantLetter| {
            self.places
                .get(*named)
                .is_some_and(|place| progress.items[*place].outcome == LetterOutcome::Waits)
        };
        letters.iter().filter(waits).cloned().collect()
    }

    fn note(&self, outcomes: impl IntoIterator<Item = (TenantLetter, LetterOutcome)>) {
        let mut progress = self.lock();
        for (named, outcome) in outcomes {
            if let Some(place) = self.places.get(&named) {
                progress.items[*place].outcome = outcome;
            }
        }
    }

    fn enter(&self, phase: OperationPhase) {
        self.lock().phase = phase;
    }

    fn lock(&self) -> MutexGuard<'_, OperationProgress> {
        // A panic can't leave it inconsistent.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
