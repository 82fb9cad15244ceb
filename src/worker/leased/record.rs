//! What is written of decisions that need no lease: rows of the trail, dead letters.

use std::time::Duration;

use super::run::Runner;
use crate::amqp::Delivery;
use crate::backoff::Backoff;
use crate::outcome::Outcome;
use crate::pg;
use crate::worker::candidate::{Candidate, Known};
use crate::worker::interrupt::Interrupt;
use crate::worker::transaction::letters::{GivenUp, keep_letters};
use crate::worker::transaction::record::audit_record;
use crate::worker::transaction::without_handler::{audit_only, reject};

impl Runner {
    /// Its letter alone: the trail has it. False where the worker stops first.
    pub(super) async fn keep_letter(&self, candidate: &Candidate, outcome: &mut Outcome) -> bool {
        let mut backoff = Backoff::default();
        loop {
            let kept = pg::within(self.limit(), self.write_letter(candidate, outcome)).await;
            match kept {
                Ok(()) => return true,
                Err(error) if !self.pause(&mut backoff, &pg::describe(&error)).await => return false,
                Err(_) => {}
            }
        }
    }

    async fn write_letter(&self, candidate: &Candidate, outcome: &mut Outcome) -> Result<(), sqlx::Error> {
        let mut session = self.open().await?;
        let mut transaction = pg::begin(&mut session.connection).await?;
        let now = self.shared.clock.now();
        let given_up = vec![GivenUp::of(candidate, outcome)];
        let kept = keep_letters(&self.shared, &mut transaction, now, Interrupt::of_ours, given_up).await;
        kept.map_err(interrupted)?;
        transaction.commit().await?;
        session.close().await;
        Ok(())
    }

    /// Its row in the trail. False where the worker stops first.
    pub(super) async fn list(&self, candidate: &Candidate, outcome: &Outcome) -> bool {
        let mut backoff = Backoff::default();
        loop {
            match pg::within(self.limit(), self.write_row(candidate, outcome)).await {
                Ok(()) => return true,
                Err(error) if !self.pause(&mut backoff, &pg::describe(&error)).await => return false,
                Err(_) => {}
            }
        }
    }

    async fn write_row(&self, candidate: &Candidate, outcome: &Outcome) -> Result<(), sqlx::Error> {
        let mut session = self.open().await?;
        let record = audit_record(candidate, outcome);
        audit_only(&self.shared, &mut session, &[record]).await.map_err(interrupted)?;
        session.close().await;
        Ok(())
    }

    /// Audit row and letter of what can't run. False where the worker stops first.
    pub(super) async fn note_rejected(&self, rejected: &mut [(Box<Delivery>, Known, Outcome)]) -> bool {
        let mut backoff = Backoff::default();
        loop {
            match pg::within(self.limit(), self.write_rejected(rejected)).await {
                Ok(()) => return true,
                Err(error) if !self.pause(&mut backoff, &pg::describe(&error)).await => return false,
                Err(_) => {}
            }
        }
    }

    async fn write_rejected(
        &self,
        rejected: &mut [(Box<Delivery>, Known, Outcome)],
    ) -> Result<(), sqlx::Error> {
        let mut session = self.open().await?;
        reject(&self.shared, &mut session, rejected).await.map_err(interrupted)?;
        session.close().await;
        Ok(())
    }

    /// A connection and a few statements.
    fn limit(&self) -> Duration {
        self.shared.postgres.client_timeout().saturating_mul(4)
    }

    async fn open(&self) -> Result<pg::Session, sqlx::Error> {
        let opened = self.shared.door.open(&self.shared.application()).await;
        opened.map_err(|error| sqlx::Error::Configuration(Box::new(error)))
    }

    /// False where the worker stops meanwhile.
    async fn pause(&self, backoff: &mut Backoff, error: &str) -> bool {
        self.shared.counters.outage();
        tracing::warn!(consumer = %self.shared.consumer.name, error, "a decision can't be recorded yet; tried again");
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => false,
            () = tokio::time::sleep(backoff.next()) => true,
        }
    }
}

fn interrupted(interrupt: Interrupt) -> sqlx::Error {
    let text = match interrupt {
        Interrupt::Outage(outage) => outage.to_string(),
        Interrupt::Known => "a key is known".to_owned(),
        Interrupt::NotNow(fault)
        | Interrupt::Held(fault)
        | Interrupt::Failed(fault)
        | Interrupt::Tainted(fault) => fault.to_string(),
    };
    sqlx::Error::Configuration(text.into())
}
