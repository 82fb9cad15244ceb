//! Claims a request's key, or returns the stored answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};

use super::problem::ProblemDetails;
use super::request::RequestIdentity;
use super::store::Store;
use super::stored::{find_http_answer, open_response};
use oncely_core::decide::{
    EARLY_TOLERANCE, KeyDecision, KeyRecord, OnConflict, decide_on_key, remaining_wait,
};
use oncely_core::fingerprint::{Fingerprint, Likeness};
use oncely_core::reason::{Reason, Rejection};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, RequestClaim, StoredAnswer};

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is treated as locked.
const MAX_ROUNDS: usize = 8;

/// `Retry-After` for a key with an expired lease.
const EXPIRED_LEASE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Result of a claim.
pub(super) enum RequestClaimOutcome {
    /// The key is claimed in this transaction, at this time; the handler writes in it.
    Run(Transaction<'static, Postgres>, DateTime<Utc>),
    /// The key took effect before.
    Done(StoredAnswer),
    Refused(ProblemDetails),
    /// Another transaction holds the key.
    Locked,
}

/// Claims the key of a request in a transaction of its own, unless the key is known.
pub(super) async fn claim(
    store: &Store,
    request: &RequestIdentity,
) -> Result<RequestClaimOutcome, sqlx::Error> {
    claim_in(pg::begin_request(&store.pool).await?, store, request).await
}

/// Claims the key in a transaction of [`begin_request`](pg::begin_request) that has run no statement yet.
pub(super) async fn claim_in(
    mut transaction: Transaction<'static, Postgres>,
    store: &Store,
    request: &RequestIdentity,
) -> Result<RequestClaimOutcome, sqlx::Error> {
    let RequestIdentity { identity, fingerprint, .. } = request;
    for _ in 0..MAX_ROUNDS {
        let now = store.now();
        step("http.claim.before");
        let outcome = pg::claim_request(&mut transaction, identity, *fingerprint, now).await;
        step("http.claim.after");
        let (record, mut answer) = match outcome {
            Ok(RequestClaim::Won) => return Ok(RequestClaimOutcome::Run(transaction, now)),
            Ok(RequestClaim::Known(record, answer)) => (record, answer),
            Ok(RequestClaim::Unseen) => continue,
            Err(error) if pg::is_locked(&error) => {
                transaction.rollback().await?;
                return Ok(RequestClaimOutcome::Locked);
            }
            Err(error) => return Err(error),
        };
        let problem = match decide_on_key(&record, fingerprint.as_ref(), OnConflict::DeadLetter) {
            KeyDecision::Duplicate => {
                answer.response = answer.response.and_then(|response| open_response(identity, response));
                if find_http_answer(&answer).is_some() && !is_same_request(&record, fingerprint.as_ref()) {
                    ProblemDetails::key_reused()
                } else {
                    // COMMIT waits for a synchronous standby, if there is one.
                    transaction.commit().await?;
                    return Ok(RequestClaimOutcome::Done(answer));
                }
            }
            KeyDecision::Reject(rejection) => build_rejection_problem(&rejection),
            // If the lease is over, a worker takes the key over soon, and its result decides.
            KeyDecision::Leased => {
                ProblemDetails::in_flight(remaining_wait(&record, now).unwrap_or(EXPIRED_LEASE_RETRY_AFTER))
            }
            KeyDecision::Retake => match retake(store, &mut transaction, request, &record).await? {
                RetakeOutcome::Retaken(at) => return Ok(RequestClaimOutcome::Run(transaction, at)),
                RetakeOutcome::Wait(delay) => ProblemDetails::in_flight(delay),
                RetakeOutcome::TakenByOther => continue,
                RetakeOutcome::Locked => {
                    transaction.rollback().await?;
                    return Ok(RequestClaimOutcome::Locked);
                }
            },
        };
        transaction.rollback().await?;
        return Ok(RequestClaimOutcome::Refused(problem));
    }
    transaction.rollback().await?;
    Ok(RequestClaimOutcome::Locked)
}

/// Returns whether this is certainly the request that came first. For messages the key alone decides if the fingerprint policies differ.
/// Here the answer goes to a client, and equal fingerprints under two policies don't show that it is the same client's request.
fn is_same_request(record: &KeyRecord, fingerprint: Option<&Fingerprint>) -> bool {
    match (&record.fingerprint, fingerprint) {
        (Some(known), Some(new)) => known.compare(new) == Likeness::Same,
        // Neither policy compares anything.
        (None, None) => true,
        _ => false,
    }
}

enum RetakeOutcome {
    /// The key is claimed by this transaction, at this time.
    Retaken(DateTime<Utc>),
    /// This time is left of the retry delay of its last failure, as a message.
    Wait(Duration),
    /// Another process took it over first.
    TakenByOther,
    Locked,
}

/// Takes over a key that failed before, as a message.
async fn retake(
    store: &Store,
    transaction: &mut Transaction<'static, Postgres>,
    request: &RequestIdentity,
    record: &KeyRecord,
) -> Result<RetakeOutcome, sqlx::Error> {
    let now = store.now();
    if let Some(delay) = remaining_wait(record, now) {
        return Ok(RetakeOutcome::Wait(delay));
    }
    match pg::retake_request(transaction, &request.identity, request.fingerprint, now, now + EARLY_TOLERANCE)
        .await
    {
        Ok(true) => Ok(RetakeOutcome::Retaken(now)),
        Ok(false) => Ok(RetakeOutcome::TakenByOther),
        Err(error) if pg::is_locked(&error) => Ok(RetakeOutcome::Locked),
        Err(error) => Err(error),
    }
}

/// Builds the problem for the rejection of a key.
fn build_rejection_problem(rejection: &Rejection) -> ProblemDetails {
    match rejection.reason {
        Reason::KeyConflict => ProblemDetails::key_reused(),
        reason => ProblemDetails::given_up(reason),
    }
}
