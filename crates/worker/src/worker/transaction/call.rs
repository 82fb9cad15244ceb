//! Calls the handler, inside the transaction.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::batch_run::{BatchPlan, BatchRun};
use super::deadline::{HandlerWait, is_late, run_until_deadline};
use crate::worker::interrupt::Interrupt;
use oncely_config::ConsumerSettings;
use oncely_core::fault::{Fault, FaultClass};
use oncely_handler::{
    ConsumerHandler, Context, HandlerError, Message, SqlHandler, Subtransactions, call_batch,
    call_in_subtransactions,
};
use oncely_postgres::{self as pg, LockWait, PgFault, classify};

/// Results of a handler, by message; responses as PostgreSQL writes them.
pub(crate) type Results = Vec<Result<Option<String>, Fault>>;

/// Calls the handler as the plan says, within the consumer's deadline; returns a response or a fault per message, in their order.
pub(crate) async fn run_handler(
    batch: &BatchRun<'_>,
    transaction: &mut PgConnection,
    incoming: &[Message<'_>],
) -> Result<Results, Interrupt> {
    match (&batch.shared.handler, batch.plan) {
        (ConsumerHandler::Sql(handler), _) => call_in_server(batch, handler, transaction, incoming).await,
        (run, BatchPlan::Together { .. }) => run_together(batch, run, transaction, incoming).await,
        (run, BatchPlan::Apart { .. } | BatchPlan::ByItself { .. }) => {
            run_apart(batch, run, transaction, incoming).await
        }
    }
}

/// Calls an SQL function.
async fn call_in_server(
    batch: &BatchRun<'_>,
    handler: &SqlHandler,
    transaction: &mut PgConnection,
    incoming: &[Message<'_>],
) -> Result<Results, Interrupt> {
    let BatchRun { shared, plan, backend, .. } = *batch;
    let consumer = &shared.consumer.name;
    let call = async {
        match plan {
            BatchPlan::Together { .. } => {
                call_batch(transaction, handler, consumer, incoming, batch.lock_wait()).await
            }
            BatchPlan::Apart { .. } | BatchPlan::ByItself { .. } => {
                let subtransactions = match plan {
                    BatchPlan::ByItself { .. } => Subtransactions::Messages,
                    BatchPlan::Apart { unparsed: true, .. } => Subtransactions::UnparsedParts,
                    BatchPlan::Apart { each: true, .. } => Subtransactions::ParsedMessages,
                    _ => Subtransactions::Parts,
                };
                call_in_subtransactions(transaction, handler, consumer, incoming, subtransactions).await
            }
        }
        .map_err(Interrupt::from_handler)
    };
    run_until_deadline(shared, backend, HandlerWait::InServer, call).await
}

/// Calls a handler in Rust for all messages in one subtransaction: the first failure ends it.
async fn run_together(
    batch: &BatchRun<'_>,
    run: &ConsumerHandler,
    transaction: &mut PgConnection,
    incoming: &[Message<'_>],
) -> Result<Results, Interrupt> {
    let BatchRun { shared, backend, .. } = *batch;
    let limit = shared.postgres.client_timeout();
    begin_guard(transaction, batch.lock_wait(), limit).await?;
    let mut results = Results::with_capacity(incoming.len());
    if let ConsumerHandler::RustBatch(handler) = run {
        let call = async {
            let context = Context::new(transaction, None);
            let result = catch_panic(async { handler.handle_batch(context, incoming).await }).await?;
            classify_error(transaction, result).await
        };
        let responses = run_until_deadline(shared, backend, HandlerWait::InProcess, call).await?;
        if responses.len() != incoming.len() {
            return Err(Interrupt::Failed(build_wrong_count_fault(responses.len(), incoming.len())));
        }
        results.extend(responses.iter().map(|response| Ok(response.as_ref().map(pg::to_json_text))));
    } else {
        for message in incoming {
            let call = async {
                let result = call_one(run, transaction, message).await?;
                classify_error(transaction, result).await
            };
            let response = run_until_deadline(shared, backend, HandlerWait::InProcess, call).await?;
            // The writes of the next message would be committed without its key.
            if !transaction.is_in_transaction() {
                return Err(report_ended_transaction(None));
            }
            results.push(Ok(response.as_ref().map(pg::to_json_text)));
        }
    }
    end_guard(transaction, limit).await?;
    Ok(results)
}

/// Calls a handler in Rust for each message in a subtransaction of its own.
async fn run_apart(
    batch: &BatchRun<'_>,
    run: &ConsumerHandler,
    transaction: &mut PgConnection,
    incoming: &[Message<'_>],
) -> Result<Results, Interrupt> {
    let BatchRun { shared, backend, .. } = *batch;
    let limit = shared.postgres.client_timeout();
    let mut results = Results::with_capacity(incoming.len());
    let mut is_out_of_time = false;
    for message in incoming {
        // A message that used up its time leaves none to those behind it, which run in a transaction of their own.
        if is_out_of_time {
            let text = "a message before it was out of time";
            results.push(Err(Fault::new(FaultClass::Contention, None, text)));
            continue;
        }
        begin_guard(transaction, batch.lock_wait(), limit).await?;
        let call = async {
            let result = call_one(run, transaction, message).await?;
            classify_error(transaction, result).await
        };
        let fault = match run_until_deadline(shared, backend, HandlerWait::InProcess, call).await {
            Ok(response) => match end_guard(transaction, limit).await {
                Ok(()) => {
                    results.push(Ok(response.as_ref().map(pg::to_json_text)));
                    continue;
                }
                Err(Interrupt::Failed(fault)) => fault,
                Err(other) => return Err(other),
            },
            // Another transaction may wait for its locks: it ends at once.
            Err(Interrupt::Failed(fault)) if fault.class == FaultClass::Contention => {
                return Err(Interrupt::Failed(fault));
            }
            Err(Interrupt::Failed(fault)) => {
                is_out_of_time = is_late(&fault);
                fault
            }
            Err(other) => return Err(other),
        };
        undo_to_guard(transaction, limit, &fault).await?;
        results.push(Err(fault));
    }
    Ok(results)
}

/// Builds the fault of a batch handler that returned another number of responses.
fn build_wrong_count_fault(actual: usize, expected: usize) -> Fault {
    let text = format!("the batch handler returned {actual} responses for {expected} messages");
    Fault::new(FaultClass::Transient, None, text)
}

/// Maximum wait for an answer on the handler's own connection.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Classifies a handler's error. The lost connection may be one to another server: `connection` is tested.
async fn classify_error<T>(
    connection: &mut PgConnection,
    result: Result<T, HandlerError>,
) -> Result<T, Interrupt> {
    let error = match result {
        Ok(result) => return Ok(result),
        Err(error) => error,
    };
    Err(match error.into_fault() {
        PgFault::Outage(outage) => match pg::wait_for_answer(PING_TIMEOUT, connection.ping()).await {
            Ok(()) => {
                let text = format!("what the handler asks is away: {outage}");
                Interrupt::from_fault(Fault::new(FaultClass::Environment, None, text))
            }
            Err(_) => Interrupt::Outage(outage),
        },
        PgFault::Fault(fault) => Interrupt::from_fault(fault),
    })
}

/// Runs a handler, and catches its panic. A panic is the handler's failure, and leaves its connection in an unknown state.
async fn catch_panic<T>(call: impl Future<Output = T>) -> Result<T, Interrupt> {
    AssertUnwindSafe(call).catch_unwind().await.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a text".to_owned());
        Interrupt::Tainted(Fault::new(FaultClass::Transient, None, format!("the handler panicked: {text}")))
    })
}

/// Runs the handler for one message. The outer error is a panic; the inner one is the handler's.
async fn call_one(
    run: &ConsumerHandler,
    transaction: &mut PgConnection,
    message: &Message<'_>,
) -> Result<Result<Option<Value>, HandlerError>, Interrupt> {
    let context = Context::new(transaction, Some(*message));
    match run {
        ConsumerHandler::Rust(handler) => {
            catch_panic(async { handler.handle(context, *message).await }).await
        }
        ConsumerHandler::RustBatch(handler) => {
            let call = async { handler.handle_batch(context, std::slice::from_ref(message)).await };
            let call = catch_panic(call).await?;
            Ok(call.and_then(|mut responses| match (responses.pop(), responses.len()) {
                (Some(response), 0) => Ok(response),
                (_, more) => Err(HandlerError::transient(build_wrong_count_fault(more, 1).message)),
            }))
        }
        ConsumerHandler::Sql(_) => {
            Ok(Err(HandlerError::environment("a SQL function is not called this way")))
        }
        ConsumerHandler::Leased(_) => {
            Ok(Err(HandlerError::environment("a handler that runs under leases has no transaction")))
        }
    }
}

/// Sets a savepoint around Rust handlers: releasing it fails if the handler ended the transaction, or ignored an error that aborted it.
/// Without it, COMMIT of an aborted transaction reports success. Inside it names are looked up along the handler's search_path; rolling
/// back to it restores Oncely's.
async fn begin_guard(
    transaction: &mut PgConnection,
    wait: LockWait,
    limit: Duration,
) -> Result<(), Interrupt> {
    let statement = transaction.execute(match wait {
        LockWait::Session => {
            "savepoint oncely_handler; set local search_path to default; set local lock_timeout to default"
        }
        LockWait::Batch => {
            "savepoint oncely_handler; set local search_path to default; set local lock_timeout = '100ms'"
        }
        LockWait::Turn => {
            "savepoint oncely_handler; set local search_path to default; set local lock_timeout = '500ms'"
        }
    });
    pg::wait_for_answer(limit, statement).await.map(drop).map_err(Interrupt::from_statement)
}

/// Releases the savepoint around a handler's call, and restores the search path. Fails if the handler has aborted or ended its transaction.
async fn end_guard(transaction: &mut PgConnection, limit: Duration) -> Result<(), Interrupt> {
    let statement =
        transaction.execute("release savepoint oncely_handler; set local search_path = pg_catalog, pg_temp");
    match pg::wait_for_answer(limit, statement).await {
        Ok(_) => Ok(()),
        Err(error) => match classify(error) {
            PgFault::Outage(outage) => Err(Interrupt::Outage(outage)),
            // in_failed_sql_transaction: the handler went on after an error of its own.
            PgFault::Fault(fault) if fault.code.as_deref() == Some("25P02") => {
                let text = "the handler ignored an error that aborted its transaction";
                Err(Interrupt::Failed(Fault::new(FaultClass::Transient, fault.code, text)))
            }
            PgFault::Fault(fault) => Err(report_ended_transaction(fault.code)),
        },
    }
}

/// Logs a transaction that its handler ended, and returns its interrupt: by COMMIT or ROLLBACK; or by dropping or ignoring a nested
/// `begin()` that did not succeed, which sqlx answers with a ROLLBACK of everything.
fn report_ended_transaction(code: Option<String>) -> Interrupt {
    let text = "the handler ended the transaction that it ran in";
    tracing::error!(code, "{text}; closing its connection");
    Interrupt::Tainted(Fault::new(FaultClass::Transient, code, text))
}

/// Rolls back a failed handler's work. If that fails the connection is given up, and the failure stays the handler's: repeated calls of the
/// same handler would spend no attempt.
async fn undo_to_guard(
    transaction: &mut PgConnection,
    limit: Duration,
    fault: &Fault,
) -> Result<(), Interrupt> {
    let result =
        pg::wait_for_answer(limit, transaction.execute("rollback to savepoint oncely_handler")).await;
    result.map(drop).map_err(|error| {
        tracing::debug!(error = %error, "a handler's savepoint could not be restored");
        Interrupt::Tainted(fault.clone())
    })
}

/// Refuses responses over the consumer's limit: all work of their handlers is rolled back.
pub(super) fn check_responses<'a>(
    consumer: &ConsumerSettings,
    responses: impl Iterator<Item = &'a String>,
) -> Result<(), Interrupt> {
    let limit = usize::try_from(consumer.largest_response()).unwrap_or(usize::MAX);
    for response in responses {
        let size = response.len();
        if size > limit {
            let text = format!(
                "the response has {size} bytes as JSON; the limit is {limit} (consumers.response_limit, consumers.on_large_response)"
            );
            return Err(Interrupt::Failed(Fault::new(FaultClass::Rejected, None, text)));
        }
    }
    Ok(())
}
