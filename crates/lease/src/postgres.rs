//! A lease store in PostgreSQL: calls the functions of the lease protocol, for a program without a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::check::{check_claim, check_failure, check_json, check_lease, check_step, check_step_name};
use super::claim::{Claim, ClaimOutcome, Grant};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome};
use super::sessions::{CheckoutError, SessionSource, TransactionSession};
use super::step::Step;
use super::store::{Facts, Failover, LeaseStore, StepStore, StoreClock};
use oncely_core::decide::KeyStatus;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;
use oncely_postgres::{
    self as pg, LastOutage, LeaseFailOutcome, LeaseFailure, LeaseTrace, PgFault, SessionPool,
};

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Remaining time that is reported for a key that another transaction has locked.
const LOCKED_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A store in the database with the schema `oncely`: it shares its keys with workers and `oncely.claim_lease`, with audit trail and mirror.
/// The pool's login needs the role `oncely_consumer` and the right to consume ([`look_up`](LeaseStore::look_up) also needs a role that may
/// read keys, such as `oncely_operator`).
///
/// Each statement commits by itself, and a task carries it to its end even if the caller is dropped. A statement not answered
/// within 30 s closes its connection, a renewal after a third of its lease. A connection that was returned to the pool inside a transaction
/// is closed, too. If the program stalls inside a transaction, the row stays locked for two seconds: then the server ends the session.
///
/// A statement that is not answered may be carried out later, when a server that stood still goes on. A claim then holds its key for the
/// length of a lease and counts as a crash; the other statements are fenced by the lease's token.
///
/// A store that could not reach the server takes over no key for the length of a lease: the holder could not renew, either.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    sessions: SessionSource,
    last_outage: LastOutage,
    /// Whether the last statement was not answered. Its session may have expired while idle; the next one shows.
    is_failing: Arc<AtomicBool>,
}

impl PostgresStore {
    /// Creates a store on this pool's connections, each used for a single transaction.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            sessions: SessionSource::Pool(pool),
            last_outage: LastOutage::default(),
            is_failing: Arc::default(),
        }
    }

    /// Creates a store on sessions of its own.
    #[doc(hidden)]
    pub fn from_sessions(sessions: SessionPool) -> Self {
        let last_outage = sessions.last_outage();
        Self { sessions: SessionSource::Own(sessions), last_outage, is_failing: Arc::default() }
    }

    /// Runs a statement, which is committed before it returns.
    async fn run_in_transaction<T: Send + 'static>(
        &self,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        self.run_in_transaction_within(ANSWER_TIMEOUT, statement).await
    }

    /// Runs a statement, which is committed, in a task that ends it even if the caller is dropped. Waits up to `limit` for the
    /// session and the answer. Repeated failures that affect all sessions are recorded as an outage.
    async fn run_in_transaction_within<T: Send + 'static>(
        &self,
        limit: Duration,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let sessions = self.sessions.clone();
        let result = tokio::spawn(async move {
            let until = Instant::now() + limit;
            let timeout_error = || {
                let text = format!("no answer within {limit:?}");
                sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
            };
            let mut session = sessions.take(until).await.map_err(|error| match error {
                CheckoutError::Postgres(error) => StatementFault::Postgres(error),
                CheckoutError::Timeout => StatementFault::Postgres(timeout_error()),
                CheckoutError::Other(other) => StatementFault::NoSession(other),
            })?;
            match timeout_at(until, run_committed(&mut session, statement)).await {
                Ok(Ok(value)) => {
                    session.give_back();
                    Ok(value)
                }
                // In an unknown state: the connection is closed.
                Ok(Err(error)) => {
                    session.end();
                    Err(StatementFault::Postgres(error))
                }
                Err(_) => {
                    session.end();
                    Err(StatementFault::Postgres(timeout_error()))
                }
            }
        });
        let result = result.await.unwrap_or(Err(StatementFault::Postgres(sqlx::Error::WorkerCrashed)));
        // If the server refuses this statement alone, other holders can renew.
        let is_failing = result.as_ref().is_err_and(StatementFault::affects_all_sessions);
        if self.is_failing.swap(is_failing, Ordering::Relaxed) && is_failing {
            self.last_outage.record();
        }
        match result {
            Ok(value) => value.map_err(to_store_error),
            Err(StatementFault::Postgres(error)) => Err(to_store_error(error)),
            Err(StatementFault::NoSession(error)) => Err(StoreError::unavailable(error)),
        }
    }
}

