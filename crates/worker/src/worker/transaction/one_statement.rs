//! A small batch with keys expected to be new, for a SQL function: claimed, run, recorded and committed by one statement.

use sqlx::Connection as _;

use super::batch_run::{BatchPlan, BatchRun};
use super::deadline::{HandlerWait, run_until_deadline, wait_for_standby_if_late};
use super::record::build_mirror_tags;
use super::replies::wants_reply;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::{ExpectedKeys, MAX_SMALL_BATCH};
use oncely_core::outcome::Outcome;
use oncely_failpoint::{step, step_with};
use oncely_handler::{BatchRecord, ConsumerHandler, Message, SqlHandler, commit_fresh_batch};
use oncely_postgres::{self as pg, Session};
use oncely_process::metrics::Stage;

/// Returns the handler of a batch that is a transaction of one statement: a small one of a SQL function, with keys expected to be new and
/// without requested replies. `None` if the batch goes step by step: any other one; also where the handler may be slow, to measure its time
/// without that of the commit, and inside another transaction, where one statement would commit nothing.
pub(super) fn one_statement_handler<'a>(run: &BatchRun<'a>, session: &Session) -> Option<&'a SqlHandler> {
    match (&run.shared.handler, run.plan, run.keys) {
        (ConsumerHandler::Sql(handler), BatchPlan::Together { turn: false }, ExpectedKeys::Fresh)
            if run.candidates.len() <= MAX_SMALL_BATCH
                && !run.shared.pace.as_ref().is_some_and(|pace| pace.needs_handler_time())
                && !run.candidates.iter().any(|one| wants_reply(run.shared, one))
                && !session.connection.is_in_transaction() =>
        {
            Some(handler)
        }
        _ => None,
    }
}

/// Commits the batch. On success all of the messages have taken effect for the first time; else nothing is left of them, or the reply is
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
    let record = BatchRecord {
        fingerprints: fingerprints.collect(),
        worker: &shared.worker,
        now: run.now,
        elapsed_micros: run.elapsed_us(),
        tags: shared.precheck.is_some().then(|| build_mirror_tags(run, candidates.iter().copied())),
        expires_at: run.now + consumer.retention,
        is_in_lock_order: consumer.lock_order.is_some(),
    };
    step("worker.commit_fresh.before");
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let connection = &mut session.connection;
    let call = async {
        let call = commit_fresh_batch(connection, handler, &consumer.name, &incoming, &record).await;
        call.map_err(|error| classify_error(error, candidates.len()))
    };
    run_until_deadline(shared, run.backend, HandlerWait::InServer, call).await.inspect_err(|interrupt| {
        if let Interrupt::Outage(_) = interrupt {
            shared.counters.metrics.commit_unknown.increment(1);
        }
    })?;
    step("worker.commit_fresh.after");
    if let Some(pace) = &shared.pace {
        pace.record_transaction(candidates.len(), run.started.elapsed());
    }
    run.record_stage(Stage::OneStatement, run.started);
    wait_for_standby_if_late(shared, connection, run.started).await?;
    // The handlers' responses are stored, and no client waits for a reply here.
    Ok(vec![Outcome::Completed { attempt: 1, response: None }; candidates.len()])
}

/// Classifies an error of the statement. A known key is claimed again, step by step. So is a single message that met a lock: that
/// distinguishes a key held by another transaction from a lock of the handler. For a batch the next try, which has the turn, distinguishes
/// them.
fn classify_error(error: sqlx::Error, messages: usize) -> Interrupt {
    if pg::is_taken(&error) || messages == 1 && pg::is_locked(&error) {
        Interrupt::Known
    } else {
        Interrupt::from_handler(error)
    }
}
