//! Calls the functions of `oncely`'s lease protocol for a worker. Each statement commits by itself and may be retried after a lost reply.
//! Claims, renewals and completions handle many keys at once.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::tenant_groups::group_by_placement;
use oncely_core::decide::OnConflict;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::reason::{Reason, Rejection};

/// The arguments of a claim.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClaim<'a> {
    pub identity: &'a Identity,
    pub fingerprint: Option<&'a Fingerprint>,
    /// Unique for each acquisition.
    pub owner: &'a str,
    pub time: Duration,
    pub max_run: Duration,
    pub on_conflict: OnConflict,
    pub max_crashes: u32,
    pub queue: &'a str,
    pub worker: &'a str,
    pub trace_id: Option<&'a str>,
    /// Whether it may take over a key with an expired lease. In a group it applies to all claims.
    pub may_take_over: bool,
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseClaimOutcome {
    /// The key could not be read: another transaction has it locked, or the statement was refused.
    Locked,
    Granted(GrantedLease),
    /// Another run holds the key, for at most this time.
    InFlight(Duration),
    /// The delay of a failed run has this time left.
    Wait(Duration),
    Duplicate,
    /// The message must not run. `attempt` is set if this same claim gave the key up and recorded it.
    Reject {
        rejection: Rejection,
        attempt: Option<u32>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct GrantedLease {
    pub token: i64,
    pub attempt: u32,
    /// Number of crashed runs of the key since the last report.
    pub crashes: u32,
}

/// A lease of a key.
#[derive(Clone, Copy, Debug)]
pub struct LeaseIdRef<'a> {
    pub identity: &'a Identity,
    pub token: i64,
}

pub(super) fn to_interval(time: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX) }
}

