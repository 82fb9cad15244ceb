//! Why a transaction did not commit.

use crate::fault::{Fault, FaultClass};
use crate::pg::{Outage, PgFault, classify};

/// Why a transaction did not commit (or is not known to have committed).
#[derive(Debug)]
pub(crate) enum Stop {
    /// The connection is gone. If it went while COMMIT was on its way, nobody knows whether it happened; the claim of the
    /// next try will tell.
    Outage(Outage),
    /// No message is to blame: wait and try again.
    NotNow(Fault),
    /// A key is known that was expected to be fresh: the batch is claimed again, at once, another way.
    Known,
    /// Some message failed, or all of them did.
    Failed(Fault),
    /// The handler left the connection in a state that nobody knows.
    Tainted(Fault),
}

impl Stop {
    /// From an error of a handler, or of what comes after it.
    pub(crate) fn of_handler(error: sqlx::Error) -> Self {
        match classify(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) => Self::of_fault(fault),
        }
    }

    pub(crate) fn of_fault(fault: Fault) -> Self {
        match fault.code.as_deref() {
            // The server ended the session because the handler dawdled (idle_in_transaction_session_timeout,
            // transaction_timeout): the handler's failure, and the connection is gone.
            Some("25P03" | "25P04") => Self::Tainted(fault),
            _ if fault.class == FaultClass::Environment => Self::NotNow(fault),
            _ => Self::Failed(fault),
        }
    }

    /// From an error of our own statements before any handler ran: never a message's fault.
    pub(crate) fn of_ours(error: sqlx::Error) -> Self {
        match classify(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) => Self::NotNow(fault),
        }
    }
}
