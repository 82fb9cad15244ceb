//! Runs of a handler in a transaction that is always taken back: there is no COMMIT in this file. What happens to the program meanwhile
//! ends the session, and PostgreSQL takes the transaction back by itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::batch_run::BatchRun;
use super::call::handle;
use super::claim::Claim;
use super::deadline::{Handling, in_time, until_deadline};
use super::plan::Plan;
use super::response::check_responses;
use super::verdict::verdicts;
use crate::decide::KeyRecord;
use crate::fault::{Fault, FaultClass};
use crate::handler::Message;
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::pg::{self, EmittedEvent, NoSession, Outage, Session, TableChanges};
use crate::traces::BatchTrace;
use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::ExpectedKeys;
use crate::worker::shared::Shared;

/// Messages that run one after another, each of them seeing what those before it wrote; or, after [`Rehearsal::take_back`], none of that.
pub(crate) struct Rehearsal {
    shared: Arc<Shared>,
    /// With a transaction at hand.
    session: Option<Session>,
    /// Sees what is committed, and so nothing of the transaction.
    observer: Session,
}

/// What some messages did.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// By message.
    pub(crate) responses: Vec<Option<String>>,
    /// Rows changed in tables of others.
    pub(crate) changes: Vec<TableChanges>,
    /// How many events were emitted.
    pub(crate) emitted: i64,
    /// Which; `None` where the session's user may not read them.
    pub(crate) events: Option<Vec<EmittedEvent>>,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) result: Result<Effect, Fault>,
    /// It took the session with it, and what those before it wrote.
    pub(crate) is_session_lost: bool,
}

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unrehearsed {
    #[error(transparent)]
    NoSession(#[from] NoSession),
    #[error("PostgreSQL went away: {0}")]
    Outage(#[from] Outage),
    #[error("{0}")]
    Fault(Fault),
}

impl From<Interrupt> for Unrehearsed {
    fn from(interrupt: Interrupt) -> Self {
        match interrupt {
            Interrupt::Outage(outage) => Self::Outage(outage),
            Interrupt::NotNow(fault)
            | Interrupt::Held(fault)
            | Interrupt::Failed(fault)
            | Interrupt::Tainted(fault) => Self::Fault(fault),
            Interrupt::Known => Self::Fault(Fault::new(FaultClass::Contention, None, "a key is known")),
        }
    }
}

impl Rehearsal {
    pub(crate) async fn new(shared: Arc<Shared>) -> Result<Self, Unrehearsed> {
        let observer = shared.door.open(&shared.application()).await?;
        Ok(Self { shared, session: None, observer })
    }

    /// What the database knows of keys, by position.
    pub(crate) async fn look_up(
        &mut self,
        identities: &[&Identity],
    ) -> Result<Vec<Option<KeyRecord>>, Unrehearsed> {
        let asked = async {
            let asked = pg::look_up(&mut self.observer.connection, &self.shared.consumer.name, identities);
            asked.await.map_err(Interrupt::of_ours)
        };
        Ok(in_time(&self.shared, asked).await?)
    }

    /// Runs the handler on messages, as far as COMMIT would go: with what it defers to that. What a run that fails did is taken back.
    pub(crate) async fn run(
        &mut self,
        plan: Plan,
        candidates: &[&Candidate],
        attempt: u32,
    ) -> Result<Run, Unrehearsed> {
        let shared = Arc::clone(&self.shared);
        let session = match self.session.take() {
            Some(session) => self.session.insert(session),
            None => {
                let mut session = shared.open_session().await?;
                in_time(&shared, async {
                    pg::begin_to_take_back(&mut session.connection).await.map_err(Interrupt::of_ours)
                })
                .await?;
                self.session.insert(session)
            }
        };
        in_time(&shared, async {
            pg::set_savepoint(&mut session.connection).await.map_err(Interrupt::of_ours)
        })
        .await?;
        // Nobody looks at the trace of a rehearsal.
        let trace: BatchTrace = Default::default();
        let run = BatchRun::new((&shared, &trace), session, plan, ExpectedKeys::Known, candidates);
        let result = match observed(&run, session, &mut self.observer, attempt).await {
            Ok(effect) => {
                let kept = async {
                    pg::keep_from_savepoint(&mut session.connection).await.map_err(Interrupt::of_ours)
                };
                in_time(&shared, kept).await?;
                Ok(effect)
            }
            Err(Interrupt::Failed(fault)) => {
                let undone = async {
                    pg::undo_to_savepoint(&mut session.connection).await.map_err(Interrupt::of_ours)
                };
                in_time(&shared, undone).await?;
                Err(fault)
            }
            Err(Interrupt::Tainted(fault)) => {
                let backend = session.backend;
                self.session = None;
                shared.end(backend).await;
                return Ok(Run { result: Err(fault), is_session_lost: true });
            }
            Err(other) => return Err(other.into()),
        };
        Ok(Run { result, is_session_lost: false })
    }

    /// What the worker would decide of a message that has run by itself; `witness`: another one has succeeded.
    pub(crate) fn verdict(
        &self,
        one: &Candidate,
        attempt: u32,
        witness: bool,
        result: Result<Option<String>, Fault>,
    ) -> Option<Outcome> {
        let claims = vec![Claim::Run { attempt, failed_with: None }];
        let plan = Plan::ByItself { witness, first: false };
        let outcome = verdicts(&self.shared, plan, &[one], claims, vec![result]).pop()?;
        self.shared.progress.note(std::iter::once((&one.identity, &outcome)));
        Some(outcome)
    }

    /// Takes back all that was written. The next message runs in a new session.
    pub(crate) async fn take_back(&mut self) {
        if let Some(session) = self.session.take() {
            // Its end is the end of its transaction.
            session.close().await;
        }
    }

    pub(crate) async fn close(mut self) {
        self.take_back().await;
        self.observer.close().await;
    }
}

/// Runs the handler, and looks at what it did.
async fn observed(
    run: &BatchRun<'_>,
    session: &mut Session,
    observer: &mut Session,
    attempt: u32,
) -> Result<Effect, Interrupt> {
    let shared = run.shared;
    let connection = &mut session.connection;
    let (before, since) = in_time(shared, async {
        let before = pg::table_changes(connection).await.map_err(Interrupt::of_ours)?;
        let since = pg::database_time(connection).await.map_err(Interrupt::of_ours)?;
        if run.plan.is_by_itself() {
            let limit = shared.postgres.lock_timeout;
            pg::limit_lock_wait(connection, limit).await.map_err(Interrupt::of_ours)?;
        }
        Ok((before, since))
    })
    .await?;
    let incoming: Vec<Message<'_>> = run
        .candidates
        .iter()
        .map(|one| Message {
            identity: &one.identity,
            raw: &one.delivery.message,
            attempt,
            is_json: one.is_json,
        })
        .collect();
    let results = handle(run, connection, &incoming).await?;
    check_responses(&shared.consumer, results.iter().flatten().flatten())?;
    let responses = results.into_iter().collect::<Result<Vec<_>, Fault>>().map_err(Interrupt::Failed)?;
    let deferred = async { pg::run_deferred(connection).await.map_err(Interrupt::of_handler) };
    // Not COMMIT: a statement, which the server ends at its own limit.
    until_deadline(shared, run.backend, Handling::InServer, deferred).await?;
    let looked = async {
        pg::defer_again(connection).await?;
        let after = pg::table_changes(connection).await?;
        let events = pg::events_since(connection, since).await?;
        // Committed by others while this ran.
        let others = match &events {
            Some(events) if !events.is_empty() => pg::events_since(&mut observer.connection, since).await?,
            _ => None,
        };
        Ok((after, events, others.unwrap_or_default()))
    };
    let (after, events, others) = in_time(shared, async { looked.await.map_err(Interrupt::of_ours) }).await?;
    let others: HashSet<_> = others.into_iter().map(|event| event.id).collect();
    let events =
        events.map(|events| events.into_iter().filter(|event| !others.contains(&event.id)).collect());
    let (ours, changes): (Vec<_>, Vec<_>) =
        difference(before, after).into_iter().partition(|table| table.schema == "oncely");
    let emitted = ours.iter().filter(|table| table.table == "events").map(|table| table.inserted).sum();
    Ok(Effect { responses, changes, emitted, events })
}

fn difference(before: Vec<TableChanges>, after: Vec<TableChanges>) -> Vec<TableChanges> {
    let before: HashMap<i64, TableChanges> = before.into_iter().map(|table| (table.id, table)).collect();
    let since = after.into_iter().map(|table| match before.get(&table.id) {
        None => table,
        Some(earlier) => TableChanges {
            inserted: table.inserted - earlier.inserted,
            updated: table.updated - earlier.updated,
            deleted: table.deleted - earlier.deleted,
            ..table
        },
    });
    since.filter(|table| (table.inserted, table.updated, table.deleted) != (0, 0, 0)).collect()
}
