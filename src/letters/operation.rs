//! A requeue or a discard of the letters of a plan, from the first decision to the sweep.
//!
//! It goes in steps. Each is decided and recorded in one transaction, then published chunk by chunk; the sweep comes last. A program that
//! ends before a step's commit leaves the step's letters as they were. Behind it they stand as requeueing, and the next requeue publishes
//! them. Behind a publish that was not noted they are published once more: a duplicate, which runs nothing. What was not swept stays in its
//! dead-letter queue until the next sweep.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::outcome::LetterOutcome;
use super::plan::{Change, Plan};
use super::requeue::{Decision, Overrides, Requeue, discard, standing_outcomes};
use super::sweep::{Pass, sweep_after_change};
use crate::config::Config;
use crate::pg::{Begun, Named, Planned, Session};

/// Letters of one decision, at most.
const STEP: usize = 1_000;
/// Copies published at once.
const CHUNK: usize = 64;

/// The phase of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// Going through the dead-letter queues.
    Sweeping,
    Done,
    /// An operator has stopped it.
    Stopped,
    /// A server failed, with this error.
    Broken(String),
}

/// A letter of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) letter: Planned,
    pub(crate) outcome: LetterOutcome,
}

/// An operation as it is at one time.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// In the order of the plan.
    pub(crate) items: Vec<Item>,
    pub(crate) phase: Phase,
    pub(crate) swept: Vec<Pass>,
}

impl Progress {
    /// Counts the letters with such an outcome.
    pub(crate) fn count(&self, of: impl Fn(&LetterOutcome) -> bool) -> usize {
        self.items.iter().filter(|item| of(&item.outcome)).count()
    }

    fn named(&self, of: impl Fn(&LetterOutcome) -> bool) -> Vec<Named> {
        self.items.iter().filter(|item| of(&item.outcome)).map(|item| item.letter.named()).collect()
    }

    /// Returns the queues of letters that were decided on, as far as their dead-letter queues have copies.
    fn queues(&self) -> Vec<String> {
        let decided = |item: &&Item| {
            !item.letter.from_client && !matches!(item.outcome, LetterOutcome::Waits | LetterOutcome::Changed)
        };
        let queues: BTreeSet<&String> =
            self.items.iter().filter(decided).map(|item| &item.letter.queue).collect();
        queues.into_iter().cloned().collect()
    }
}

/// The change that a person has agreed to.
pub(crate) struct Order {
    pub(crate) plan: Plan,
    pub(crate) actor: String,
    pub(crate) reason: Option<String>,
    /// Letters a second, at most; `None` is as fast as the servers are.
    pub(crate) rate: Option<u32>,
    pub(crate) overrides: Overrides,
    /// The name of its connections to RabbitMQ.
    pub(crate) application: &'static str,
}

/// A change that is under way, or was.
pub(crate) struct Operation {
    pub(crate) id: Uuid,
    pub(crate) change: Change,
    pub(crate) actor: String,
    pub(crate) reason: Option<String>,
    pub(crate) rate: Option<u32>,
    pub(crate) began: DateTime<Utc>,
    overrides: Overrides,
    application: &'static str,
    filter: Value,
    /// Where each letter is among the items.
    places: HashMap<Named, usize>,
    progress: Mutex<Progress>,
    stop: CancellationToken,
    /// The program ends.
    end: CancellationToken,
}