/// Converts an interval to a duration, with months of 30 days: Oncely's intervals contain none. Negative ones become zero.
pub(super) fn to_duration(interval: PgInterval) -> Duration {
    let days = i64::from(interval.days).saturating_add(i64::from(interval.months).saturating_mul(30));
    let micros = interval.microseconds.saturating_add(days.saturating_mul(86_400_000_000));
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A row of `oncely.take_leases`.
struct TakeLeasesRow {
    place: i64,
    outcome: String,
    token: Option<i64>,
    attempt: Option<i32>,
    crashes: i32,
    delay: Option<PgInterval>,
    reason: Option<String>,
    detail: Option<String>,
}

/// Claims keys of one consumer under leases: all of them, or none. The outcomes are in the order of the claims.
pub async fn take_leases(
    connection: &mut PgConnection,
    claims: &[LeaseClaim<'_>],
) -> sqlx::Result<Vec<LeaseClaimOutcome>> {
    let Some(first) = claims.first() else { return Ok(Vec::new()) };
    let on_conflict = match first.on_conflict {
        OnConflict::DeadLetter => "dead_letter",
        OnConflict::Duplicate => "duplicate",
    };
    // In the same order in every process, so that two processes claiming the same keys can't deadlock.
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&index| (&claims[index].identity.tenant, &claims[index].identity.key));
    let sorted: Vec<&LeaseClaim<'_>> = order.iter().map(|&index| &claims[index]).collect();
    let texts = |text: fn(&LeaseClaim<'_>) -> String| -> Vec<String> {
        sorted.iter().map(|claim| text(claim)).collect()
    };
    let prints: Vec<Option<Vec<u8>>> =
        sorted.iter().map(|claim| claim.fingerprint.map(|print| print.0.to_vec())).collect();
    let traces: Vec<Option<String>> = sorted.iter().map(|claim| claim.trace_id.map(str::to_owned)).collect();
    let rows = sqlx::query_as!(
        TakeLeasesRow,
        r#"select place as "place!", outcome as "outcome!", token, attempt, crashes as "crashes!", delay, reason, detail
         from oncely.take_leases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"#,
        &texts(|claim| claim.identity.tenant.as_str().to_owned()),
        first.identity.consumer.as_str(),
        &texts(|claim| claim.identity.key.as_str().to_owned()),
        &prints as &[Option<Vec<u8>>],
        &texts(|claim| claim.owner.to_owned()),
        to_interval(first.time),
        to_interval(first.max_run),
        on_conflict,
        i32::try_from(first.max_crashes).unwrap_or(i32::MAX),
        &texts(|claim| claim.queue.to_owned()),
        first.worker,
        &traces as &[Option<String>],
        claims.iter().all(|claim| claim.may_take_over)
    )
    .fetch_all(connection)
    .await?;
    let mut outcomes: Vec<Option<LeaseClaimOutcome>> = vec![None; claims.len()];
    for row in rows {
        let index = claim_index(row.place, &order)?;
        outcomes[index] = Some(row.into_outcome()?);
    }
    outcomes.into_iter().map(|outcome| outcome.ok_or_else(build_missing_row_error)).collect()
}

/// Returns the index of the claim for the row at this position, counted from 1.
fn claim_index(position: i64, order: &[usize]) -> sqlx::Result<usize> {
    let index = usize::try_from(position).ok().and_then(|position| position.checked_sub(1));
    index.and_then(|index| order.get(index)).copied().ok_or_else(build_missing_row_error)
}

/// Returns the error for a claim or a renewal without a row in the result.
fn build_missing_row_error() -> sqlx::Error {
    sqlx::Error::Decode("a function of oncely left something unanswered".into())
}

impl TakeLeasesRow {
    /// Converts a row to the outcome of a claim.
    fn into_outcome(self) -> sqlx::Result<LeaseClaimOutcome> {
        let missing = |column: &str| {
            sqlx::Error::Decode(format!("oncely.take_leases answered without a {column}").into())
        };
        Ok(match self.outcome.as_str() {
            "granted" => LeaseClaimOutcome::Granted(GrantedLease {
                token: self.token.ok_or_else(|| missing("token"))?,
                attempt: u32::try_from(self.attempt.unwrap_or(1)).unwrap_or(1),
                crashes: u32::try_from(self.crashes).unwrap_or(0),
            }),
            "in_flight" => LeaseClaimOutcome::InFlight(self.delay.map(to_duration).unwrap_or_default()),
            "retry" => LeaseClaimOutcome::Wait(self.delay.map(to_duration).unwrap_or_default()),
            "duplicate" => LeaseClaimOutcome::Duplicate,
            "conflict" | "given_up" => {
                let reason = self.reason.as_deref().and_then(Reason::from_code);
                let rejection = Rejection::new(
                    reason.unwrap_or(Reason::AttemptsExhausted),
                    self.detail.unwrap_or_default(),
                );
                LeaseClaimOutcome::Reject {
                    rejection,
                    attempt: self.attempt.and_then(|attempt| u32::try_from(attempt).ok()),
                }
            }
            other => {
                return Err(sqlx::Error::Decode(format!("oncely.take_leases answered {other:?}").into()));
            }
        })
    }
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease is held for this time.
    Until(Duration),
    /// The lease is held, but was not extended: another transaction is working on the key. The next renewal shows more.
    Locked,
    /// Another run holds the key, this run's time is over, or it has ended.
    Lost,
}

/// Extends leases of one consumer. The outcomes are in the order of the leases.
pub async fn renew_leases(
    connection: &mut PgConnection,
    leases: &[LeaseIdRef<'_>],
    time: Duration,
) -> sqlx::Result<Vec<RenewOutcome>> {
    let Some(first) = leases.first() else { return Ok(Vec::new()) };
    let placed: Vec<(usize, &LeaseIdRef<'_>)> = leases.iter().enumerate().collect();
    let mut renewals = vec![None; leases.len()];
    for group in group_by_placement(connection, &placed, |(_, lease)| lease.identity.tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|(_, lease)| lease.identity.tenant.as_str()).collect();
        let keys: Vec<&str> = group.iter().map(|(_, lease)| lease.identity.key.as_str()).collect();
        let tokens: Vec<i64> = group.iter().map(|(_, lease)| lease.token).collect();
        let rows = sqlx::query!(
            r#"select place as "place!", remaining, is_held as "is_held!"
             from oncely.renew_leases($1, $2, $3, $4, $5)"#,
            &tenants as &[&str],
            first.identity.consumer.as_str(),
            &keys as &[&str],
            &tokens,
            to_interval(time)
        )
        .fetch_all(&mut *connection)
        .await?;
        let order: Vec<usize> = group.iter().map(|(place, _)| *place).collect();
        for row in rows {
            renewals[claim_index(row.place, &order)?] = Some(match row.remaining {
                Some(left) => RenewOutcome::Until(to_duration(left)),
                None if row.is_held => RenewOutcome::Locked,
                None => RenewOutcome::Lost,
            });
        }
    }
    renewals.into_iter().map(|renewal| renewal.ok_or_else(build_missing_row_error)).collect()
}

/// Whether a step may be called.
#[derive(Clone, Debug, PartialEq)]
pub enum StepState {
    /// Call it.
    Run,
    /// An earlier call may have happened, and the step's rule allows a repetition with the same key: call it.
    Repeat,
    /// It was done, with this result: don't call it.
    Done(Value),
    /// It may have happened and must not be repeated: query the other side, or give up.
    Unknown,
}

/// The state of a step that begins.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunStep {
    /// Whether it may be called.
    pub state: StepState,
    /// The key for the other side (`Call::key`).
    pub call_key: Uuid,
    /// The number of certain refusals.
    pub round: u32,
}

/// A call of a step that certainly did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedCall {
    /// The call of this round.
    Round(u32),
    /// The call with this id, for which the step may have begun: the reply was lost, so no call was made.
    Begun(Uuid),
}

