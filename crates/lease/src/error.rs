//! Errors of lease stores.

use oncely_core::fault::{Fault, FaultClass};
use oncely_postgres as pg;

/// The reason why a store did not perform a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another run holds the key, or the caller's run has ended: nothing was written, and this run can change nothing any more.
    #[error("the lease of the key is lost")]
    Lost,
    /// No answer: it is unknown whether the call was performed. Repeat it.
    #[error("the store can't be asked: {0:#}")]
    Unavailable(anyhow::Error),
    /// Refused for good: an argument out of bounds, or a step that never began. Nothing was written.
    #[error("{0}")]
    Refused(String),
    /// Not performed, for a reason that may not apply to the next run. Nothing was written.
    #[error("{0}")]
    Failed(String),
    /// The stored record is invalid, so no run may begin by it. An operator has to examine it.
    #[error("what is stored of the key is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Creates [`StoreError::Unavailable`] with its cause.
    pub fn unavailable(error: impl Into<anyhow::Error>) -> Self {
        Self::Unavailable(error.into())
    }

    /// Classifies the fault of one of Oncely's own statements that PostgreSQL has refused. Only invalid arguments stay invalid, and the
    /// answers of the protocol's own functions (ONC…): any other refusal would give up an innocent key.
    pub(crate) fn from_fault(fault: &Fault) -> Self {
        let code = fault.code.as_deref().unwrap_or_default();
        // The server has ended a session that stood still in its transaction: nothing was committed.
        let is_ended = ["25P03", "25P04"].contains(&code);
        match fault.class {
            _ if is_ended || pg::is_temporary(fault) => Self::unavailable(anyhow::anyhow!("{fault}")),
            FaultClass::Poison => Self::Refused(fault.to_string()),
            _ if code.starts_with("ONC") => Self::Refused(fault.to_string()),
            _ => Self::Failed(fault.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_invalid_argument_is_refused_for_good() {
        let error_of = |code: &str| {
            let class = pg::classify_sqlstate(code).expect(code);
            StoreError::from_fault(&Fault::new(class, Some(code.to_owned()), "text"))
        };
        for code in ["25P03", "25P04", "57014", "40001", "55P03", "42501", "53300", "0A000"] {
            assert!(matches!(error_of(code), StoreError::Unavailable(_)), "{code}");
        }
        for code in ["P0001", "25001", "2F003", "21000"] {
            assert!(matches!(error_of(code), StoreError::Failed(_)), "{code}");
        }
        for code in ["22P02", "22003", "54000", "ONC21"] {
            assert!(matches!(error_of(code), StoreError::Refused(_)), "{code}");
        }
    }
}
