//! Time limits: of a handler, which is cancelled in PostgreSQL; and of PostgreSQL itself, which may have disappeared silently.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::worker::interrupt::Interrupt;
use crate::worker::shared::ConsumerContext;
use oncely_core::fault::{Fault, FaultClass};
use oncely_postgres::{self as pg, Backend, Outage};

/// Time in which a handler may return after its statement was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// query_canceled: the statement was out of time.
pub(super) const QUERY_CANCELED_CODE: &str = "57014";

/// Returns whether a failure was out of time, by the consumer's deadline or by a limit of the server.
pub(crate) fn is_late(fault: &Fault) -> bool {
    fault.code.as_deref() == Some(QUERY_CANCELED_CODE)
}

/// Code that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerWait {
    /// A function in the server, which answers a cancellation at once: no answer means no server.
    InServer,
    /// A program, which may wait for anything.
    InProcess,
    /// COMMIT, which runs the handler's deferred work. The server has no limit of its own there, and without its answer it is unknown
    /// whether the commit happened.
    AtCommit,
}

/// Runs Oncely's own statements, for up to the client's limit of a statement. No answer within it means that the server is gone or
/// unreachable: an outage.
pub(crate) async fn run_in_time<T>(
    shared: &ConsumerContext,
    statement: impl Future<Output = Result<T, Interrupt>>,
) -> Result<T, Interrupt> {
    let limit = shared.postgres.client_timeout();
    match tokio::time::timeout(limit, statement).await {
        Ok(result) => result,
        Err(_) => Err(build_no_answer_interrupt(limit)),
    }
}

/// Runs a handler's call, or the COMMIT that runs its deferred work, until the consumer's deadline. Past the consumer's deadline PostgreSQL
/// cancels the handler's statement, and the failure is processed as usual, on a connection that stays intact. A handler that waits for
/// something else and still does not return is dropped together with its connection; a server that does not answer even then is an outage,
/// charged to no message.
pub(crate) async fn run_until_deadline<T>(
    shared: &ConsumerContext,
    backend: Backend,
    wait: HandlerWait,
    call: impl Future<Output = Result<T, Interrupt>>,
) -> Result<T, Interrupt> {
    let deadline = shared.consumer.deadline;
    // A function is one statement, so the server ends it at its own limit, which may come first.
    let limit = match wait {
        HandlerWait::InServer => deadline.min(shared.postgres.client_timeout()),
        HandlerWait::InProcess | HandlerWait::AtCommit => deadline,
    };
    let consumer = &shared.consumer.name;
    let build_late_fault = || {
        let text = format!("the handler was not done within {limit:?}");
        Fault::new(FaultClass::Transient, Some(QUERY_CANCELED_CODE.to_owned()), text)
    };
    let mut call = std::pin::pin!(call);
    let began = Instant::now();
    if let Ok(result) = tokio::time::timeout(limit, call.as_mut()).await {
        if wait != HandlerWait::AtCommit {
            shared.counters.metrics.record_handler_call(began.elapsed(), result.is_ok());
        }
        return result;
    }
    if wait != HandlerWait::AtCommit {
        shared.counters.metrics.record_handler_call(began.elapsed(), false);
    }
    if limit == deadline {
        tracing::warn!(%consumer, ?deadline, "handler exceeded its deadline; cancelling its statement");
        let is_cancelled = shared.cancel_statement(backend).await;
        // A cancellation that was not confirmed may still be on its way, and would cancel a later statement: the connection is not used
        // again, regardless of the answer.
        match tokio::time::timeout(CANCEL_GRACE, call).await {
            Ok(Err(Interrupt::Failed(_))) if is_cancelled => {
                return Err(Interrupt::Failed(build_late_fault()));
            }
            Ok(other) if is_cancelled => return other,
            _ => {}
        }
    }
    let is_unknown = match wait {
        // Idle: its answer was lost. A backend that goes on in spite of a cancellation is a handler that does not return, as in a program.
        HandlerWait::InServer => shared.query_is_at_work(backend).await != Some(true),
        HandlerWait::InProcess => false,
        HandlerWait::AtCommit => true,
    };
    if is_unknown {
        return Err(build_no_answer_interrupt(limit));
    }
    tracing::error!(%consumer, "handler did not return after its deadline; closing its connection");
    Err(Interrupt::Tainted(build_late_fault()))
}

/// Waits for the standby after a late commit. A cancellation at the deadline may have ended that wait: the commit is done here and reported
/// as done, but has not arrived there.
pub(crate) async fn wait_for_standby_if_late(
    shared: &ConsumerContext,
    connection: &mut PgConnection,
    began: Instant,
) -> Result<(), Interrupt> {
    if began.elapsed() < shared.consumer.deadline {
        return Ok(());
    }
    run_in_time(shared, async { pg::wait_for_standby(connection).await.map_err(Interrupt::from_statement) })
        .await
}

/// Builds the outage of a server that does not answer.
fn build_no_answer_interrupt(limit: Duration) -> Interrupt {
    let text = format!("no answer within {limit:?}");
    Interrupt::Outage(Outage(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))))
}