/// Records that a step is about to be called. `call` identifies the call.
pub async fn begin_step(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    step: &str,
    (repeat, window): (&str, Option<Duration>),
    call: Uuid,
    time: Duration,
) -> sqlx::Result<BegunStep> {
    let row = sqlx::query!(
        r#"select state as "state!", result, call_key as "call_key!", round as "round!"
         from oncely.begin_step($1, $2, $3, $4, $5, $6, $7, $8, $9)"#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        step,
        repeat,
        window.map(to_interval),
        call,
        to_interval(time)
    )
    .fetch_one(connection)
    .await?;
    let state = match row.state.as_str() {
        "run" => StepState::Run,
        "repeat" => StepState::Repeat,
        "done" => StepState::Done(row.result.unwrap_or_default()),
        "unknown" => StepState::Unknown,
        other => return Err(sqlx::Error::Decode(format!("oncely.begin_step answered {other:?}").into())),
    };
    Ok(BegunStep { state, call_key: row.call_key, round: u32::try_from(row.round).unwrap_or(u32::MAX) })
}

/// Stores the result of a step, and extends the lease by `time`. `in_transaction`: the step's effect is in the caller's transaction.
pub async fn checkpoint(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    step: &str,
    result: &Value,
    in_transaction: bool,
    time: Duration,
) -> sqlx::Result<()> {
    sqlx::query!(
        "select oncely.checkpoint($1, $2, $3, $4, $5, $6, $7, $8)",
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        step,
        result,
        in_transaction,
        to_interval(time)
    )
    .execute(connection)
    .await
    .map(drop)
}

/// Reads the result of a finished step; `None` if the step is not finished.
pub async fn read_step_result(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    step: &str,
) -> sqlx::Result<Option<Value>> {
    let row = sqlx::query!(
        r#"select i.steps -> $4 ->> 'state' = 'done' as is_done, i.steps -> $4 -> 'result' as result
         from oncely.idempotency_keys as i
         where i.tenant = $1 and i.consumer = $2 and i.key = $3"#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        step
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.filter(|row| row.is_done == Some(true)).map(|row| row.result.unwrap_or_default()))
}

/// Records that a call of a step certainly did not happen; returns the next round.
pub async fn refuse_step(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    step: &str,
    refused: RefusedCall,
    error: &str,
    time: Duration,
) -> sqlx::Result<u32> {
    let (round, call) = match refused {
        RefusedCall::Round(round) => (Some(i32::try_from(round).unwrap_or(i32::MAX)), None),
        RefusedCall::Begun(call) => (None, Some(call)),
    };
    let round = sqlx::query_scalar!(
        r#"select oncely.refuse_step($1, $2, $3, $4, $5, $6, $7, $8, $9) as "round!""#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        step,
        error,
        round,
        to_interval(time),
        call
    )
    .fetch_one(connection)
    .await?;
    Ok(u32::try_from(round).unwrap_or(u32::MAX))
}

/// Audit fields of a run.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTrace<'a> {
    pub queue: &'a str,
    pub worker: &'a str,
    pub trace_id: Option<&'a str>,
}

/// Completes a held key, as the first statement in the caller's transaction. `is_mirrored`: a relay takes the record left for the mirror;
/// without a relay the record would keep all younger keys from collection. Returns false if an earlier transaction of this lease has
/// completed the key: nothing may be written.
pub async fn complete_lease(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    response: Option<&Value>,
    refused: bool,
    is_mirrored: bool,
    trace: LeaseTrace<'_>,
) -> sqlx::Result<bool> {
    let outcome = sqlx::query_scalar!(
        r#"select oncely.complete_lease($1, $2, $3, $4, $5, $6, $7, $8, $10, $9) as "outcome!""#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        response,
        trace.queue,
        trace.worker,
        trace.trace_id,
        refused,
        is_mirrored
    )
    .fetch_one(connection)
    .await?;
    Ok(outcome == "completed")
}

/// A finished run that writes nothing in PostgreSQL itself.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCompletion<'a> {
    pub lease: LeaseIdRef<'a>,
    pub response: Option<&'a Value>,
    pub refused: bool,
    pub trace: LeaseTrace<'a>,
}

