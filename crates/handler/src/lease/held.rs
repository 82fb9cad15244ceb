//! The lease of a message, as its handler uses it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::PgConnection;

use super::failed::{RunError, check_transaction};
use oncely_failpoint::step as at;
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{Call, GroupedStore, Repeat, Run, RunTrail, SessionReuse, Statement, Step, StepError};
use oncely_postgres as pg;

tokio::task_local! {
    /// Token of the lease that has opened the transaction around this task.
    static TRANSACTION_TOKEN: i64;
}

/// A key that this run holds. See [`LeasedHandler`](super::LeasedHandler).
#[derive(Clone)]
pub struct Lease {
    run: Run<GroupedStore>,
    /// Longest run, from its claim on: no renewal goes beyond.
    max_run: Duration,
    pub(super) trail: Arc<RunTrail>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Lease {
    #[doc(hidden)]
    pub fn new(run: Run<GroupedStore>, max_run: Duration, trail: Arc<RunTrail>) -> Self {
        Self { run, max_run, trail }
    }

    /// Returns the number of the lease: greater than that of every earlier lease of this key. A service that compares it refuses late calls
    /// of older runs.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.run.token()
    }

    /// Returns the number of this run, from 1; runs that ended without a report are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.run.attempt()
    }

    /// Returns whether an earlier run of the key crashed and none has reported since: its last step may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.run.is_takeover()
    }

    /// Waits until this run must end: another run has the key, `max_run` is over, or the worker stops. Two seconds later it is dropped. If
    /// another run has the key, a [step](Self::step) that is not repeated ([`Repeat::Never`](oncely_lease::Repeat), `Ask`) goes on without
    /// the message, within `max_run`, and its outcome is stored.
    pub async fn wait_until_lost(&self) {
        self.run.wait_until_lost().await;
    }

    /// Calls another system, unless an earlier run has done it, as [`Run::step`] does.
    ///
    /// # Errors
    /// If [`Run::step`] fails, or the call is made in a [transaction](Self::transaction) of this lease. The handler must return the error.
    pub async fn step<T, F, Fut>(&self, step: &Step, call: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        self.check_outside_transaction()?;
        self.run.step(step, call).await
    }

    /// Calls another system, or asks it whether an earlier call has happened, as [`Run::step_or_ask`] does.
    ///
    /// # Errors
    /// If [`Run::step_or_ask`] fails, or the call is made in a [transaction](Self::transaction) of this lease. The handler must return the
    /// error.
    pub async fn step_or_ask<T, A, AskFut, F, Fut>(
        &self,
        step: &Step,
        ask: A,
        call: F,
    ) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        A: FnOnce(Call) -> AskFut,
        AskFut: Future<Output = Result<Option<T>, HandlerError>> + Send,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        self.check_outside_transaction()?;
        self.run.step_or_ask(step, ask, call).await
    }

    /// Runs a step with an effect in PostgreSQL: the writes of `work` and its result are one commit, under the lease. An earlier run's
    /// result is returned, and nothing is written. `name` is the step's, 1 to 255 bytes.
    ///
    /// # Errors
    /// If `work` fails or exceeds `max_run`, PostgreSQL fails, or the lease is lost. If the answer to COMMIT is lost, the run fails, and
    /// the next one finds the result.
    pub async fn transaction<T, W>(&self, name: &'static str, work: W) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, HandlerError>> + Send + 'static,
    {
        let step = Step::new(name, Repeat::Always);
        let lease = self.clone();
        self.check_outside_transaction()?;
        let statement: Statement<Result<T, Value>, RunError> = Box::new(move |session| {
            Box::pin(async move {
                let (run, limit) = (&lease.run, lease.store().own.limit());
                let mut transaction = pg::wait_for_answer(limit, pg::begin(&mut session.connection)).await?;
                let stored = pg::read_step_result(&mut transaction, run.lease_id().as_row(), name);
                if let Some(result) = pg::wait_for_answer(limit, stored).await? {
                    pg::wait_for_answer(limit, transaction.rollback()).await?;
                    return Ok(Err(result));
                }
                let transaction_id =
                    pg::wait_for_answer(limit, pg::read_transaction_id(&mut transaction)).await?;
                pg::wait_for_answer(limit, pg::enter_handler(&mut transaction, pg::LockWait::Session))
                    .await?;
                let value = lease.run_within_max_run(work(&mut transaction)).await?;
                let result = run.encode_result(&step, &value)?;
                check_transaction(&mut transaction, &transaction_id).await?;
                let lease_id = run.lease_id().as_row();
                let checkpoint = pg::checkpoint(&mut transaction, lease_id, name, &result, true, run.lease());
                pg::wait_for_answer(limit, checkpoint).await?;
                at("lease.transaction.before");
                // Includes work that was deferred to COMMIT.
                transaction.commit().await?;
                at("lease.transaction.after");
                Ok(Ok(value))
            })
        });
        let outcome =
            self.store().writes.run_with_handler(SessionReuse::Close, self.transaction_limit(), statement);
        match outcome.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(result)) => self.run.decode_result(&step, result),
            Err(RunError::Handler(error)) => Err(error),
            Err(RunError::Own(error)) if pg::is_lease_lost(&error) => Err(self.run.give_up()),
            Err(RunError::Own(error)) => Err(HandlerError::Database(error)),
        }
    }

    /// Returns the run of the lease.
    #[doc(hidden)]
    pub fn run(&self) -> &Run<GroupedStore> {
        &self.run
    }

    pub(super) fn store(&self) -> &GroupedStore {
        self.run.store()
    }

    /// Returns the time limit of a handler's own transaction, including the statements of this crate in it.
    pub(super) fn transaction_limit(&self) -> Duration {
        self.max_run + self.store().own.limit().saturating_mul(4)
    }

    /// Runs a handler's work in its transaction, for `max_run` at most.
    pub(super) async fn run_within_max_run<T>(
        &self,
        work: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, HandlerError> {
        let limit = self.max_run;
        match tokio::time::timeout(limit, TRANSACTION_TOKEN.scope(self.token(), work)).await {
            Ok(result) => result,
            Err(_) => Err(HandlerError::transient(format!(
                "a transaction of the handler took longer than {limit:?} (consumers.lease.max_run)"
            ))),
        }
    }

    /// Refuses a step in a transaction of the same lease: it would wait for the row that the transaction holds, and the transaction for it.
    fn check_outside_transaction(&self) -> Result<(), HandlerError> {
        match TRANSACTION_TOKEN.try_with(|token| *token == self.token()) {
            Ok(true) => Err(HandlerError::permanent(
                "a step was begun inside a transaction of its own lease: begin it before the transaction, or after it",
            )),
            Ok(false) | Err(_) => Ok(()),
        }
    }
}
