//! Reasons why a transaction did not commit, and the end of a batch without a decision.

use oncely_core::fault::{Fault, FaultClass};
use oncely_postgres::{Outage, PgFault, classify, classify_handler};

/// Reason why a transaction did not commit (or is not known to have committed).
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// The connection is gone. If it went during COMMIT, it is unknown whether the commit happened; the claim of the next try shows it.
    Outage(Outage),
    /// No message is the cause: wait and try again.
    NotNow(Fault),
    /// Another transaction holds a lock that Oncely's own statements need, most likely a key's: no message's failure, and it passes.
    Held(Fault),
    /// A key was known that was expected to be fresh: the batch is claimed again, at once, another way.
    Known,
    /// A message failed, or all of them did.
    Failed(Fault),
    /// The handler left the connection in an unknown state.
    Tainted(Fault),
}

impl Interrupt {
    /// Classifies an error of a handler, or of COMMIT.
    pub(crate) fn from_handler(error: sqlx::Error) -> Self {
        match classify_handler(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) => Self::from_fault(fault),
        }
    }

    /// Classifies a fault of a handler.
    pub(crate) fn from_fault(fault: Fault) -> Self {
        match fault.code.as_deref() {
            // The server ended the session because the handler took too long (idle_in_transaction_session_timeout, transaction_timeout):
            // the handler's failure, and the connection is gone.
            Some("25P03" | "25P04") => Self::Tainted(fault),
            _ => Self::Failed(fault),
        }
    }

    /// Classifies an error of Oncely's own statements before any handler ran: never a message's fault.
    pub(crate) fn from_statement(error: sqlx::Error) -> Self {
        match classify(error) {
            PgFault::Outage(outage) => Self::Outage(outage),
            PgFault::Fault(fault) if fault.class == FaultClass::Contention => Self::Held(fault),
            PgFault::Fault(fault) => Self::NotNow(fault),
        }
    }

    /// Classifies an error of Oncely's own statements after a handler, which may have broken the transaction.
    pub(crate) fn from_record(error: sqlx::Error) -> Self {
        match Self::from_handler(error) {
            Self::Failed(fault) if fault.class == FaultClass::Contention => Self::Held(fault),
            other => other,
        }
    }
}

/// The batch was given up without a decision: its messages are not settled, so they come again.
#[derive(Debug)]
pub(crate) struct AbandonedBatch;
