//! Requeues and discards that go on beside the pages: in steps, each decided and recorded on its own, so that one that is stopped or
//! broken off leaves the rest as it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::amqp::Topology;
use crate::config::Config;
use crate::exit;
use crate::letters::{Change, Decision, Fate, LONG, Pass, Plan, Requeue, discard, sweep_after_change};
use crate::pg::{Named, Planned, Session};
use crate::preflight::open_session;

/// So many are remembered.
const REMEMBERED: usize = 50;
/// Letters of one step, at most.
const STEP: usize = 32;
/// At a stop of the console, the step under way is waited for.
const STOP: Duration = Duration::from_secs(10);

/// What became of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Waits,
    Published,
    /// Published from its dead-letter queue, by the sweep that follows.
    FromQueue,
    Discarded,
    /// It took effect meanwhile: nothing was published.
    TookEffect,
    /// It has changed since the plan.
    Changed,
    Failed(String),
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// Going through the dead-letter queues.
    Sweeping,
    Done,
    /// Somebody has stopped it.
    Stopped,
    /// A server failed: what it said.
    Broken(String),
}

/// A letter of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) letter: Planned,
    pub(crate) outcome: Outcome,
}

/// An operation as it is at one time.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) items: Vec<Item>,
    pub(crate) phase: Phase,
    /// What the sweeps said.
    pub(crate) swept: Vec<String>,
}

impl Progress {
    pub(crate) fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.items.iter().filter(|item| of(&item.outcome)).count()
    }
}

/// What somebody has agreed to.
pub(crate) struct Order {
    pub(crate) plan: Plan,
    pub(crate) actor: String,
    pub(crate) reason: String,
    /// Letters a second.
    pub(crate) rate: u32,
}

/// A change that is under way, or was.
pub(crate) struct Operation {
    pub(crate) id: Uuid,
    pub(crate) change: Change,
    pub(crate) actor: String,
    pub(crate) reason: String,
    pub(crate) rate: u32,
    pub(crate) began: DateTime<Utc>,
    filter: Value,
    queues: Vec<String>,
    progress: Mutex<Progress>,
    stop: CancellationToken,
}

