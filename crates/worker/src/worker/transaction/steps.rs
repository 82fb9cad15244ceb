//! A transaction step by step: claim, handle, record, COMMIT.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::batch_run::{BatchPlan, BatchRun};
use super::call::{Results, check_responses, run_handler};
use super::claim::{CandidateClaim, claim};
use super::deadline::{HandlerWait, run_in_time, run_until_deadline, wait_for_standby_if_late};
use super::record::write_records;
use super::unconfirmed::UnconfirmedOutcomes;
use super::verdict::decide_outcomes;
use crate::worker::interrupt::Interrupt;
use crate::worker::prediction::MAX_SMALL_BATCH;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::Outcome;
use oncely_failpoint::{step, step_with};
use oncely_handler::{ConsumerHandler, Message};
use oncely_postgres::{self as pg, Session};
use oncely_process::metrics::Stage;

/// Number of round trips around the handler's own work, for a batch of any size.
const ROUND_TRIPS: u32 = 3;

/// Runs one transaction for a batch. Returned outcomes are committed.
pub(crate) async fn transact(
    run: &BatchRun<'_>,
    session: &mut Session,
    unconfirmed: &mut UnconfirmedOutcomes,
) -> Result<Vec<Outcome>, Interrupt> {
    if run.candidates.len() > MAX_SMALL_BATCH {
        run_in_time(run.shared, async { session.keep_memory().await.map_err(Interrupt::from_statement) })
            .await?;
    }
    step("worker.begin.before");
    let started = Instant::now();
    let statement =
        async { pg::begin_to_claim(&mut session.connection).await.map_err(Interrupt::from_statement) };
    let mut transaction = run_in_time(run.shared, statement).await?;
    let round_trip = started.elapsed();
    step("worker.begin.after");
    if run.plan.has_turn() {
        take_turn(run, &mut transaction).await?;
    }
    let outcomes = run_steps(run, &mut transaction, unconfirmed, round_trip).await?;
    // The handler's deferred work runs at COMMIT.
    let statement = async {
        pg::enter_handler(&mut transaction, run.lock_wait()).await.map_err(Interrupt::from_statement)
    };
    run_in_time(run.shared, statement).await?;
    // From here on the reply may be lost while the commit happens: an error of the connection does not decide it.
    unconfirmed.remember(run.candidates, &outcomes);
    step("worker.commit.before");
    // PostgreSQL disables statement_timeout before it commits, so there a deferred trigger could run for ever.
    let began = Instant::now();
    let statement = async { transaction.commit().await.map_err(Interrupt::from_handler) };
    run_until_deadline(run.shared, run.backend, HandlerWait::AtCommit, statement).await.inspect_err(
        |interrupt| {
            if let Interrupt::Outage(_) = interrupt {
                run.shared.counters.metrics.commit_unknown.increment(1);
            }
        },
    )?;
    step("worker.commit.after");
    run.record_stage(Stage::Commit, began);
    wait_for_standby_if_late(run.shared, &mut session.connection, began).await?;
    unconfirmed.clear();
    Ok(outcomes)
}

/// Waits up to two seconds for the turn of the consumer's batches, which ends with the transaction. Fails if another batch keeps it.
async fn take_turn(run: &BatchRun<'_>, transaction: &mut PgConnection) -> Result<(), Interrupt> {
    let consumer = run.shared.consumer.name.as_str();
    let statement = async { pg::take_turn(transaction, consumer).await.map_err(Interrupt::from_statement) };
    if run_in_time(run.shared, statement).await? {
        run.shared.contention.record_turn_start(tokio::time::Instant::now());
        return Ok(());
    }
    run.shared.contention.record_missed_turn(tokio::time::Instant::now());
    let text = "another batch of the consumer does not end";
    Err(Interrupt::Failed(Fault::new(FaultClass::Contention, None, text)))
}

/// Runs everything but BEGIN and COMMIT.
async fn run_steps(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    unconfirmed: &mut UnconfirmedOutcomes,
    round_trip: Duration,
) -> Result<Vec<Outcome>, Interrupt> {
    let claims = run_in_time(run.shared, claim(run, transaction, unconfirmed)).await?;
    run.record_stage(Stage::Claim, run.started);
    if let (ConsumerHandler::Sql(_), BatchPlan::Apart { .. } | BatchPlan::ByItself { .. }) =
        (&run.shared.handler, run.plan)
    {
        // A SQL handler runs within one of Oncely's statements, so the limit is set before it. The statements after the claim may wait
        // longer for locks than the claim itself, whether a handler runs or not.
        let limit = run.lock_wait().limit().unwrap_or(run.shared.postgres.lock_timeout);
        let statement =
            async { pg::limit_lock_wait(transaction, limit).await.map_err(Interrupt::from_statement) };
        run_in_time(run.shared, statement).await?;
    }
    let results = call_handler(run, transaction, &claims, round_trip).await?;
    // Decisions that are recorded already are not recorded again.
    let is_recorded: Vec<bool> = claims
        .iter()
        .map(|claim| matches!(claim, CandidateClaim::Recorded(_) | CandidateClaim::Suspect))
        .collect();
    let mut outcomes = decide_outcomes(run.shared, run.plan, run.began, run.candidates, claims, results);
    let began = Instant::now();
    let statement = async {
        write_records(run, transaction, &mut outcomes, &is_recorded).await?;
        // If a standby may take over, the commit of a duplicate's original must have reached it before the acknowledgement.
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Duplicate(_))) {
            pg::wait_for_standby(transaction).await.map_err(Interrupt::from_statement)?;
        }
        Ok(())
    };
    run_in_time(run.shared, statement).await?;
    // They are stored. Messages that ran one by one stay in memory until the last of them is decided.
    for outcome in &mut outcomes {
        if let Outcome::Completed { response, .. } = outcome {
            *response = None;
        }
    }
    run.record_stage(Stage::Record, began);
    Ok(outcomes)
}

/// Calls the handler for the messages that may run.
async fn call_handler(
    run: &BatchRun<'_>,
    transaction: &mut PgConnection,
    claims: &[CandidateClaim],
    round_trip: Duration,
) -> Result<Results, Interrupt> {
    let running = run.candidates.iter().zip(claims).filter_map(|(candidate, claim)| match claim {
        CandidateClaim::Run { attempt, .. } => Some((candidate, *attempt)),
        _ => None,
    });
    let incoming: Vec<Message<'_>> = running
        .map(|(candidate, attempt)| Message {
            identity: &candidate.identity,
            raw: &candidate.delivery.message,
            attempt,
            is_json: candidate.is_json,
        })
        .collect();
    let pace = run.shared.pace.as_ref();
    if incoming.is_empty() {
        if let Some(pace) = pace {
            pace.record(0, Duration::ZERO);
        }
        return Ok(Vec::new());
    }
    step_with("worker.handle.before", incoming.iter().map(|one| one.identity.key.as_str()));
    let began = Instant::now();
    let results = run_handler(run, transaction, &incoming).await?;
    // Not of one that was out of time: a single message may have used up all of it.
    if let Some(pace) = pace {
        pace.record(incoming.len(), began.elapsed().saturating_sub(round_trip * ROUND_TRIPS));
    }
    run.record_stage(Stage::Handle, began);
    check_responses(&run.shared.consumer, results.iter().flatten().flatten())?;
    step("worker.handle.after");
    Ok(results)
}
