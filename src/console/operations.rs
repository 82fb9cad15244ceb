//! Requeues and discards that go on beside the pages: in steps, each decided and recorded on its own, so that one that is stopped or
//! broken off leaves the rest as it was.

use std::collections::{BTreeSet, VecDeque};
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
use crate::letters::{
    Change, Decision, Fate, LONG, Overrides, Pass, Plan, Requeue, discard, fates_of, sweep_after_change,
};
use crate::pg::{Named, Planned, Session};
use crate::preflight::open_session;

/// So many are remembered, and those that are under way.
const REMEMBERED: usize = 50;
/// So many may be under way: each has a session to PostgreSQL of its own.
pub(crate) const MOST_AT_ONCE: usize = 4;
/// Letters of one step, at most.
const STEP: usize = 32;
/// At a stop of the console, what was decided is carried to its end for so long.
const STOP: Duration = Duration::from_secs(30);

/// What became of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Waits,
    Published,
    /// Published from its dead-letter queue, by the sweep that follows.
    FromQueue,
    Discarded,
    /// Somebody else has discarded it meanwhile: nothing was published.
    GivenUp,
    /// Another requeue, or a sweep, has published it.
    ByAnother,
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
    progress: Mutex<Progress>,
    stop: CancellationToken,
    /// The console ends.
    end: CancellationToken,
}

