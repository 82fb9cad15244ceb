//! What is written of decisions that need no lease: rows of the trail, dead letters.

use std::sync::Arc;

use super::runner::Runner;
use crate::amqp::Delivery;
use crate::handler::lease::{Said, Statement};
use crate::outcome::Outcome;
use crate::pg;
use crate::worker::candidate::{Candidate, Known};
use crate::worker::interrupt::Interrupt;
use crate::worker::transaction::letters::{GivenUp, keep_letters};
use crate::worker::transaction::record::audit_record;
use crate::worker::transaction::without_handler::{audit_only, reject};

/// A delivery that does not run, as it is settled.
type NotRun = (Box<Delivery>, Known, Outcome);

impl Runner {
    /// Its letter alone: the trail has it. `None` where the worker stops first.
    pub(super) async fn keep_letter(&self, candidate: &Arc<Candidate>, outcome: Outcome) -> Option<Outcome> {
        let shared = Arc::clone(&self.shared);
        self.written("a dead letter is kept", || {
            let (shared, candidate) = (Arc::clone(&shared), Arc::clone(candidate));
            let mut outcome = outcome.clone();
            Box::new(move |session| {
                Box::pin(async move {
                    let now = session.clock.now();
                    let mut transaction = pg::begin(&mut session.connection).await?;
                    let given_up = vec![GivenUp::of(&candidate, &mut outcome)];
                    keep_letters(&shared, &mut transaction, now, Interrupt::of_ours, given_up)
                        .await
                        .map_err(interrupted)?;
                    transaction.commit().await?;
                    Ok(outcome)
                })
            })
        })
        .await
    }

    /// Its row in the trail. False where the worker stops first.
    pub(super) async fn list(&self, candidate: &Arc<Candidate>, outcome: &Outcome) -> bool {
        let shared = Arc::clone(&self.shared);
        let listed = self.written("a duplicate is listed", || {
            let (shared, candidate, outcome) = (Arc::clone(&shared), Arc::clone(candidate), outcome.clone());
            Box::new(move |session| {
                Box::pin(async move {
                    let record = audit_record(&candidate, &outcome);
                    audit_only(&shared, session, &[record]).await.map_err(interrupted)
                })
            })
        });
        listed.await.is_some()
    }

    /// Audit row and letter of what can't run. `None` where the worker stops first.
    pub(super) async fn note_rejected(&self, rejected: NotRun) -> Option<NotRun> {
        let shared = Arc::clone(&self.shared);
        self.written("a rejected message is recorded", || {
            let (shared, mut one) = (Arc::clone(&shared), [rejected.clone()]);
            Box::new(move |session| {
                Box::pin(async move {
                    reject(&shared, session, &mut one).await.map_err(interrupted)?;
                    let [one] = one;
                    Ok(one)
                })
            })
        })
        .await
    }

    /// Written, however long it takes: the message is not settled before. `None` where the worker stops first.
    async fn written<T: Send + 'static>(
        &self,
        what: &str,
        make: impl Fn() -> Statement<T, sqlx::Error>,
    ) -> Option<T> {
        match self.lines.own.say(&self.shared.stop, what, make).await {
            Ok(written) => Some(written),
            Err(said) => {
                if let Said::Fault(fault) = said {
                    self.shared.health.stalled(&fault, None);
                    tracing::error!(consumer = %self.shared.consumer.name, error = %fault, "{what}: it can't be; the message stays unacknowledged");
                }
                None
            }
        }
    }
}

/// All of them pass, or the message stays where it is.
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