/// The reason why a statement was not committed, and its session not kept.
enum StatementFault {
    Postgres(sqlx::Error),
    NoSession(pg::NoSession),
}

impl StatementFault {
    fn affects_all_sessions(&self) -> bool {
        match self {
            Self::Postgres(error) => pg::affects_all_sessions(error),
            Self::NoSession(_) => true,
        }
    }
}

/// Runs a statement and commits. An inner error is a refusal by PostgreSQL that leaves the session usable.
async fn run_committed<T>(
    session: &mut TransactionSession,
    statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
) -> Result<Result<T, sqlx::Error>, sqlx::Error> {
    let is_refusal = |error: &sqlx::Error| error.as_database_error().is_some() && !pg::ends_session(error);
    let connection = match session {
        TransactionSession::Pool(connection) => connection,
        // No statement in it leaves a transaction open, so each commits by itself: one round trip, not three.
        TransactionSession::Own(session) => {
            return match statement(session.connection()).await {
                Err(error) if !is_refusal(&error) => Err(error),
                answer => Ok(answer),
            };
        }
    };
    let mut transaction = pg::begin_anew(connection).await?;
    match statement(&mut transaction).await {
        Ok(answer) => {
            transaction.commit().await?;
            Ok(Ok(answer))
        }
        Err(error) if is_refusal(&error) => {
            transaction.rollback().await?;
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

/// Classifies an error of a statement: a lost lease, a damaged record, no answer, or a refusal.
fn to_store_error(error: sqlx::Error) -> StoreError {
    if pg::is_lease_lost(&error) {
        return StoreError::Lost;
    }
    // Impossible answers: of another version, or of rows changed by hand.
    if matches!(error, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }) {
        return StoreError::Damaged(error.to_string());
    }
    match pg::classify(error) {
        PgFault::Outage(outage) => StoreError::unavailable(outage),
        PgFault::Fault(fault) => StoreError::from_fault(&fault),
    }
}

/// Builds the audit fields of a run without a queue, a worker and a trace.
fn build_empty_trace() -> LeaseTrace<'static> {
    LeaseTrace { queue: "", worker: "", trace_id: None }
}

fn to_count(value: Option<i32>) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}

impl StepStore for PostgresStore {
    async fn renew(&self, lease_ids: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        check_lease(lease)?;
        let lease_ids = lease_ids.to_vec();
        // A connection that does not answer must not cost the lease: there is time for another one.
        self.run_in_transaction_within(lease / 3, move |connection| {
            Box::pin(async move {
                let mut outcomes = Vec::with_capacity(lease_ids.len());
                for lease_id in &lease_ids {
                    let remaining = pg::renew_lease(connection, lease_id.as_row(), lease).await?;
                    outcomes.push(remaining.map_or(RenewOutcome::Lost, RenewOutcome::Until));
                }
                Ok(outcomes)
            })
        })
        .await
    }

    async fn begin_step(
        &self,
        lease_id: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let (lease_id, step) = (lease_id.clone(), *step);
        self.run_in_transaction(move |connection| {
            Box::pin(async move {
                let rule = step.repeat().rule();
                pg::begin_step(connection, lease_id.as_row(), step.name(), rule, call, lease).await
            })
        })
        .await
    }

    async fn checkpoint(
        &self,
        lease_id: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        check_json("result", result)?;
        let (lease_id, step, result) = (lease_id.clone(), step.to_owned(), result.clone());
        self.run_in_transaction(move |connection| {
            Box::pin(async move {
                pg::checkpoint(connection, lease_id.as_row(), &step, &result, false, lease).await
            })
        })
        .await
    }

    async fn refuse_step(
        &self,
        lease_id: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let (lease_id, step) = (lease_id.clone(), step.to_owned());
        self.run_in_transaction(move |connection| {
            Box::pin(async move {
                pg::refuse_step(connection, lease_id.as_row(), &step, refused, "refused", lease).await
            })
        })
        .await
    }
}

