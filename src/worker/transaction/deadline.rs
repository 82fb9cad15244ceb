//! Limits: of a handler, which is told to stop where it works, in PostgreSQL; and of PostgreSQL itself, which may have gone
//! without a word.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::fault::{Fault, FaultClass};
use crate::pg::{self, Backend, Outage};
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::Shared;

/// How long a handler may take to return after its statement was cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// query_canceled: what ran was out of time.
const CANCELLED: &str = "57014";

/// Was what failed out of time, by our deadline or by a limit of the server?
pub(crate) fn is_late(fault: &Fault) -> bool {
    fault.code.as_deref() == Some(CANCELLED)
}

/// Who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// We for a function in the server, which answers a cancellation at once: no answer means no server.
    InServer,
    /// We for a program, which may wait for anything.
    InProcess,
    /// We for COMMIT, which runs what the handler deferred. The server has no limit of its own there, and without its answer nobody
    /// knows whether it happened.
    AtCommit,
}

/// Waits for statements of ours. Longer than the server's own limits means that it is not there any more, or cannot be heard:
/// the connection is given up.
pub(crate) async fn in_time<T>(
    shared: &Shared,
    step: impl Future<Output = Result<T, Interrupt>>,
) -> Result<T, Interrupt> {
    let limit = shared.postgres.client_timeout();
    match tokio::time::timeout(limit, step).await {
        Ok(done) => done,
        Err(_) => Err(silent(limit)),
    }
}

/// Waits for a handler's call, or for the COMMIT that runs what it deferred. Past the consumer's deadline PostgreSQL cancels what the
/// handler waits for, and the handler's failure goes its usual way, on a connection that stays whole. A handler that waits for something
/// else and still does not return is dropped together with its connection; a server that does not answer even then is an outage, and
/// nobody's failure.
pub(crate) async fn until_deadline<T>(
    shared: &Shared,
    backend: Backend,
    handling: Handling,
    call: impl Future<Output = Result<T, Interrupt>>,
) -> Result<T, Interrupt> {
    let deadline = shared.consumer.deadline;
    // A function is one statement, so the server ends it at its own limit, which may come first.
    let limit = match handling {
        Handling::InServer => deadline.min(shared.postgres.client_timeout()),
        Handling::InProcess | Handling::AtCommit => deadline,
    };
    let consumer = &shared.consumer.name;
    let late = || {
        let text = format!("the handler was not done within {limit:?}");
        Fault::new(FaultClass::Transient, Some(CANCELLED.to_owned()), text)
    };
    let mut call = std::pin::pin!(call);
    let began = Instant::now();
    if let Ok(done) = tokio::time::timeout(limit, call.as_mut()).await {
        if handling != Handling::AtCommit {
            shared.counters.metrics.handled(began.elapsed(), done.is_ok());
        }
        return done;
    }
    if handling != Handling::AtCommit {
        shared.counters.metrics.handled(began.elapsed(), false);
    }
    if limit == deadline {
        tracing::warn!(%consumer, ?deadline, "a handler is past its deadline: its statement is cancelled");
        let told = shared.cancel(backend).await;
        // A cancellation that nobody confirmed may still be on its way, and would strike a later statement: the connection is
        // not used again, whatever it answers.
        match tokio::time::timeout(GRACE, call).await {
            Ok(Err(Interrupt::Failed(_))) if told => return Err(Interrupt::Failed(late())),
            Ok(other) if told => return other,
            _ => {}
        }
    }
    let is_unknown = match handling {
        // Not at work: its answer was lost. One that goes on in spite of a cancellation is a handler that does not come back, as in a
        // program.
        Handling::InServer => shared.is_at_work(backend).await != Some(true),
        Handling::InProcess => false,
        Handling::AtCommit => true,
    };
    if is_unknown {
        return Err(silent(limit));
    }
    tracing::error!(%consumer, "a handler does not return after its deadline: its connection is closed");
    Err(Interrupt::Tainted(late()))
}

/// Behind a commit. A cancellation at the deadline may have struck its wait for a standby: it is done here and reported as done, but has
/// not arrived there.
pub(crate) async fn await_standby_if_late(
    shared: &Shared,
    connection: &mut PgConnection,
    began: Instant,
) -> Result<(), Interrupt> {
    if began.elapsed() < shared.consumer.deadline {
        return Ok(());
    }
    in_time(shared, async { pg::await_standby(connection).await.map_err(Interrupt::of_ours) }).await
}

fn silent(limit: Duration) -> Interrupt {
    let text = format!("no answer within {limit:?}");
    Interrupt::Outage(Outage(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))))
}
