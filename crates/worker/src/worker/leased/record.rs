//! Writes decisions that need no lease: rows of the trail, dead letters.

use std::sync::Arc;

use super::runner::Runner;
use crate::worker::candidate::{Candidate, DecidedDelivery};
use crate::worker::interrupt::Interrupt;
use crate::worker::transaction::letters::{GivenUpDelivery, keep_letters};
use crate::worker::transaction::record::build_audit_record;
use crate::worker::transaction::without_handler::{record_rejected, write_audit_rows};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::Outcome;
use oncely_lease::{Statement, StatementError, build_repeatable_error};
use oncely_postgres as pg;

impl Runner {
    /// Stores a dead letter alone: the trail has its row. Returns `None` if the write is refused or the worker stops first.
    pub(super) async fn keep_letter(&self, candidate: &Arc<Candidate>, outcome: Outcome) -> Option<Outcome> {
        let shared = Arc::clone(&self.shared);
        self.write_until_stored("store a dead letter", || {
            let (shared, candidate) = (Arc::clone(&shared), Arc::clone(candidate));
            let mut outcome = outcome.clone();
            Box::new(move |session| {
                Box::pin(async move {
                    let now = session.clock.now();
                    let mut transaction = pg::begin(&mut session.connection).await?;
                    let given_up = vec![GivenUpDelivery::new(&candidate, &mut outcome)];
                    keep_letters(&shared, &mut transaction, now, Interrupt::from_statement, given_up)
                        .await
                        .map_err(into_repeatable_error)?;
                    transaction.commit().await?;
                    Ok(outcome)
                })
            })
        })
        .await
    }

    /// Writes a duplicate's row in the trail. Returns false if the write is refused or the worker stops first.
    pub(super) async fn record_duplicate(&self, candidate: &Arc<Candidate>, outcome: &Outcome) -> bool {
        let shared = Arc::clone(&self.shared);
        let write = self.write_until_stored("record a duplicate", || {
            let (shared, candidate, outcome) = (Arc::clone(&shared), Arc::clone(candidate), outcome.clone());
            Box::new(move |session| {
                Box::pin(async move {
                    let record = build_audit_record(&candidate, &outcome);
                    write_audit_rows(&shared, session, &[record]).await.map_err(into_repeatable_error)
                })
            })
        });
        write.await.is_some()
    }

    /// Writes the audit row and the letter of a message that can't run. Returns `None` if the write is refused or the worker stops
    /// first.
    pub(super) async fn record_rejected(&self, rejected: DecidedDelivery) -> Option<DecidedDelivery> {
        let shared = Arc::clone(&self.shared);
        self.write_until_stored("record a rejected message", || {
            let (shared, mut one) = (Arc::clone(&shared), [rejected.clone()]);
            Box::new(move |session| {
                Box::pin(async move {
                    record_rejected(&shared, session, &mut one).await.map_err(into_repeatable_error)?;
                    let [one] = one;
                    Ok(one)
                })
            })
        })
        .await
    }

    /// Writes until it succeeds: the message is not settled before. Returns `None` if the write is refused or the worker stops first.
    async fn write_until_stored<T: Send + 'static>(
        &self,
        action: &str,
        make: impl Fn() -> Statement<T, sqlx::Error>,
    ) -> Option<T> {
        match self.store.own.run_until_answered(&self.shared.stop, action, make).await {
            Ok(written) => Some(written),
            Err(error) => {
                if let StatementError::Refused(fault) = error {
                    self.shared.health.record_stall(&fault, None);
                    tracing::error!(consumer = %self.shared.consumer.name, error = %fault,
                        "cannot {action}; leaving the message unacknowledged");
                }
                None
            }
        }
    }
}

/// Converts an interrupt to an error after which the statement is retried.
fn into_repeatable_error(interrupt: Interrupt) -> sqlx::Error {
    match interrupt {
        Interrupt::Outage(outage) => sqlx::Error::Io(std::io::Error::other(outage.to_string())),
        Interrupt::Known => {
            build_repeatable_error(Fault::new(FaultClass::Contention, None, "a key is known"))
        }
        Interrupt::NotNow(fault)
        | Interrupt::Held(fault)
        | Interrupt::Failed(fault)
        | Interrupt::Tainted(fault) => build_repeatable_error(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_outage_says_that_the_server_cannot_be_reached() {
        let broken = || sqlx::Error::Io(std::io::Error::other("connection reset"));
        let away = into_repeatable_error(Interrupt::from_statement(broken()));
        assert!(matches!(away, sqlx::Error::Io(_)), "{away:?}");
        let fault = Fault::new(FaultClass::Contention, Some("55P03".to_owned()), "lock timeout");
        let held = into_repeatable_error(Interrupt::Held(fault));
        assert!(matches!(held, sqlx::Error::Configuration(_)), "{held:?}");
    }
}