/// Completes keys of one consumer: all of them, or none. Keys that an earlier transaction of their lease has completed count as done.
/// `tags` are the mirror tags of all keys, concatenated.
pub async fn complete_leases(
    connection: &mut PgConnection,
    finished: &[LeaseCompletion<'_>],
    tags: Option<&[u8]>,
) -> sqlx::Result<()> {
    let Some(first) = finished.first() else { return Ok(()) };
    let mut sorted: Vec<&LeaseCompletion<'_>> = finished.iter().collect();
    sorted.sort_by_key(|one| (&one.lease.identity.tenant, &one.lease.identity.key));
    let texts = |text: fn(&LeaseCompletion<'_>) -> String| -> Vec<String> {
        sorted.iter().map(|one| text(one)).collect()
    };
    let tokens: Vec<i64> = sorted.iter().map(|one| one.lease.token).collect();
    let responses: Vec<Option<Value>> = sorted.iter().map(|one| one.response.cloned()).collect();
    let refused: Vec<bool> = sorted.iter().map(|one| one.refused).collect();
    let traces: Vec<Option<String>> =
        sorted.iter().map(|one| one.trace.trace_id.map(str::to_owned)).collect();
    sqlx::query!(
        "select outcome from oncely.complete_leases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &texts(|one| one.lease.identity.tenant.as_str().to_owned()),
        first.lease.identity.consumer.as_str(),
        &texts(|one| one.lease.identity.key.as_str().to_owned()),
        &tokens,
        &responses as &[Option<Value>],
        &refused,
        &texts(|one| one.trace.queue.to_owned()),
        first.trace.worker,
        &traces as &[Option<String>],
        tags
    )
    .fetch_all(connection)
    .await
    .map(drop)
}

#[derive(Clone, Copy, Debug)]
pub struct LeaseFailure<'a> {
    pub error: &'a str,
    /// If set, the key is given up at once with this reason.
    pub reason: Option<Reason>,
    pub error_code: Option<&'a str>,
    pub max_attempts: u32,
    /// Delay of the copy that comes back.
    pub delay: Duration,
    /// Whether an attempt is counted even if the SQLSTATE is one of the environment.
    pub is_charged: bool,
}

/// The result of reporting a failed run.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseFailOutcome {
    Retry {
        attempts: u32,
    },
    GivenUp {
        attempts: u32,
        reason: Reason,
    },
    /// This same run has completed the key.
    Completed,
    /// Another run holds the key.
    Lost,
}

/// Records the failure of a run.
pub async fn fail_lease(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    failure: &LeaseFailure<'_>,
    trace: LeaseTrace<'_>,
) -> sqlx::Result<LeaseFailOutcome> {
    let row = sqlx::query!(
        r#"select outcome as "outcome!", attempts as "attempts!", final_reason
         from oncely.fail_lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        failure.error,
        failure.reason.map(Reason::as_str),
        failure.error_code,
        i32::try_from(failure.max_attempts).unwrap_or(i32::MAX),
        to_interval(failure.delay),
        trace.queue,
        trace.worker,
        trace.trace_id,
        failure.is_charged
    )
    .fetch_one(connection)
    .await?;
    let attempts = u32::try_from(row.attempts).unwrap_or(0);
    Ok(match row.outcome.as_str() {
        "retry" => LeaseFailOutcome::Retry { attempts },
        "given_up" => {
            let reason = row.final_reason.as_deref().and_then(Reason::from_code);
            LeaseFailOutcome::GivenUp { attempts, reason: reason.unwrap_or(Reason::AttemptsExhausted) }
        }
        "duplicate" => LeaseFailOutcome::Completed,
        "lost" => LeaseFailOutcome::Lost,
        other => return Err(sqlx::Error::Decode(format!("oncely.fail_lease answered {other:?}").into())),
    })
}

/// Releases a held key; nothing is counted. Returns false if the lease is lost.
pub async fn release_lease(connection: &mut PgConnection, lease: LeaseIdRef<'_>) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select oncely.release_lease($1, $2, $3, $4) as "released!""#,
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token
    )
    .fetch_one(connection)
    .await
}

/// Reads the number of the open transaction.
pub async fn read_transaction_id(connection: &mut PgConnection) -> sqlx::Result<String> {
    sqlx::query_scalar!(r#"select pg_catalog.pg_current_xact_id()::pg_catalog.text as "id!""#)
        .fetch_one(connection)
        .await
}

/// Returns whether PostgreSQL reports the lease as lost.
pub fn is_lease_lost(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("ONC18")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        for time in [Duration::ZERO, Duration::from_millis(1_500), Duration::from_secs(86_400 * 40)] {
            assert_eq!(to_duration(to_interval(time)), time);
        }
        let negative = PgInterval { months: 0, days: 0, microseconds: -5 };
        assert_eq!(to_duration(negative), Duration::ZERO, "over already");
    }
}
