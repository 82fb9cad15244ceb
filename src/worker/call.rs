//! The handler's turn, inside the transaction.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::deadline::{Handling, until_deadline};
use super::shared::Shared;
use super::stop::Stop;
use crate::fault::{Fault, FaultClass};
use crate::handler::{Context, Grouping, HandlerError, Message, Run, call};
use crate::pg::{self, Backend, LockWait, PgFault, classify};

/// How the handler is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// All messages at once: the first failure rolls all back.
    Together,
    /// Parts of the batch in a subtransaction each, and the messages of a part that fails. For a SQL function.
    Parts,
    /// Each message in a subtransaction of its own.
    Each,
    /// One message, in a transaction and a subtransaction of its own.
    Single,
}

impl Pass {
    fn grouping(self) -> Grouping {
        match self {
            Self::Together => Grouping::All,
            Self::Parts => Grouping::Parts,
            Self::Each | Self::Single => Grouping::Each,
        }
    }
}

/// How a transaction is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) pass: Pass,
    /// Another message of the consumer has succeeded beside these.
    pub(crate) witness: bool,
    /// It has met another transaction's locks: it waits for locks only for a moment.
    pub(crate) contended: bool,
}

impl Attempt {
    pub(crate) fn new(pass: Pass) -> Self {
        Self { pass, witness: false, contended: false }
    }

    /// How long the handler waits for locks.
    pub(crate) fn lock_wait(self) -> LockWait {
        match self.contended {
            true => LockWait::Moment,
            false => LockWait::Session,
        }
    }

    /// Is it called within a statement of ours, which can't enter the handler's settings by itself?
    pub(crate) fn is_within_a_statement(self, run: &Run) -> bool {
        matches!((run, self.pass), (Run::Sql(_), Pass::Parts | Pass::Each | Pass::Single))
    }
}

/// A handler's results, by message.
pub(crate) type Results = Vec<Result<Option<Value>, Fault>>;

/// Calls the handler; a result or a fault per message, in their order.
pub(crate) async fn handle(
    shared: &Shared,
    backend: Backend,
    transaction: &mut PgConnection,
    attempt: Attempt,
    incoming: &[Message<'_>],
) -> Result<Results, Stop> {
    let consumer = &shared.consumer.name;
    let wait = attempt.lock_wait();
    match (&shared.run, attempt.pass) {
        (Run::Sql(handler), pass) => {
            let called = async {
                call(transaction, handler, consumer, incoming, pass.grouping(), wait)
                    .await
                    .map_err(Stop::of_handler)
            };
            until_deadline(shared, backend, Handling::InServer, called).await
        }
        (run, Pass::Together) => {
            begin_guard(transaction, wait).await?;
            let mut results = Results::with_capacity(incoming.len());
            match run {
                Run::RustBatch(handler) => {
                    let called = async {
                        let context = Context::new(transaction, None);
                        let done = caught(async { handler.handle_batch(context, incoming).await }).await?;
                        or_stop(transaction, done).await
                    };
                    let responses = until_deadline(shared, backend, Handling::InProcess, called).await?;
                    if responses.len() != incoming.len() {
                        return Err(Stop::Failed(wrong_count(responses.len(), incoming.len())));
                    }
                    results.extend(responses.into_iter().map(Ok));
                }
                _ => {
                    for message in incoming {
                        let called = async {
                            let done = call_one(run, transaction, message).await?;
                            or_stop(transaction, done).await
                        };
                        let response = until_deadline(shared, backend, Handling::InProcess, called).await?;
                        // What the next one wrote would be committed without its key.
                        if !transaction.is_in_transaction() {
                            return Err(ended(None));
                        }
                        results.push(Ok(response));
                    }
                }
            }
            end_guard(transaction).await?;
            Ok(results)
        }
        (run, Pass::Parts | Pass::Each | Pass::Single) => {
            let mut results = Results::with_capacity(incoming.len());
            for message in incoming {
                begin_guard(transaction, wait).await?;
                let called = async {
                    let done = call_one(run, transaction, message).await?;
                    or_stop(transaction, done).await
                };
                match until_deadline(shared, backend, Handling::InProcess, called).await {
                    Ok(response) => match end_guard(transaction).await {
                        Ok(()) => results.push(Ok(response)),
                        Err(Stop::Failed(fault)) => {
                            undo_to_guard(transaction, &fault).await?;
                            results.push(Err(fault));
                        }
                        Err(other) => return Err(other),
                    },
                    Err(Stop::Failed(fault)) => {
                        undo_to_guard(transaction, &fault).await?;
                        results.push(Err(fault));
                    }
                    Err(other) => return Err(other),
                }
            }
            Ok(results)
        }
    }
}

fn wrong_count(got: usize, wanted: usize) -> Fault {
    let text = format!("the batch handler returned {got} responses for {wanted} messages");
    Fault::new(FaultClass::Transient, None, text)
}

/// Longest wait for our own connection's word that it is there.
const PING: Duration = Duration::from_secs(5);

/// What a handler's error stops. A connection that is lost may be one of its own, to another server: ours is asked.
async fn or_stop<T>(connection: &mut PgConnection, done: Result<T, HandlerError>) -> Result<T, Stop> {
    let error = match done {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    Err(match error.into_fault() {
        PgFault::Outage(outage) => match pg::within(PING, connection.ping()).await {
            Ok(()) => {
                let text = format!("what the handler asks is away: {outage}");
                Stop::of_fault(Fault::new(FaultClass::Environment, None, text))
            }
            Err(_) => Stop::Outage(outage),
        },
        PgFault::Fault(fault) => Stop::of_fault(fault),
    })
}

/// Runs a handler, from its call on. A panic is the handler's failure; what it left on the connection nobody knows.
async fn caught<T>(called: impl Future<Output = T>) -> Result<T, Stop> {
    AssertUnwindSafe(called).catch_unwind().await.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a text".to_owned());
        Stop::Tainted(Fault::new(FaultClass::Transient, None, format!("the handler panicked: {text}")))
    })
}