/// Those of this process, the newest first.
#[derive(Default)]
pub(crate) struct Operations {
    known: Mutex<VecDeque<Arc<Operation>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Operations {
    /// Begins one.
    pub(crate) fn begin(&self, config: &Config, order: Order) -> Arc<Operation> {
        let id = Uuid::new_v4();
        let Order { plan, actor, reason, rate } = order;
        let mut filter = serde_json::to_value(&plan.filter).unwrap_or_default();
        if let Value::Object(fields) = &mut filter {
            // Each step leaves a record: this says which belong together.
            fields.insert("operation".to_owned(), json!(id));
        }
        let queues = plan.queues();
        let items = plan.letters.into_iter().map(|letter| Item { letter, outcome: Outcome::Waits }).collect();
        let operation = Arc::new(Operation {
            id,
            change: plan.change,
            actor,
            reason,
            rate: rate.max(1),
            began: plan.now,
            filter,
            queues,
            progress: Mutex::new(Progress { items, phase: Phase::Running, swept: Vec::new() }),
            stop: self.stop.child_token(),
        });
        let mut known = self.lock();
        known.push_front(Arc::clone(&operation));
        known.truncate(REMEMBERED);
        drop(known);
        let (config, task) = (config.clone(), Arc::clone(&operation));
        self.tasks.spawn(async move { task.run(&config).await });
        operation
    }

    pub(crate) fn get(&self, id: Uuid) -> Option<Arc<Operation>> {
        self.lock().iter().find(|operation| operation.id == id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Operation>> {
        self.lock().iter().cloned().collect()
    }

    /// The console stops: steps under way are finished, the rest stays as it is.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "an operation is broken off: letters that stand as requeueing are found by the next requeue"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Operation>>> {
        // Every change leaves the list whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operation {
    /// How far it is.
    pub(crate) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// After the step under way nothing more is done.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// The letters that it was done to.
    pub(crate) fn done(&self) -> Vec<Named> {
        let progress = self.lock();
        let done = |item: &&Item| {
            matches!(item.outcome, Outcome::Published | Outcome::FromQueue | Outcome::Discarded)
        };
        progress.items.iter().filter(done).map(|item| item.letter.named()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Every change leaves it whole.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        self.lock().phase = phase;
    }

    async fn run(&self, config: &Config) {
        let ended = match self.work(config).await {
            Ok(phase) => phase,
            Err(error) => {
                let told = exit::told(&error);
                tracing::error!(operation = %self.id, "{told}");
                Phase::Broken(told)
            }
        };
        self.enter(ended);
    }

    async fn work(&self, config: &Config) -> anyhow::Result<Phase> {
        let mut session = open_session(config).await?;
        let ended = self.steps(config, &mut session).await;
        session.close().await;
        ended
    }

    async fn steps(&self, config: &Config, session: &mut Session) -> anyhow::Result<Phase> {
        let requeue = match self.change {
            // What nobody can say of whether it took effect is requeued by the command line alone.
            Change::Requeue => Some(Requeue::prepare(config, session, "oncely console", false).await?),
            Change::Discard => None,
        };
        let names: Vec<Named> = self.lock().items.iter().map(|item| item.letter.named()).collect();
        let step = STEP.min(usize::try_from(self.rate).unwrap_or(STEP)).max(1);
        for chunk in names.chunks(step) {
            if self.stop.is_cancelled() {
                return Ok(Phase::Stopped);
            }
            let decision = Decision { user: &self.actor, filter: &self.filter, reason: Some(&self.reason) };
            let outcomes = match &requeue {
                Some(requeue) => self.requeue(requeue, session, chunk, decision).await?,
                None => {
                    let done = discard(session, chunk, decision).await?;
                    done.into_iter().map(|named| (named, Outcome::Discarded)).collect()
                }
            };
            self.note(chunk, &outcomes);
            let pause = Duration::from_secs_f64(
                f64::from(u32::try_from(chunk.len()).unwrap_or(1)) / f64::from(self.rate),
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.enter(Phase::Sweeping);
        let in_queue: Vec<Named> = {
            let progress = self.lock();
            let items = progress.items.iter().filter(|item| item.outcome == Outcome::FromQueue);
            items.map(|item| item.letter.named()).collect()
        };
        if self.lock().count(|outcome| matches!(outcome, Outcome::Failed(_))) > 0 {
            // It would try the same again.
            return Ok(Phase::Done);
        }
        let passes = sweep_after_change(config, session, &self.queues, &in_queue).await?;
        self.lock().swept = passes.iter().map(told).collect();
        Ok(Phase::Done)
    }

    async fn requeue(
        &self,
        requeue: &Requeue,
        session: &mut Session,
        chunk: &[Named],
        decision: Decision<'_>,
    ) -> anyhow::Result<Vec<(Named, Outcome)>> {
        let begun = requeue.decide(session, chunk, decision).await?;
        let mut outcomes: Vec<(Named, Outcome)> =
            begun.closed.into_iter().map(|named| (named, Outcome::TookEffect)).collect();
        for (named, fate) in requeue.publish(session, &begun.taken).await? {
            outcomes.push((
                named,
                match fate {
                    Fate::Published => Outcome::Published,
                    Fate::InQueue => Outcome::FromQueue,
                    Fate::Failed(why) => Outcome::Failed(why),
                },
            ));
        }
        Ok(outcomes)
    }

    /// What became of a step's letters: of those that nothing is said of, they have changed since the plan.
    fn note(&self, chunk: &[Named], outcomes: &[(Named, Outcome)]) {
        let mut progress = self.lock();
        for item in progress.items.iter_mut().filter(|item| item.outcome == Outcome::Waits) {
            let named = item.letter.named();
            if !chunk.contains(&named) {
                continue;
            }
            let found = outcomes.iter().find(|(known, _)| *known == named);
            item.outcome = found.map_or(Outcome::Changed, |(_, outcome)| outcome.clone());
        }
    }
}

fn told(pass: &Pass) -> String {
    match pass {
        Pass::Done(swept) => format!(
            "{}: {} gone, {} requeued from there, {} stay",
            Topology::dead_letter_queue(&swept.queue),
            swept.dropped,
            swept.requeued,
            swept.kept
        ),
        Pass::TooLong(queue) => format!(
            "{} holds more than {LONG} messages and was not swept: oncely failed sweep --queue {queue}",
            Topology::dead_letter_queue(queue)
        ),
    }
}
