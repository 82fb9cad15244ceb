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
use super::sessions::{CheckoutError, SessionSource};
use super::step::Step;
use super::store::{Facts, Failover, LeaseStore, StepStore, StoreClock};
use oncely_core::decide::KeyStatus;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;
use oncely_postgres::{
    self as pg, LastOutage, LeaseFailOutcome, LeaseFailure, LeaseTrace, PgFault, SessionPool,
};

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Time after which to ask again for a key that another transaction has locked.
const LOCKED: Duration = Duration::from_secs(1);

/// A store in the database with the schema `oncely`: it shares its keys with workers and `oncely.claim_lease`, with audit trail and mirror.
/// The pool's login needs the role `oncely_consumer` and the right to consume ([`look_up`](LeaseStore::look_up) also needs a role that may
/// read keys, such as `oncely_operator`).
///
/// Each statement has a transaction of its own, which a task carries to its end even if the caller is dropped. A statement not answered
/// within 30 s closes its connection, a renewal after a third of its lease. A connection that was returned to the pool inside a transaction
/// is closed, too. If the program stalls inside a transaction, the row stays locked for two seconds: then the server ends the session.
///
/// A store that could not reach the server takes over no key for the length of a lease: the holder could not renew, either.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    sessions: SessionSource,
    away: LastOutage,
    /// Whether the last statement was not answered. Its session may have expired while idle; the next one shows.
    is_failing: Arc<AtomicBool>,
}

impl PostgresStore {
    /// Returns a store on this pool's connections, each used for a single transaction.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { sessions: SessionSource::Pool(pool), away: LastOutage::default(), is_failing: Arc::default() }
    }

    /// Returns a store on sessions of its own.
    #[doc(hidden)]
    pub fn of_sessions(sessions: SessionPool) -> Self {
        let away = sessions.last_outage();
        Self { sessions: SessionSource::Own(sessions), away, is_failing: Arc::default() }
    }

    /// Runs a statement in a transaction of its own, which is committed before it returns.
    async fn in_transaction<T: Send + 'static>(
        &self,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        self.in_transaction_within(LIMIT, statement).await
    }

    async fn in_transaction_within<T: Send + 'static>(
        &self,
        limit: Duration,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let sessions = self.sessions.clone();
        let said = tokio::spawn(async move {
            let until = Instant::now() + limit;
            let silent = || {
                let text = format!("no answer within {limit:?}");
                sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
            };
            let mut out = sessions.take(until).await.map_err(|none| match none {
                CheckoutError::Postgres(error) => StatementFault::Postgres(error),
                CheckoutError::Silent => StatementFault::Postgres(silent()),
                CheckoutError::Other(other) => StatementFault::NoSession(other),
            })?;
            match timeout_at(until, committed(out.connection(), statement)).await {
                Ok(Ok(answer)) => {
                    out.give_back();
                    Ok(answer)
                }
                // In an unknown state: the connection is closed.
                Ok(Err(error)) => {
                    out.end();
                    Err(StatementFault::Postgres(error))
                }
                Err(_) => {
                    out.end();
                    Err(StatementFault::Postgres(silent()))
                }
            }
        });
        let said = said.await.unwrap_or(Err(StatementFault::Postgres(sqlx::Error::WorkerCrashed)));
        // If the server refuses this statement alone, other holders can renew.
        let is_failing = said.as_ref().is_err_and(StatementFault::affects_all_sessions);
        if self.is_failing.swap(is_failing, Ordering::Relaxed) && is_failing {
            self.away.note();
        }
        match said {
            Ok(answer) => answer.map_err(store_error),
            Err(StatementFault::Postgres(error)) => Err(store_error(error)),
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
async fn committed<T>(
    connection: &mut PgConnection,
    statement: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
) -> Result<Result<T, sqlx::Error>, sqlx::Error> {
    let mut transaction = pg::begin_anew(connection).await?;
    match statement(&mut transaction).await {
        Ok(answer) => {
            transaction.commit().await?;
            Ok(Ok(answer))
        }
        Err(error) if error.as_database_error().is_some() && !pg::is_outage(&error) => {
            transaction.rollback().await?;
            Ok(Err(error))
        }
        Err(error) => Err(error),
    }
}

fn store_error(error: sqlx::Error) -> StoreError {
    if pg::is_lease_lost(&error) {
        return StoreError::Lost;
    }
    // Impossible answers: of another version, or of rows changed by hand.
    if matches!(error, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }) {
        return StoreError::Damaged(error.to_string());
    }
    match pg::classify(error) {
        PgFault::Outage(outage) => StoreError::unavailable(outage),
        PgFault::Fault(fault) => StoreError::of_fault(&fault),
    }
}

fn trace() -> LeaseTrace<'static> {
    LeaseTrace { queue: "", worker: "", trace_id: None }
}

fn number(given: Option<i32>) -> u32 {
    given.and_then(|given| u32::try_from(given).ok()).unwrap_or(0)
}

