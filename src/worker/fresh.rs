//! A small batch that nobody is expected to have seen, for a SQL function: claimed, run and recorded by one statement.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::call::Pass;
use super::claim::Expect;
use super::deadline::{Handling, in_time, until_deadline};
use super::prepare::Candidate;
use super::record::{mirror_tags, store_responses};
use super::replies::{check_responses, write_replies};
use super::shared::Shared;
use super::stop::Stop;
use crate::failpoint::{step, step_with};
use crate::handler::{Incoming, Record, Run, SqlFunction, call_fresh};
use crate::outcome::Outcome;
use crate::pg::{self, Backend};
use crate::plant::planted;

/// Most messages of a small batch. What counts for those is the number of round trips; taking messages apart again inside the
/// server costs a large one more than sending keys three times (23.5 against 22.1 microseconds a message in batches of 500).
const SMALL: usize = 64;

/// The function, where a batch may go this way. What the planted bugs are in is the other way.
pub(super) fn function_for(
    shared: &Shared,
    pass: Pass,
    expect: Expect,
    messages: usize,
) -> Option<&SqlFunction> {
    let bugs = ["check_then_act", "claim_in_one_statement", "commit_tag_ignored", "conflict_is_duplicate"];
    match (&shared.run, pass, expect) {
        (Run::Sql(function), Pass::Together, Expect::Fresh)
            if messages <= SMALL && !bugs.into_iter().any(planted) =>
        {
            Some(function)
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
    function: &SqlFunction,
    candidates: &[&Candidate],
) -> Result<Vec<Outcome>, Stop> {
    let consumer = &shared.consumer;
    let incoming: Vec<Incoming<'_>> = candidates
        .iter()
        .map(|one| Incoming {
            identity: &one.identity,
            message: &one.delivery.message,
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
        expires_at: now + consumer.retention,
    };
    step("worker.claim_fresh.before");
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let called = async {
        let called = call_fresh(transaction, function, &consumer.name, &incoming, &record).await;
        called.map_err(|error| if pg::is_taken(&error) { Stop::Known } else { Stop::of_handler(error) })
    };
    let responses = until_deadline(shared, backend, Handling::InServer, called).await?;
    step("worker.handle.after");
    step("worker.claim_fresh.after");
    let results: Vec<_> = responses.into_iter().map(Ok).collect();
    check_responses(consumer, &results)?;
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
