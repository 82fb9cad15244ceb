//! A small batch that nobody is expected to have seen, for a SQL function: claimed, run, recorded and committed by one statement.

use super::batch_run::BatchRun;
use super::deadline::{Handling, await_standby_if_late, until_deadline};
use super::record::mirror_tags;
use crate::config::LargeResponse;
use crate::failpoint::{step, step_with};
use crate::handler::{Message, Record, SqlHandler, commit_fresh};
use crate::metrics::Stage;
use crate::outcome::Outcome;
use crate::pg::{self, Session};
use crate::worker::interrupt::Interrupt;

/// Commits the batch. All of the messages have taken effect for the first time then; else nothing is left of them, or the reply is
/// lost.
pub(super) async fn commit_in_one_statement(
    run: &BatchRun<'_>,
    session: &mut Session,
    handler: &SqlHandler,
) -> Result<Vec<Outcome>, Interrupt> {
    let BatchRun { shared, candidates, .. } = run;
    let consumer = &shared.consumer;
    let incoming: Vec<Message<'_>> = candidates
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
        now: run.now,
        waited: run.elapsed_us(),
        tags: shared.precheck.is_some().then(|| mirror_tags(run, candidates.iter().copied())),
        expires_at: run.now + consumer.retention,
        response_limit: match consumer.on_large_response {
            LargeResponse::Compress => None,
            LargeResponse::Refuse => Some(consumer.response_limit.into()),
        },
        in_lock_order: consumer.lock_order.is_some(),
    };
    step("worker.commit_fresh.before");
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let connection = &mut session.connection;
    let called = async {
        let called = commit_fresh(connection, handler, &consumer.name, &incoming, &record).await;
        called.map_err(|error| interrupt_of(error, candidates.len()))
    };
    until_deadline(shared, run.backend, Handling::InServer, called).await.inspect_err(|interrupt| {
        if let Interrupt::Outage(_) = interrupt {
            shared.counters.metrics.commit_unknown.increment(1);
        }
    })?;
    step("worker.commit_fresh.after");
    run.passed(Stage::OneStatement, run.started);
    await_standby_if_late(shared, connection, run.started).await?;
    // What handlers returned is stored, and nobody waits for it here.
    Ok(vec![Outcome::Completed { attempt: 1, response: None }; candidates.len()])
}

/// A key that is known is claimed again, step by step. So is a message alone that met a lock: that tells a key that another transaction holds
/// from what the handler waits for. Of a batch the next try tells, which has the turn.
fn interrupt_of(error: sqlx::Error, messages: usize) -> Interrupt {
    if pg::is_taken(&error) || messages == 1 && pg::is_locked(&error) {
        Interrupt::Known
    } else {
        Interrupt::of_handler(error)
    }
}
