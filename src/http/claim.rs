//! The right to run a request, or what its key was answered with.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};

use super::problem::Problem;
use super::request::Asked;
use super::store::Store;
use super::stored::{http_of, opened};
use crate::decide::{EARLY, KeyDecision, KeyRecord, OnConflict, decide, wait};
use crate::failpoint::step;
use crate::fingerprint::{Fingerprint, Likeness};
use crate::pg::{self, RequestClaim, StoredAnswer};
use crate::reason::{Reason, Rejection};

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is left for later.
const ROUNDS: usize = 8;

/// When a client may ask again whose key ran under a lease that is over.
const AFTER_LEASE: Duration = Duration::from_secs(1);

/// What a claim says.
pub(super) enum Claimed {
    /// The key is this request's, in this transaction, since this moment; what follows there is its handler's.
    Run(Transaction<'static, Postgres>, DateTime<Utc>),
    /// It took effect before.
    Done(StoredAnswer),
    Refused(Problem),
    /// Another transaction has it.
    Locked,
}

/// Claims the key in a transaction of its own, unless it is known.
pub(super) async fn claim(store: &Store, asked: &Asked) -> Result<Claimed, sqlx::Error> {
    claim_in(pg::begin_request(&store.pool).await?, store, asked).await
}

/// The same in a transaction of [`begin_request`](pg::begin_request) in which nothing was said yet.
pub(super) async fn claim_in(
    mut transaction: Transaction<'static, Postgres>,
    store: &Store,
    asked: &Asked,
) -> Result<Claimed, sqlx::Error> {
    let Asked { identity, fingerprint, .. } = asked;
    for _ in 0..ROUNDS {
        let now = store.now();
        step("http.claim.before");
        let claimed = pg::claim_request(&mut transaction, identity, *fingerprint, now).await;
        step("http.claim.after");
        let (record, mut answer) = match claimed {
            Ok(RequestClaim::Won) => return Ok(Claimed::Run(transaction, now)),
            Ok(RequestClaim::Known(record, answer)) => (record, answer),
            Ok(RequestClaim::Unseen) => continue,
            Err(error) if pg::is_locked(&error) => {
                transaction.rollback().await?;
                return Ok(Claimed::Locked);
            }
            Err(error) => return Err(error),
        };
        let refused = match decide(&record, fingerprint.as_ref(), OnConflict::DeadLetter) {
            KeyDecision::Duplicate => {
                answer.response = answer.response.and_then(|response| opened(identity, response));
                if http_of(&answer).is_some() && !is_same(&record, fingerprint.as_ref()) {
                    Problem::key_reused()
                } else {
                    // Waits for a standby, where there is one.
                    transaction.commit().await?;
                    return Ok(Claimed::Done(answer));
                }
            }
            KeyDecision::Reject(rejection) => rejected(&rejection),
            // Its lease may be over: then a worker takes it over soon, and what that says decides.
            KeyDecision::Leased => Problem::in_flight(wait(&record, now).unwrap_or(AFTER_LEASE)),
            KeyDecision::Retake => match retake(store, &mut transaction, asked, &record).await? {
                Retaken::Yes(at) => return Ok(Claimed::Run(transaction, at)),
                Retaken::Wait(rest) => Problem::in_flight(rest),
                Retaken::No => continue,
                Retaken::Locked => {
                    transaction.rollback().await?;
                    return Ok(Claimed::Locked);
                }
            },
        };
        transaction.rollback().await?;
        return Ok(Claimed::Refused(refused));
    }
    transaction.rollback().await?;
    Ok(Claimed::Locked)
}

/// Is it certainly the request that came first? Of a message the key alone decides where policies differ; but an answer is told to somebody,
/// and prints of two policies say nothing of who asks for what.
fn is_same(record: &KeyRecord, fingerprint: Option<&Fingerprint>) -> bool {
    match (&record.fingerprint, fingerprint) {
        (Some(known), Some(new)) => known.compare(new) == Likeness::Same,
        // Both compare nothing.
        (None, None) => true,
        _ => false,
    }
}

enum Retaken {
    Yes(DateTime<Utc>),
    /// Its last failure, as a message, is to be waited for.
    Wait(Duration),
    /// Somebody else was faster.
    No,
    Locked,
}

/// A key that failed before, as a message.
async fn retake(
    store: &Store,
    transaction: &mut Transaction<'static, Postgres>,
    asked: &Asked,
    record: &KeyRecord,
) -> Result<Retaken, sqlx::Error> {
    let now = store.now();
    if let Some(rest) = wait(record, now) {
        return Ok(Retaken::Wait(rest));
    }
    match pg::retake_request(transaction, &asked.identity, asked.fingerprint, now, now + EARLY).await {
        Ok(true) => Ok(Retaken::Yes(now)),
        Ok(false) => Ok(Retaken::No),
        Err(error) if pg::is_locked(&error) => Ok(Retaken::Locked),
        Err(error) => Err(error),
    }
}

fn rejected(rejection: &Rejection) -> Problem {
    match rejection.reason {
        Reason::KeyConflict => Problem::key_reused(),
        reason => Problem::given_up(reason),
    }
}