/// Those of this process, the newest first.
#[derive(Default)]
pub(crate) struct Operations {
    known: Mutex<VecDeque<Arc<Operation>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Operations {
    /// Begins one; `None` where as many as may be are under way.
    pub(crate) fn begin(&self, config: &Config, order: Order) -> Option<Arc<Operation>> {
        let id = Uuid::new_v4();
        let Order { plan, actor, reason, rate } = order;
        let mut filter = serde_json::to_value(&plan.filter).unwrap_or_default();
        if let Value::Object(fields) = &mut filter {
            // Each step leaves a record: this says which belong together.
            fields.insert("operation".to_owned(), json!(id));
        }
        let items = plan.letters.into_iter().map(|letter| Item { letter, outcome: Outcome::Waits }).collect();
        let operation = Arc::new(Operation {
            id,
            change: plan.change,
            actor,
            reason,
            rate: rate.max(1),
            began: plan.now,
            filter,
            progress: Mutex::new(Progress { items, phase: Phase::Running, swept: Vec::new() }),
            stop: self.stop.child_token(),
            end: self.stop.clone(),
        });
        let mut known = self.lock();
        if known.iter().filter(|known| !known.has_ended()).count() >= MOST_AT_ONCE {
            return None;
        }
        known.push_front(Arc::clone(&operation));
        while known.len() > REMEMBERED
            && let Some(oldest) = known.iter().rposition(|known| known.has_ended())
        {
            known.remove(oldest);
        }
        drop(known);
        let (config, task) = (config.clone(), Arc::clone(&operation));
        let work = tokio::spawn({
            let task = Arc::clone(&task);
            async move { task.run(&config).await }
        });
        self.tasks.spawn(async move {
            if let Err(error) = work.await {
                task.enter(Phase::Broken(format!("a bug: {error}")));
            }
        });
        Some(operation)
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

    /// Is nothing more done?
    fn has_ended(&self) -> bool {
        !matches!(self.lock().phase, Phase::Running | Phase::Sweeping)
    }

    /// After the step under way nothing more is decided.
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
            Err(error) => broken(self.id, &error),
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
            Change::Requeue => {
                Some(Requeue::prepare(config, session, "oncely console", Overrides::default()).await?)
            }
            Change::Discard => None,
        };
        let names: Vec<Named> = self.lock().items.iter().map(|item| item.letter.named()).collect();
        let step = STEP.min(usize::try_from(self.rate).unwrap_or(STEP)).max(1);
        let mut ended = Phase::Done;
        for chunk in names.chunks(step) {
            if self.stop.is_cancelled() {
                ended = Phase::Stopped;
                break;
            }
            if let Err(error) = self.step(requeue.as_ref(), session, chunk).await {
                ended = broken(self.id, &error);
                break;
            }
            let pause = Duration::from_secs_f64(
                f64::from(u32::try_from(chunk.len()).unwrap_or(1)) / f64::from(self.rate),
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
        // What was decided is carried to its end, however the deciding ended.
        match self.sweep(config, session, &ended).await {
            Ok(()) => Ok(ended),
            Err(error) => {
                let ended = broken(self.id, &error);
                let unswept = |outcome: &Outcome| *outcome == Outcome::FromQueue;
                self.change(unswept, |_| {
                    Some(Outcome::Failed("its dead-letter queue could not be swept".to_owned()))
                });
                Ok(ended)
            }
        }
    }

    /// Decides a step's letters, and carries that out.
    async fn step(
        &self,
        requeue: Option<&Requeue>,
        session: &mut Session,
        chunk: &[Named],
    ) -> anyhow::Result<()> {
        let decision = Decision { user: &self.actor, filter: &self.filter, reason: Some(&self.reason) };
        let Some(requeue) = requeue else {
            let done = discard(session, chunk, decision).await?;
            let outcomes: Vec<_> = done.into_iter().map(|named| (named, Outcome::Discarded)).collect();
            self.note(chunk, &outcomes);
            return Ok(());
        };
        let begun = requeue.decide(session, chunk, decision).await?;
        let mut fates = Vec::new();
        let published = requeue.publish(session, &begun.taken, &mut fates).await;
        let mut outcomes: Vec<(Named, Outcome)> =
            begun.closed.into_iter().map(|named| (named, Outcome::TookEffect)).collect();
        outcomes.extend(fates.into_iter().map(|(named, fate)| (named, outcome(fate))));
        if published.is_err() {
            for named in begun.taken {
                if !outcomes.iter().any(|(known, _)| *known == named) {
                    let why = "it is not known whether it was published".to_owned();
                    outcomes.push((named, Outcome::Failed(why)));
                }
            }
        }
        self.note(chunk, &outcomes);
        published
    }

    /// Goes through the queues of what was done.
    async fn sweep(&self, config: &Config, session: &mut Session, ended: &Phase) -> anyhow::Result<()> {
        let (queues, in_queue, failed) = {
            let progress = self.lock();
            let of = |wanted: fn(&Outcome) -> bool| {
                progress.items.iter().filter(move |item| wanted(&item.outcome)).map(|item| &item.letter)
            };
            let queues: BTreeSet<String> = of(|outcome| {
                matches!(
                    outcome,
                    Outcome::Published | Outcome::FromQueue | Outcome::Discarded | Outcome::TookEffect
                )
            })
            .filter(|letter| !letter.from_client)
            .map(|letter| letter.queue.clone())
            .collect();
            let in_queue: Vec<Named> =
                of(|outcome| *outcome == Outcome::FromQueue).map(Planned::named).collect();
            (queues, in_queue, of(|outcome| matches!(outcome, Outcome::Failed(_))).count())
        };
        // Nothing waits for it: it would try the same again, or keep the console from its end.
        let can_wait = in_queue.is_empty();
        if can_wait && (failed > 0 || self.end.is_cancelled() || matches!(ended, Phase::Broken(_))) {
            return Ok(());
        }
        self.enter(Phase::Sweeping);
        let queues: Vec<String> = queues.into_iter().collect();
        let passes = sweep_after_change(config, session, &queues, &in_queue).await?;
        self.lock().swept = passes.iter().map(told).collect();
        let open = |outcome: &Outcome| matches!(outcome, Outcome::FromQueue | Outcome::Failed(_));
        let asked: Vec<Named> = {
            let progress = self.lock();
            let items = progress.items.iter().filter(|item| open(&item.outcome));
            items.map(|item| item.letter.named()).collect()
        };
        let known = fates_of(session, &asked).await?;
        self.change(open, |named| {
            let (_, fate) = known.iter().find(|(one, _)| one == named)?;
            match fate {
                // Published from its queue, whoever swept it.
                Fate::ByAnother => Some(Outcome::FromQueue),
                fate => Some(outcome(fate.clone())),
            }
        });
        Ok(())
    }

    /// Says anew what became of some letters; why one failed stays.
    fn change(&self, of: impl Fn(&Outcome) -> bool, to: impl Fn(&Named) -> Option<Outcome>) {
        let mut progress = self.lock();
        for item in progress.items.iter_mut().filter(|item| of(&item.outcome)) {
            match to(&item.letter.named()) {
                Some(Outcome::Failed(_)) if matches!(item.outcome, Outcome::Failed(_)) => {}
                Some(outcome) => item.outcome = outcome,
                None => {}
            }
        }
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

fn broken(id: Uuid, error: &anyhow::Error) -> Phase {
    let told = exit::told(error);
    tracing::error!(operation = %id, "{told}");
    Phase::Broken(told)
}

fn outcome(fate: Fate) -> Outcome {
    match fate {
        Fate::Published => Outcome::Published,
        Fate::InQueue(_) => Outcome::FromQueue,
        Fate::Discarded => Outcome::GivenUp,
        Fate::ByAnother => Outcome::ByAnother,
        Fate::Failed(why) => Outcome::Failed(why),
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
