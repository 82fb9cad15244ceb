//! A small batch that nobody is expected to have seen, for a SQL function: claimed, run and recorded by one statement.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use super::call::{Attempt, Pass};
use super::deadline::{Handling, in_time, until_deadline};
use super::forecast::{Expect, SMALL};
use super::prepare::Candidate;
use super::record::{mirror_tags, store_responses};
use super::replies::{check_responses, wants_reply, write_replies};
use super::shared::Shared;
use super::stop::Stop;
use crate::failpoint::{step, step_with};
use crate::handler::{Message, Record, Run, SqlHandler, call_fresh, needs_a_look};
use crate::outcome::Outcome;
use crate::pg::{self, Backend, Session};

/// The handler, where a batch may go this way.
pub(super) fn handler_for(
    shared: &Shared,
    attempt: Attempt,
    expect: Expect,
    messages: usize,
) -> Option<&SqlHandler> {
    match (&shared.run, attempt.pass, expect) {
        (Run::Sql(handler), Pass::Together, Expect::Fresh) if messages <= SMALL && !attempt.contended => {
            Some(handler)
        }
        _ => None,
    }
}

/// Everything but BEGIN and COMMIT. All of the messages have taken effect for the first time, or the transaction is over.
pub(super) async fn run_fresh(
    shared: &Shared,
    transaction: &mut PgConnection,
    (backend, epoch): (Backend, &str),
    (started, now): (Instant, DateTime<Utc>),
    handler: &SqlHandler,
    candidates: &[&Candidate],
) -> Result<Vec<Outcome>, Stop> {
    let (incoming, record) = described(shared, epoch, (started, now), candidates, false);
    step("worker.claim_fresh.before");
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let called = async {
        let called = call_fresh(transaction, handler, &shared.consumer.name, &incoming, &record).await;
        called.map_err(stop_of)
    };
    let responses = until_deadline(shared, backend, Handling::InServer, called).await?;
    step("worker.handle.after");
    step("worker.claim_fresh.after");
    handler.heard(responses.iter().any(Option::is_some));
    let results: Vec<_> = responses.into_iter().map(Ok).collect();
    check_responses(&shared.consumer, &results)?;
    let outcomes: Vec<Outcome> =
        results.into_iter().flatten().map(|response| Outcome::Completed { attempt: 1, response }).collect();
    let recorded = async {
        store_responses(shared, transaction, candidates, &outcomes).await?;
        let decided = candidates.iter().copied().zip(&outcomes);
        write_replies(shared, transaction, now, Stop::of_handler, decided).await
    };
    in_time(shared, recorded).await?;
    Ok(outcomes)
}

/// The same with COMMIT: a transaction of one statement, where nothing has to be looked at before it commits. Outcomes are
/// committed; `None` means that there was something, and nothing is left of it.
pub(super) async fn run_alone(
    shared: &Shared,
    session: &mut Session,
    handler: &SqlHandler,
    candidates: &[&Candidate],
) -> Result<Option<Vec<Outcome>>, Stop> {
    // Inside another transaction it would commit nothing.
    let is_free = !session.connection.is_in_transaction();
    if !is_free || !handler.is_silent() || candidates.iter().any(|one| wants_reply(shared, one)) {
        return Ok(None);
    }
    let times @ (started, _) = (Instant::now(), session.clock.now());
    let (incoming, record) = described(shared, &session.cell.epoch, times, candidates, true);
    step("worker.commit_fresh.before");
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let connection = &mut session.connection;
    let called = async {
        match call_fresh(connection, handler, &shared.consumer.name, &incoming, &record).await {
            Ok(_) => Ok(true),
            Err(error) if needs_a_look(&error) => Ok(false),
            Err(error) => Err(stop_of(error)),
        }
    };
    let done = until_deadline(shared, session.backend, Handling::InServer, called).await?;
    step("worker.commit_fresh.after");
    if !done {
        handler.heard(true);
        return Ok(None);
    }
    // A cancellation at the deadline may have struck the wait for a standby: the commit is done here and reported as done, but
    // has not arrived there.
    if started.elapsed() >= shared.consumer.deadline {
        in_time(shared, async { pg::await_standby(connection).await.map_err(Stop::of_ours) }).await?;
    }
    Ok(Some(vec![Outcome::Completed { attempt: 1, response: None }; candidates.len()]))
}

/// A batch as [`call_fresh`] takes it.
fn described<'a>(
    shared: &'a Shared,
    epoch: &str,
    (started, now): (Instant, DateTime<Utc>),
    candidates: &[&'a Candidate],
    alone: bool,
) -> (Vec<Message<'a>>, Record<'a>) {
    let incoming = candidates
        .iter()
        .map(|one| Message {
            identity: &one.identity,
            raw: &one.delivery.message,
            attempt: 1,
            is_json: one.is_json,
        })
        .collect();
    let fingerprints = candidates.iter().map(|one| one.fingerprint.as_ref().map(|print| &print.0[..]));
    let record = Record {
        fingerprints: fingerprints.collect(),
        worker: &shared.worker,
        now,
        waited: i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX),
        tags: shared.precheck.is_some().then(|| mirror_tags(shared, epoch, candidates.iter().copied())),
        expires_at: now + shared.consumer.retention,
        alone,
    };
    (incoming, record)
}

/// What is known or held is claimed again, step by step: that tells a key that somebody holds from what a handler waits for.
fn stop_of(error: sqlx::Error) -> Stop {
    if pg::is_taken(&error) || pg::is_locked(&error) { Stop::Known } else { Stop::of_handler(error) }
}