async fn call_one(
    run: &Run,
    transaction: &mut PgConnection,
    message: &Message<'_>,
) -> Result<Result<Option<Value>, HandlerError>, Stop> {
    let context = Context::new(transaction, Some(*message));
    match run {
        Run::Rust(handler) => caught(async { handler.handle(context, *message).await }).await,
        Run::RustBatch(handler) => {
            let called = async { handler.handle_batch(context, std::slice::from_ref(message)).await };
            let called = caught(called).await?;
            Ok(called.and_then(|mut responses| match (responses.pop(), responses.len()) {
                (Some(response), 0) => Ok(response),
                (_, more) => Err(HandlerError::transient(wrong_count(more, 1).message)),
            }))
        }
        Run::Sql(_) => Ok(Err(HandlerError::environment("a SQL function is not called this way"))),
    }
}

/// A savepoint round Rust handlers: releasing it fails where the handler ended the transaction, or swallowed an error
/// that aborted it. Without it, COMMIT of an aborted transaction reports success. Inside it names are looked up along the handler's
/// search_path; rolling back to it brings back ours.
async fn begin_guard(transaction: &mut PgConnection, wait: LockWait) -> Result<(), Stop> {
    let begun = transaction.execute(match wait {
        LockWait::Session => {
            "savepoint oncely_handler; set local search_path to default; set local lock_timeout to default"
        }
        LockWait::Moment => {
            "savepoint oncely_handler; set local search_path to default; set local lock_timeout = '500ms'"
        }
    });
    begun.await.map(drop).map_err(Stop::of_ours)
}

async fn end_guard(transaction: &mut PgConnection) -> Result<(), Stop> {
    match transaction
        .execute("release savepoint oncely_handler; set local search_path = pg_catalog, pg_temp")
        .await
    {
        Ok(_) => Ok(()),
        Err(error) => match classify(error) {
            PgFault::Outage(outage) => Err(Stop::Outage(outage)),
            // in_failed_sql_transaction: the handler went on after an error of its own.
            PgFault::Fault(fault) if fault.code.as_deref() == Some("25P02") => {
                let text = "the handler ignored an error that aborted its transaction";
                Err(Stop::Failed(Fault::new(FaultClass::Transient, fault.code, text)))
            }
            PgFault::Fault(fault) => Err(ended(fault.code)),
        },
    }
}

/// By COMMIT or ROLLBACK; or by dropping or swallowing a nested `begin()` that did not succeed, which sqlx answers with a ROLLBACK of
/// everything.
fn ended(code: Option<String>) -> Stop {
    let text = "the handler ended the transaction that it ran in";
    tracing::error!(code, "{text}; its connection is closed");
    Stop::Tainted(Fault::new(FaultClass::Transient, code, text))
}

/// Takes back what a failed handler did. Where that can't be done the connection is given up, and the handler's failure
/// stays its failure: asking the same handler again and again would spend no attempt.
async fn undo_to_guard(transaction: &mut PgConnection, fault: &Fault) -> Result<(), Stop> {
    let undone = transaction.execute("rollback to savepoint oncely_handler").await;
    undone.map(drop).map_err(|error| {
        tracing::debug!(error = %error, "a handler's savepoint could not be restored");
        Stop::Tainted(fault.clone())
    })
}