impl Operation {
    /// Makes an operation that has not begun. Once `end` is cancelled it decides nothing more.
    pub(crate) fn new(order: Order, end: CancellationToken) -> Self {
        let id = Uuid::new_v4();
        let Order { plan, actor, reason, rate, overrides, application } = order;
        let mut filter = serde_json::to_value(&plan.filter).unwrap_or_default();
        if let Value::Object(fields) = &mut filter {
            // Each step leaves a record: this says which belong together.
            fields.insert("operation".to_owned(), json!(id));
        }
        let item = |letter| Item { letter, outcome: LetterOutcome::Waits };
        let items: Vec<Item> = plan.letters.into_iter().map(item).collect();
        let places = items.iter().enumerate().map(|(place, item)| (item.letter.named(), place)).collect();
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
            progress: Mutex::new(Progress { items, phase: Phase::Running, swept: Vec::new() }),
            stop: end.child_token(),
            end,
        }
    }

    /// Returns how far it is.
    pub(crate) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// Tells whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.lock().phase, Phase::Running | Phase::Sweeping)
    }

    /// Stops it behind the step under way.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Notes that it ended without [`Operation::run`] having said so.
    pub(crate) fn break_off(&self, why: String) {
        self.enter(Phase::Broken(why));
    }

    /// Returns the letters that it was done to.
    pub(crate) fn done(&self) -> Vec<Named> {
        self.lock().named(|outcome| {
            matches!(
                outcome,
                LetterOutcome::Published | LetterOutcome::FromQueue(_) | LetterOutcome::Discarded
            )
        })
    }

    /// Carries it out. What was decided is carried to its end, however the deciding ends.
    ///
    /// # Errors
    /// When a server fails: [`Operation::progress`] says how far it came.
    pub(crate) async fn run(&self, config: &Config, session: &mut Session) -> anyhow::Result<()> {
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
            let unswept = self.lock().named(LetterOutcome::is_from_queue);
            let failed = LetterOutcome::Failed("its dead-letter queue could not be swept".to_owned());
            self.note(unswept.into_iter().map(|named| (named, failed.clone())));
        }
        let ended = decided?;
        swept?;
        self.enter(ended);
        Ok(())
    }

    async fn steps(&self, requeue: Option<&Requeue>, session: &mut Session) -> anyhow::Result<Phase> {
        let names: Vec<Named> = self.lock().named(|_| true);
        for step in names.chunks(self.at_most(STEP)) {
            if self.stop.is_cancelled() {
                return Ok(Phase::Stopped);
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
        Ok(Phase::Done)
    }

    /// Decides a step's letters, and records it; returns those that are to be published.
    async fn decide(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
        step: &[Named],
    ) -> anyhow::Result<Vec<Named>> {
        let decision = Decision { user: &self.actor, filter: &self.filter, reason: self.reason.as_deref() };
        let (taken, settled, outcome) = match requeue {
            Some(requeue) => {
                let Begun { taken, closed } = requeue.decide(session, step, decision).await?;
                (taken, closed, LetterOutcome::TookEffect)
            }
            None => (Vec::new(), discard(session, step, decision).await?, LetterOutcome::Discarded),
        };
        let of = |letters: &[Named], outcome: &LetterOutcome| -> Vec<(Named, LetterOutcome)> {
            letters.iter().map(|named| (named.clone(), outcome.clone())).collect()
        };
        let untouched = of(step, &LetterOutcome::Changed).into_iter();
        self.note(untouched.chain(of(&taken, &LetterOutcome::Waits)).chain(of(&settled, &outcome)));
        self.pause(settled.len()).await;
        Ok(taken)
    }

    async fn publish(&self, requeue: &Requeue, session: &mut Session, taken: &[Named]) -> anyhow::Result<()> {
        for chunk in taken.chunks(self.at_most(CHUNK)) {
            self.note(requeue.publish(session, chunk).await?);
            // Another session had the others in hand.
            self.note(standing_outcomes(session, &self.waiting(chunk)).await?);
            self.pause(chunk.len()).await;
        }
        Ok(())
    }

    /// Sweeps the queues of the letters that were decided on.
    async fn sweep(&self, config: &Config, session: &mut Session, is_broken: bool) -> anyhow::Result<()> {
        let (queues, in_queue, failed) = {
            let progress = self.lock();
            let failed = progress.count(LetterOutcome::is_failure);
            (progress.queues(), progress.named(LetterOutcome::is_from_queue), failed)
        };
        // Nothing waits for it: it would try the same again, or keep the program from its end.
        if in_queue.is_empty() && (is_broken || failed > 0 || self.end.is_cancelled()) {
            return Ok(());
        }
        self.enter(Phase::Sweeping);
        let passes = sweep_after_change(config, session, &queues, &in_queue).await?;
        self.lock().swept = passes;
        let open = self.lock().named(|outcome| outcome.is_from_queue() || outcome.is_failure());
        let standing = standing_outcomes(session, &open).await?;
        let mut progress = self.lock();
        for (named, now) in standing {
            let Some(outcome) = self.places.get(&named).map(|place| &mut progress.items[*place].outcome)
            else {
                continue;
            };
            *outcome = match (&*outcome, now) {
                // Why it failed is known better.
                (LetterOutcome::Failed(_), LetterOutcome::Failed(_)) => continue,
                // A sweep of another session may have published it from its queue.
                (LetterOutcome::FromQueue(_), LetterOutcome::ByAnother) => continue,
                (_, LetterOutcome::ByAnother) => LetterOutcome::FromQueue(None),
                (_, now) => now,
            };
        }
        Ok(())
    }

    /// Bounds a size by the letters that the rate lets through in a second.
    fn at_most(&self, size: usize) -> usize {
        self.rate.and_then(|rate| usize::try_from(rate).ok()).map_or(size, |rate| rate.min(size))
    }

    /// Waits for as long as the rate allows no further letters behind these.
    async fn pause(&self, letters: usize) {
        let Some(rate) = self.rate else { return };
        let letters = f64::from(u32::try_from(letters).unwrap_or(u32::MAX));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(letters / f64::from(rate))) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Returns those of the letters that have no outcome yet.
    fn waiting(&self, letters: &[Named]) -> Vec<Named> {
        let progress = self.lock();
        let waits = |named: &&Named| {
            self.places
                .get(*named)
                .is_some_and(|place| progress.items[*place].outcome == LetterOutcome::Waits)
        };
        letters.iter().filter(waits).cloned().collect()
    }

    fn note(&self, outcomes: impl IntoIterator<Item = (Named, LetterOutcome)>) {
        let mut progress = self.lock();
        for (named, outcome) in outcomes {
            if let Some(place) = self.places.get(&named) {
                progress.items[*place].outcome = outcome;
            }
        }
    }

    fn enter(&self, phase: Phase) {
        self.lock().phase = phase;
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Every change leaves it whole.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