impl StepStore for PostgresStore {
    async fn renew(&self, held: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        check_lease(lease)?;
        let held = held.to_vec();
        // A connection that does not answer must not cost the lease: there is time for another one.
        self.in_transaction_within(lease / 3, move |connection| {
            Box::pin(async move {
                let mut renewed = Vec::with_capacity(held.len());
                for held in &held {
                    let left = pg::renew_lease(connection, held.as_row(), lease).await?;
                    renewed.push(left.map_or(RenewOutcome::Lost, RenewOutcome::Until));
                }
                Ok(renewed)
            })
        })
        .await
    }

    async fn begin_step(
        &self,
        held: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let (held, step) = (held.clone(), *step);
        self.in_transaction(move |connection| {
            Box::pin(async move {
                let rule = step.repeat().rule();
                pg::begin_step(connection, held.as_row(), step.name(), rule, call, lease).await
            })
        })
        .await
    }

    async fn checkpoint(
        &self,
        held: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        check_json("result", result)?;
        let (held, step, result) = (held.clone(), step.to_owned(), result.clone());
        self.in_transaction(move |connection| {
            Box::pin(
                async move { pg::checkpoint(connection, held.as_row(), &step, &result, false, lease).await },
            )
        })
        .await
    }

    async fn refuse_step(
        &self,
        held: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let (held, step) = (held.clone(), step.to_owned());
        self.in_transaction(move |connection| {
            Box::pin(async move {
                pg::refuse_step(connection, held.as_row(), &step, refused, "refused", lease).await
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
        let may_take_over = !self.away.is_within(time);
        let claimed = self
            .in_transaction(move |connection| {
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
                        claimed => claimed.map(Some),
                    }
                })
            })
            .await?;
        let Some(answer) = claimed else { return Ok(ClaimOutcome::InFlight(LOCKED)) };
        let missing = |what: &str| StoreError::Damaged(format!("a claim was answered without a {what}"));
        let delay = answer.delay.unwrap_or_default();
        Ok(match answer.outcome.as_str() {
            "granted" => ClaimOutcome::Granted(Grant {
                token: answer.token.ok_or_else(|| missing("token"))?,
                attempt: number(answer.attempt),
                is_takeover: answer.taken_over.unwrap_or(false),
            }),
            "in_flight" => ClaimOutcome::InFlight(delay),
            "retry" => ClaimOutcome::Wait(delay),
            // Stored under another fingerprint policy: it is unknown whether this is the same request, so its response is not returned.
            "duplicate" if answer.reason.is_some() => ClaimOutcome::Conflict,
            "duplicate" => ClaimOutcome::Done(answer.response),
            "conflict" => ClaimOutcome::Conflict,
            "given_up" => ClaimOutcome::GivenUp {
                reason: answer
                    .reason
                    .as_deref()
                    .and_then(Reason::from_code)
                    .ok_or_else(|| missing("reason"))?,
                detail: answer.detail.unwrap_or_default(),
            },
            other => return Err(StoreError::Damaged(format!("a claim was answered {other:?}"))),
        })
    }

    async fn complete(&self, held: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        response.map(|response| check_json("response", response)).transpose()?;
        let (held, response) = (held.clone(), response.cloned());
        self.in_transaction(move |connection| {
            Box::pin(async move {
                // Not for the mirror: there may be no relay, and copies that come as messages are found in PostgreSQL.
                let done =
                    pg::complete_lease(connection, held.as_row(), response.as_ref(), false, false, trace());
                done.await.map(drop)
            })
        })
        .await
    }

    async fn fail(&self, held: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        check_failure(failure)?;
        let (held, error) = (held.clone(), super::check::stored_error(failure.error));
        let (reason, max_attempts, delay) = (failure.reason, failure.max_attempts, failure.delay);
        let failed = self
            .in_transaction(move |connection| {
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &error,
                        reason,
                        error_code: None,
                        max_attempts,
                        delay,
                        is_charged: true,
                    };
                    pg::fail_lease(connection, held.as_row(), &failure, trace()).await
                })
            })
            .await?;
        Ok(match failed {
            LeaseFailOutcome::Retry { attempts } => FailOutcome::Retry { attempts },
            LeaseFailOutcome::GivenUp { attempts, reason } => FailOutcome::GivenUp { attempts, reason },
            LeaseFailOutcome::Completed => FailOutcome::Completed,
            LeaseFailOutcome::Lost => FailOutcome::Lost,
        })
    }

    async fn release(&self, held: &LeaseId) -> Result<bool, StoreError> {
        let held = held.clone();
        self.in_transaction(move |connection| {
            Box::pin(async move { pg::release_lease(connection, held.as_row()).await })
        })
        .await
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let identity = identity.clone();
        let row = self
            .in_transaction(move |connection| {
                Box::pin(async move { pg::known_lease(connection, &identity).await })
            })
            .await?;
        row.map(|row| {
            Ok(KeySnapshot {
                status: KeyStatus::from_column(&row.status)
                    .ok_or_else(|| StoreError::Damaged(format!("no state is called {:?}", row.status)))?,
                owner: row.owner,
                token: row.token.unwrap_or(0),
                attempts: number(Some(row.attempts)),
                crashes: number(Some(row.crash_attempts)),
                reason: row.reason.as_deref().and_then(Reason::from_code),
                response: row.response,
            })
        })
        .transpose()
    }
}
