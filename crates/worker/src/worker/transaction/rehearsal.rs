//! Runs a handler in a transaction that is always rolled back: there is no COMMIT in this file. If the program fails meanwhile, its session
//! ends, and PostgreSQL rolls the transaction back by itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::batch_run::{BatchPlan, BatchRun};
use super::call::{check_responses, run_handler};
use super::claim::CandidateClaim;
use super::deadline::{HandlerWait, run_in_time, run_until_deadline};
use super::verdict::decide_outcomes;
use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::ExpectedKeys;
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::KeyRecord;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_handler::Message;
use oncely_postgres::{self as pg, EmittedEvent, NoSession, Outage, Session, TableChanges};
use oncely_traces::BatchTrace;

/// Messages that run one after another, each of them seeing the writes of those before it; or, after [`Rehearsal::take_back`], none of
/// them.
pub(crate) struct Rehearsal {
    shared: Arc<ConsumerContext>,
    /// Session with an open transaction.
    session: Option<Session>,
    /// Sees only committed data, so nothing of the transaction.
    observer: Session,
}

/// Effects of some messages.
#[derive(Debug, Default)]
pub struct Effect {
    /// By message.
    pub(crate) responses: Vec<Option<String>>,
    /// Rows changed in tables other than Oncely's.
    pub changes: Vec<TableChanges>,
    /// Number of events that were emitted.
    pub emitted: i64,
    /// The events; `None` if the session's user may not read them.
    pub events: Option<Vec<EmittedEvent>>,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct RehearsedRun {
    pub(crate) result: Result<Effect, Fault>,
    /// The session was lost with it, and the writes of earlier runs.
    pub(crate) is_session_lost: bool,
}

/// Reason why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    #[error(transparent)]
    NoSession(#[from] NoSession),
    #[error("PostgreSQL went away: {0}")]
    Outage(#[from] Outage),
    #[error("{0}")]
    Fault(Fault),
}

impl From<Interrupt> for RehearsalError {
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
    /// Opens the session that observes. The session of the handler is opened by the first run.
    pub(crate) async fn open(shared: Arc<ConsumerContext>) -> Result<Self, RehearsalError> {
        let observer = shared.factory.open(&shared.application()).await?;
        Ok(Self { shared, session: None, observer })
    }

    /// Reads the database's records of keys, by position; `None` for an unknown key.
    pub(crate) async fn look_up(
        &mut self,
        identities: &[&Identity],
    ) -> Result<Vec<Option<KeyRecord>>, RehearsalError> {
        let query = async {
            let query = pg::look_up(&mut self.observer.connection, &self.shared.consumer.name, identities);
            query.await.map_err(Interrupt::from_statement)
        };
        Ok(run_in_time(&self.shared, query).await?)
    }

    /// Runs the handler on messages, including its work deferred to COMMIT. A run that fails is rolled back.
    pub(crate) async fn run(
        &mut self,
        plan: BatchPlan,
        candidates: &[&Candidate],
        attempt: u32,
    ) -> Result<RehearsedRun, RehearsalError> {
        let shared = Arc::clone(&self.shared);
        let session = match self.session.take() {
            Some(session) => self.session.insert(session),
            None => {
                let mut session = shared.open_session().await?;
                run_in_time(&shared, async {
                    pg::begin_rehearsal(&mut session.connection).await.map_err(Interrupt::from_statement)
                })
                .await?;
                self.session.insert(session)
            }
        };
        run_in_time(&shared, async {
            pg::set_savepoint(&mut session.connection).await.map_err(Interrupt::from_statement)
        })
        .await?;
        // The trace of a rehearsal is unused.
        let trace: BatchTrace = Default::default();
        let run = BatchRun::begin((&shared, &trace), session, plan, ExpectedKeys::Known, candidates);
        let result = match run_observed(&run, session, &mut self.observer, attempt).await {
            Ok(effect) => {
                let statement = async {
                    pg::keep_from_savepoint(&mut session.connection).await.map_err(Interrupt::from_statement)
                };
                run_in_time(&shared, statement).await?;
                Ok(effect)
            }
            Err(Interrupt::Failed(fault)) => {
                let statement = async {
                    pg::undo_to_savepoint(&mut session.connection).await.map_err(Interrupt::from_statement)
                };
                run_in_time(&shared, statement).await?;
                Err(fault)
            }
            Err(Interrupt::Tainted(fault)) => {
                let backend = session.backend;
                self.session = None;
                shared.terminate_session(backend).await;
                return Ok(RehearsedRun { result: Err(fault), is_session_lost: true });
            }
            Err(other) => return Err(other.into()),
        };
        Ok(RehearsedRun { result, is_session_lost: false })
    }

    /// Decides like a worker about a message that has run by itself, and records the outcome in the progress. `witness`: another message
    /// has succeeded. Always returns an outcome for its one message.
    pub(crate) fn decide_outcome(
        &self,
        candidate: &Candidate,
        attempt: u32,
        witness: bool,
        result: Result<Option<String>, Fault>,
    ) -> Option<Outcome> {
        let claims = vec![CandidateClaim::Run { attempt, failed_with: None }];
        let plan = BatchPlan::ByItself { witness, first: false };
        let began = self.shared.progress.begin();
        let outcome = decide_outcomes(&self.shared, plan, began, &[candidate], claims, vec![result]).pop()?;
        self.shared.progress.record_outcomes(began, std::iter::once((&candidate.identity, &outcome)));
        Some(outcome)
    }

    /// Rolls back all writes. The next message runs in a new session.
    pub(crate) async fn take_back(&mut self) {
        if let Some(session) = self.session.take() {
            // The end of the session ends its transaction.
            session.close().await;
        }
    }

    /// Rolls back all writes, and closes both sessions.
    pub(crate) async fn close(mut self) {
        self.take_back().await;
        self.observer.close().await;
    }
}

/// Runs the handler, and reads its effects.
async fn run_observed(
    run: &BatchRun<'_>,
    session: &mut Session,
    observer: &mut Session,
    attempt: u32,
) -> Result<Effect, Interrupt> {
    let shared = run.shared;
    let connection = &mut session.connection;
    let (before, since) = run_in_time(shared, async {
        let before = pg::read_table_changes(connection).await.map_err(Interrupt::from_statement)?;
        let since = pg::read_database_time(connection).await.map_err(Interrupt::from_statement)?;
        if run.plan.is_by_itself() {
            let limit = shared.postgres.lock_timeout;
            pg::limit_lock_wait(connection, limit).await.map_err(Interrupt::from_statement)?;
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
    let results = run_handler(run, connection, &incoming).await?;
    check_responses(&shared.consumer, results.iter().flatten().flatten())?;
    let responses = results.into_iter().collect::<Result<Vec<_>, Fault>>().map_err(Interrupt::Failed)?;
    let deferred = async { pg::run_deferred(connection).await.map_err(Interrupt::from_handler) };
    // Not COMMIT, but a statement, which the server ends at its own limit.
    run_until_deadline(shared, run.backend, HandlerWait::InServer, deferred).await?;
    let query = async {
        pg::defer_again(connection).await?;
        let after = pg::read_table_changes(connection).await?;
        let events = pg::list_events_since(connection, since).await?;
        // Events that others committed while this ran.
        let others = match &events {
            Some(events) if !events.is_empty() => {
                pg::list_events_since(&mut observer.connection, since).await?
            }
            _ => None,
        };
        Ok((after, events, others.unwrap_or_default()))
    };
    let (after, events, others) =
        run_in_time(shared, async { query.await.map_err(Interrupt::from_statement) }).await?;
    let others: HashSet<_> = others.into_iter().map(|event| event.id).collect();
    let events =
        events.map(|events| events.into_iter().filter(|event| !others.contains(&event.id)).collect());
    let (own_changes, changes): (Vec<_>, Vec<_>) =
        subtract_changes(before, after).into_iter().partition(|table| table.schema == "oncely");
    let emitted =
        own_changes.iter().filter(|table| table.table == "events").map(|table| table.inserted).sum();
    Ok(Effect { responses, changes, emitted, events })
}

/// Returns the changes between two readings, of tables that have any.
fn subtract_changes(before: Vec<TableChanges>, after: Vec<TableChanges>) -> Vec<TableChanges> {
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
