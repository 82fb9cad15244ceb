//! The right to run a request, or what its key was answered with.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};

use super::problem::{Kind, Problem};
use super::request::Asked;
use super::store::Store;
use super::stored::is_open;
use crate::decide::{EARLY, KeyDecision, KeyRecord, OnConflict, decide, wait};
use crate::failpoint::step;
use crate::pg::{self, StoredAnswer};
use crate::reason::{Reason, Rejection};

/// Rounds of claim and look-up before a key that keeps appearing and disappearing is left for later.
const ROUNDS: usize = 8;

/// What a claim says.
pub(super) enum Claimed {
    /// The key is this request's, in this transaction, since this moment.
    Run(Transaction<'static, Postgres>, DateTime<Utc>),
    /// It took effect before.
    Done(StoredAnswer),
    Refused(Problem),
    /// Another transaction has it.
    Locked,
}

/// Claims the key, unless it is known.
pub(super) async fn claim(store: &Store, asked: &Asked) -> Result<Claimed, sqlx::Error> {
    let Asked { identity, fingerprint, .. } = asked;
    let consumer = &identity.consumer;
    let mut transaction = pg::begin_on_pool(&store.pool).await?;
    for _ in 0..ROUNDS {
        let now = store.now();
        step("http.claim.before");
        let won = pg::claim(&mut transaction, consumer, now, &[(identity, *fingerprint)]).await;
        step("http.claim.after");
        match won {
            Ok(won) if !won.is_empty() => return Ok(Claimed::Run(transaction, now)),
            Ok(_) => {}
            Err(error) if pg::is_locked(&error) => {
                transaction.rollback().await?;
                return Ok(Claimed::Locked);
            }
            Err(error) => return Err(error),
        }
        // A statement of its own, with a snapshot of its own: it sees the winner's row.
        let records = pg::look_up(&mut transaction, consumer, &[identity]).await?;
        // Collected in between: claimed in the next round.
        let Some(record) = records.into_iter().flatten().next() else { continue };
        let refused = match decide(&record, fingerprint.as_ref(), OnConflict::DeadLetter) {
            KeyDecision::Duplicate => {
                let Some(mut answer) = pg::http_answer(&mut transaction, identity).await? else { continue };
                answer.response.take_if(|response| !is_open(identity, response));
                // What a standby lacks would be lost by a failover, and run again.
                pg::await_standby(&mut transaction).await?;
                transaction.commit().await?;
                return Ok(Claimed::Done(answer));
            }
            KeyDecision::Reject(rejection) => rejected(&rejection),
            KeyDecision::Leased => match wait(&record, now) {
                Some(rest) => Problem::in_flight(rest),
                None => Problem::new(Kind::OutcomeUnknown, "A run under a lease began it, and has not ended"),
            },
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
    let claims = [(&asked.identity, asked.fingerprint)];
    match pg::retake(transaction, &asked.identity.consumer, now, now + EARLY, &claims).await {
        Ok(won) if !won.is_empty() => Ok(Retaken::Yes(now)),
        Ok(_) => Ok(Retaken::No),
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