impl LeaseStore for PostgresStore {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::AsConfigured, clock: StoreClock::Server }
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        check_claim(claim)?;
        let (identity, digest, owner) = (claim.identity.clone(), claim.fingerprint, claim.owner.to_owned());
        let (time, max_run, retention, max_crashes) =
            (claim.lease, claim.max_run, claim.retention, claim.max_crashes);
        let may_take_over = !self.last_outage.is_within(time);
        let row = self
            .run_in_transaction(move |connection| {
                Box::pin(async move {
                    let claim = pg::ClientClaim {
                        identity: &identity,
                        digest: &digest,
                        owner: &owner,
                        time,
                        max_run,
                        retention,
                        max_crashes,
                        may_take_over,
                    };
                    match pg::claim_lease(connection, claim).await {
                        // Another transaction claims it, or is about to end its run.
                        Err(error) if pg::is_locked(&error) => Ok(None),
                        row => row.map(Some),
                    }
                })
            })
            .await?;
        let Some(row) = row else { return Ok(ClaimOutcome::InFlight(LOCKED_RETRY_DELAY)) };
        let missing = |what: &str| StoreError::Damaged(format!("a claim was answered without a {what}"));
        let delay = row.delay.unwrap_or_default();
        Ok(match row.outcome.as_str() {
            "granted" => ClaimOutcome::Granted(Grant {
                token: row.token.ok_or_else(|| missing("token"))?,
                attempt: to_count(row.attempt),
                is_takeover: row.taken_over.unwrap_or(false),
            }),
            "in_flight" => ClaimOutcome::InFlight(delay),
            "retry" => ClaimOutcome::Wait(delay),
            // Stored under another fingerprint policy: it is unknown whether this is the same request, so its response is not returned.
            "duplicate" if row.reason.is_some() => ClaimOutcome::Conflict,
            "duplicate" => ClaimOutcome::Done(row.response),
            "conflict" => ClaimOutcome::Conflict,
            "given_up" => ClaimOutcome::GivenUp {
                reason: row.reason.as_deref().and_then(Reason::from_code).ok_or_else(|| missing("reason"))?,
                detail: row.detail.unwrap_or_default(),
            },
            other => return Err(StoreError::Damaged(format!("a claim was answered {other:?}"))),
        })
    }

    async fn complete(&self, lease_id: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        response.map(|response| check_json("response", response)).transpose()?;
        let (lease_id, response) = (lease_id.clone(), response.cloned());
        self.run_in_transaction(move |connection| {
            Box::pin(async move {
                // Not for the mirror: there may be no relay, and copies that come as messages are found in PostgreSQL.
                let completion = pg::complete_lease(
                    connection,
                    lease_id.as_row(),
                    response.as_ref(),
                    false,
                    false,
                    build_empty_trace(),
                );
                completion.await.map(drop)
            })
        })
        .await
    }

    async fn fail(&self, lease_id: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        check_failure(failure)?;
        let (lease_id, error) = (lease_id.clone(), super::check::truncate_error(failure.error));
        let (reason, max_attempts, delay) = (failure.reason, failure.max_attempts, failure.delay);
        let outcome = self
            .run_in_transaction(move |connection| {
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &error,
                        reason,
                        error_code: None,
                        max_attempts,
                        delay,
                        is_charged: true,
                    };
                    pg::fail_lease(connection, lease_id.as_row(), &failure, build_empty_trace()).await
                })
            })
            .await?;
        Ok(match outcome {
            LeaseFailOutcome::Retry { attempts } => FailOutcome::Retry { attempts },
            LeaseFailOutcome::GivenUp { attempts, reason } => FailOutcome::GivenUp { attempts, reason },
            LeaseFailOutcome::Completed => FailOutcome::Completed,
            LeaseFailOutcome::Lost => FailOutcome::Lost,
        })
    }

    async fn release(&self, lease_id: &LeaseId) -> Result<bool, StoreError> {
        let lease_id = lease_id.clone();
        self.run_in_transaction(move |connection| {
            Box::pin(async move { pg::release_lease(connection, lease_id.as_row()).await })
        })
        .await
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let identity = identity.clone();
        let row = self
            .run_in_transaction(move |connection| {
                Box::pin(async move { pg::read_lease_state(connection, &identity).await })
            })
            .await?;
        row.map(|row| {
            Ok(KeySnapshot {
                status: KeyStatus::from_column(&row.status)
                    .ok_or_else(|| StoreError::Damaged(format!("no state is called {:?}", row.status)))?,
                owner: row.owner,
                token: row.token.unwrap_or(0),
                attempts: to_count(Some(row.attempts)),
                crashes: to_count(Some(row.crash_attempts)),
                reason: row.reason.as_deref().and_then(Reason::from_code),
                response: row.response,
            })
        })
        .transpose()
    }
}
