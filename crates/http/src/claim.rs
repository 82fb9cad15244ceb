//! Claims a request's key, or returns the stored answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};

use super::problem::ProblemDetails;
use super::request::RequestIdentity;
use super::store::Store;
use super::stored::{http_of, opened};
use oncely_core::decide::{EARLY, KeyDecision, KeyRecord, OnConflict, decide, wait};
use oncely_core::fingerprint::{Fingerprint, Likeness};
use oncely_core::reason::{Reason, Rejection};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, RequestClaim, StoredAnswer};

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is treated as locked.
const ROUNDS: usize = 8;

/// `Retry-After` for a key with a lease that is over.
const AFTER_LEASE: Duration = Duration::from_secs(1);

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

/// Claims the key in a transaction of its own, unless it is known.
pub(super) async fn claim(
    store: &Store,
    asked: &RequestIdentity,
) -> Result<RequestClaimOutcome, sqlx::Error> {
    claim_in(pg::begin_request(&store.pool).await?, store, asked).await
}

/// Claims the key in a transaction of [`begin_request`](pg::begin_request) that has run no statement yet.
pub(super) async fn claim_in(
    mut transaction: Transaction<'static, Postgres>,
    store: &Store,
    asked: &RequestIdentity,
) -> Result<RequestClaimOutcome, sqlx::Error> {
    let RequestIdentity { identity, fingerprint, .. } = asked;
    for _ in 0..ROUNDS {
        let now = store.now();
        step("http.claim.before");
        let claimed = pg::claim_request(&mut transaction, identity, *fingerprint, now).await;
        step("http.claim.after");
        let (record, mut answer) = match claimed {
            Ok(RequestClaim::Won) => return Ok(RequestClaimOutcome::Run(transaction, now)),
            Ok(RequestClaim::Known(record, answer)) => (record, answer),
            Ok(RequestClaim::Unseen) => continue,
            Err(error) if pg::is_locked(&error) => {
                transaction.rollback().await?;
                return Ok(RequestClaimOutcome::Locked);
            }
            Err(error) => return Err(error),
        };
        let refused = match decide(&record, fingerprint.as_ref(), OnConflict::DeadLetter) {
            KeyDecision::Duplicate => {
                answer.response = answer.response.and_then(|response| opened(identity, response));
                if http_of(&answer).is_some() && !is_same(&record, fingerprint.as_ref()) {
                    ProblemDetails::key_reused()
                } else {
                    // COMMIT waits for a synchronous standby, if there is one.
                    transaction.commit().await?;
                    return Ok(RequestClaimOutcome::Done(answer));
                }
            }
            KeyDecision::Reject(rejection) => rejected(&rejection),
            // If the lease is over, a worker takes the key over soon, and its result decides.
            KeyDecision::Leased => ProblemDetails::in_flight(wait(&record, now).unwrap_or(AFTER_LEASE)),
            KeyDecision::Retake => match retake(store, &mut transaction, asked, &record).await? {
                RetakeOutcome::Yes(at) => return Ok(RequestClaimOutcome::Run(transaction, at)),
                RetakeOutcome::Wait(rest) => ProblemDetails::in_flight(rest),
                RetakeOutcome::No => continue,
                RetakeOutcome::Locked => {
                    transaction.rollback().await?;
                    return Ok(RequestClaimOutcome::Locked);
                }
            },
        };
        transaction.rollback().await?;
        return Ok(RequestClaimOutcome::Refused(refused));
    }
    transaction.rollback().await?;
    Ok(RequestClaimOutcome::Locked)
}

/// Returns whether this is certainly the request that came first. For messages the key alone decides if the fingerprint policies differ.
/// Here the answer goes to a client, and fingerprints of two policies don't show that the same client asks for the same thing.
fn is_same(record: &KeyRecord, fingerprint: Option<&Fingerprint>) -> bool {
    match (&record.fingerprint, fingerprint) {
        (Some(known), Some(new)) => known.compare(new) == Likeness::Same,
        // Neither policy compares anything.
        (None, None) => true,
        _ => false,
    }
}

enum RetakeOutcome {
    Yes(DateTime<Utc>),
    /// The retry delay of its last failure, as a message, is not over.
    Wait(Duration),
    /// Another process took it over first.
    No,
    Locked,
}

/// Takes over a key that failed before, as a message.
async fn retake(
    store: &Store,
    transaction: &mut Transaction<'static, Postgres>,
    asked: &RequestIdentity,
    record: &KeyRecord,
) -> Result<RetakeOutcome, sqlx::Error> {
    let now = store.now();
    if let Some(rest) = wait(record, now) {
        return Ok(RetakeOutcome::Wait(rest));
    }
    match pg::retake_request(transaction, &asked.identity, asked.fingerprint, now, now + EARLY).await {
        Ok(true) => Ok(RetakeOutcome::Yes(now)),
        Ok(false) => Ok(RetakeOutcome::No),
        Err(error) if pg::is_locked(&error) => Ok(RetakeOutcome::Locked),
        Err(error) => Err(error),
    }
}

fn rejected(rejection: &Rejection) -> ProblemDetails {
    match rejection.reason {
        Reason::KeyConflict => ProblemDetails::key_reused(),
        reason => ProblemDetails::given_up(reason),
    }
}
