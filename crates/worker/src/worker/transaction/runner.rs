//! A lane's transactions: tried until they are decided, or until their messages will come again anyway.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use tokio::sync::OwnedSemaphorePermit;

use super::batch_run::{BatchPlan, BatchRun};
use super::one_statement::{commit_in_one_statement, one_statement_handler};
use super::setback::Setback;
use super::steps::transact;
use super::unconfirmed::UnconfirmedOutcomes;
use crate::worker::candidate::{Candidate, MAX_KEPT_BYTES, MAX_TRANSACTION_BYTES, total_size};
use crate::worker::intake::arrivals::Arrivals;
use crate::worker::interrupt::{AbandonedBatch, Interrupt};
use crate::worker::isolation::marks::Marks;
use crate::worker::isolation::permit::{Isolation, NotAlone, Permit};
use crate::worker::prediction::{ExpectedKeys, KeyPrediction};
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{ChannelLife, Delivery};
use oncely_core::backoff::Backoff;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_handler::ConsumerHandler;
use oncely_postgres::{self as pg, Session};
use oncely_process::vitals::LoopBeat;
use oncely_process::witnesses::Began;
use oncely_traces::BatchTrace;

/// Runs a lane's transactions; keeps its session, backoff and crash marks between batches.
pub(crate) struct TransactionRunner {
    pub(super) shared: Arc<ConsumerContext>,
    pub(super) arrivals: Arc<Arrivals<Box<Delivery>>>,
    pub(crate) session: Option<Session>,
    pub(super) backoff: Backoff,
    marks: Marks,
    /// Prediction of the next batch's keys from the last batches.
    pub(crate) prediction: KeyPrediction,
    batch: CurrentBatch,
    beat: LoopBeat,
}

/// State of the current batch.
#[derive(Default)]
struct CurrentBatch {
    /// Channels that it came on.
    channels: Vec<Arc<ChannelLife>>,
    permit: Option<Permit>,
    unconfirmed: UnconfirmedOutcomes,
    /// Epochs of the database at which its messages were decided, in this round.
    epochs: Vec<String>,
    /// Duration of the last transaction.
    duration: Duration,
    trace: BatchTrace,
}

impl TransactionRunner {
    /// Registers a lane with the process's liveness, and creates its runner. The session is opened by the first batch.
    pub(crate) fn register(shared: Arc<ConsumerContext>, arrivals: Arc<Arrivals<Box<Delivery>>>) -> Self {
        let beat = shared.liveness.watch(format!("a lane of {}", shared.consumer.name));
        Self {
            shared,
            arrivals,
            session: None,
            backoff: Backoff::default(),
            marks: Marks::default(),
            prediction: KeyPrediction::default(),
            batch: CurrentBatch::default(),
            beat,
        }
    }

    /// Marks the lane as waiting for work, or for room to settle.
    pub(crate) fn mark_idle(&self) {
        self.beat.set_idle();
    }

    /// Expects work on this number of messages. Their longest time: each by itself until the handler's deadline, and Oncely's statements
    /// around it.
    pub(crate) fn expect_work(&self, messages: usize) {
        let each = self.shared.consumer.deadline + self.shared.postgres.client_timeout() * 4;
        self.beat
            .begin_step(each.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX).saturating_add(1)));
    }

    pub(crate) fn shared(&self) -> &Arc<ConsumerContext> {
        &self.shared
    }

    /// Begins another batch, which came on these channels.
    pub(crate) fn begin_batch(&mut self, channels: Vec<Arc<ChannelLife>>, trace: BatchTrace) {
        self.batch = CurrentBatch { channels, trace, ..CurrentBatch::default() };
    }

    /// Returns the trace of the current batch.
    pub(crate) fn trace(&self) -> &BatchTrace {
        &self.batch.trace
    }

    /// Ends the trace of the current batch, which is settled or given up.
    pub(crate) fn end_trace(&mut self) {
        std::mem::take(&mut self.batch.trace).end();
    }

    /// Begins a round: nothing of it is decided.
    pub(crate) fn begin_round(&mut self) {
        self.batch.epochs.clear();
    }

    /// Records that a message was decided at this epoch of the database.
    pub(crate) fn record_decided_epoch(&mut self, epoch: String) {
        if !self.batch.epochs.contains(&epoch) {
            self.batch.epochs.push(epoch);
        }
    }

    /// Checks whether the round was decided at one epoch, that of a present session, which it opens if none is open. A failover may have
    /// undone decisions at another epoch. If false, the session is dropped: it may name an epoch that is over.
    pub(crate) async fn confirm_epoch(&mut self) -> Result<bool, AbandonedBatch> {
        if !self.batch.epochs.is_empty() {
            // A new one if the last is gone, perhaps with its server, or if it is known to be over.
            let epoch = self.ensure_session().await?.cell.epoch.clone();
            self.record_decided_epoch(epoch);
        }
        let is_one = self.batch.epochs.len() <= 1;
        if !is_one {
            self.session = None;
        }
        Ok(is_one)
    }

    /// Begins to commit some messages of the batch.
    pub(super) fn begin_commit(&mut self) {
        self.marks.begin();
        self.batch.unconfirmed = UnconfirmedOutcomes::default();
    }

    /// Ends their commit. Nothing is recorded of the `unwritten`: their runs have ended without a crash.
    pub(super) async fn end_commit(&mut self, mut unwritten: Vec<Identity>) {
        let shared = Arc::clone(&self.shared);
        unwritten.extend(self.batch.unconfirmed.take_recorded());
        self.marks.record_reported(unwritten);
        if self.marks.are_owed() {
            self.marks.take_back(&shared, &mut self.session).await;
        }
        self.batch.permit = None;
    }

    /// Drops the session: the next transaction opens another.
    pub(super) fn drop_session(&mut self) {
        self.session = None;
    }

    /// Returns the duration of the last transaction, without the waits before it.
    pub(super) fn duration(&self) -> Duration {
        self.batch.duration
    }

    /// Releases the permit: the next transaction takes another.
    pub(super) fn drop_permit(&mut self) {
        self.batch.permit = None;
    }

    /// Gives the batch up. The process lives, so no message at work has killed it.
    pub(crate) async fn abandon(&mut self) {
        self.take_back_marks().await;
        self.batch.permit = None;
    }

    /// Returns whether marks are left that PostgreSQL could not take back yet.
    pub(crate) fn owes_marks(&self) -> bool {
        self.marks.are_owed()
    }

    /// Takes the marks back if PostgreSQL answers now.
    pub(crate) async fn take_back_marks(&mut self) {
        self.marks.take_back(&self.shared, &mut self.session).await;
    }

    /// Ends the lane's work.
    pub(crate) async fn close(mut self) {
        self.abandon().await;
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    /// Runs one transaction, and retries it while PostgreSQL is away or nothing at all can be written, until the batch is abandoned.
    pub(super) async fn run(
        &mut self,
        isolation: Isolation,
        plan: BatchPlan,
        candidates: &[&Candidate],
    ) -> Result<Result<Vec<Outcome>, Setback>, AbandonedBatch> {
        let mut is_renewed = false;
        self.batch.duration = Duration::ZERO;
        let mut large = None;
        loop {
            let shared = Arc::clone(&self.shared);
            self.ensure_session().await?;
            if large.is_none()
                && total_size(candidates) > MAX_TRANSACTION_BYTES
                && matches!(shared.handler, ConsumerHandler::Sql(_))
            {
                large = Some(self.acquire_large_permit().await?);
            }
            self.expect_work(candidates.len());
            match self.take_permit(isolation, plan, candidates).await {
                Ok(true) => {}
                Ok(false) => {
                    let text = "other messages are running, and this one must run alone";
                    return Ok(Err(Setback::Held(Fault::new(FaultClass::Contention, None, text))));
                }
                Err(error) => {
                    drop(large.take());
                    self.wait_out(Interrupt::from_statement(error)).await?;
                    continue;
                }
            }
            let interrupt = match self.try_once(&shared, isolation, plan, candidates).await {
                Ok((outcomes, began)) => {
                    self.record_commit(&shared, began, candidates, &outcomes);
                    return Ok(Ok(outcomes));
                }
                Err(interrupt) => interrupt,
            };
            self.count_interrupt(&interrupt);
            match interrupt {
                Interrupt::Known => {}
                // A fault of the connection: tried once more on a new one.
                Interrupt::Failed(fault) if fault.class == FaultClass::Session && !is_renewed => {
                    is_renewed = true;
                    self.session = None;
                }
                Interrupt::Failed(fault) => return Ok(Err(Setback::Failed(fault))),
                Interrupt::Held(fault) => {
                    // Rolled back with the next use of the connection; its locks must not be held over a pause.
                    self.session = None;
                    return Ok(Err(Setback::Held(fault)));
                }
                Interrupt::Tainted(fault) => {
                    self.give_up_session().await;
                    return Ok(Err(Setback::Failed(fault)));
                }
                other => {
                    drop(large.take());
                    self.wait_out(other).await?;
                }
            }
        }
    }

    /// Waits for the permit of a large message, perhaps as long as the handlers of others take. Gives up when the worker stops, or when the
    /// message comes again anyway.
    async fn acquire_large_permit(&self) -> Result<OwnedSemaphorePermit, AbandonedBatch> {
        let shared = &self.shared;
        if let Ok(permit) = Arc::clone(&shared.large_permits).try_acquire_owned() {
            return Ok(permit);
        }
        self.mark_idle();
        let permit = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Err(AbandonedBatch),
            // Never an error: it is not closed.
            permit = Arc::clone(&shared.large_permits).acquire_owned() => permit.map_err(|_| AbandonedBatch)?,
        };
        match shared.gate.is_open() && !self.batch.channels.iter().all(|channel| channel.is_over()) {
            true => Ok(permit),
            false => Err(AbandonedBatch),
        }
    }

    /// Takes the permit to run this work, unless it is held already. Returns whether it is held then; if not, records the messages' wait.
    ///
    /// # Errors
    /// If the rest of a failed transaction could not be rolled back.
    async fn take_permit(
        &mut self,
        isolation: Isolation,
        plan: BatchPlan,
        candidates: &[&Candidate],
    ) -> Result<bool, sqlx::Error> {
        let exclusive = plan.has_turn();
        if self.batch.permit.as_ref().is_some_and(|permit| permit.exclusive || !exclusive) {
            return Ok(true);
        }
        // Rolled back first: the rest of a failed transaction must hold no locks that another lane, which has the permit, waits for.
        if let Some(session) = &mut self.session
            && session.connection.should_flush()
        {
            pg::wait_for_answer(self.shared.postgres.client_timeout(), session.connection.ping()).await?;
        }
        self.batch.permit = None;
        let progress = &self.shared.progress;
        let isolation = match candidates {
            // It has waited often enough.
            [one] if progress.has_waited_alone(&one.identity) => Isolation::Marked,
            _ => isolation,
        };
        match self.shared.permits.take(isolation, exclusive).await {
            Ok(permit) => self.batch.permit = Some(permit),
            Err(why) => {
                for one in candidates {
                    let behind = why == NotAlone::Suspect;
                    progress.record_wait_alone(&one.identity, tokio::time::Instant::now(), behind);
                }
            }
        }
        Ok(self.batch.permit.is_some())
    }

    /// Counts a failure, and notes it in the batch's trace. Outages are counted elsewhere.
    fn count_interrupt(&self, interrupt: &Interrupt) {
        let metrics = &self.shared.counters.metrics;
        match interrupt {
            Interrupt::Outage(_) | Interrupt::Known => {}
            Interrupt::NotNow(fault)
            | Interrupt::Held(fault)
            | Interrupt::Failed(fault)
            | Interrupt::Tainted(fault) => {
                metrics.count_failure(fault.class);
                self.batch.trace.record_setback(fault);
            }
        }
    }

    /// Runs one transaction up to its commit. Returns the outcomes, and when the try began.
    async fn try_once(
        &mut self,
        shared: &ConsumerContext,
        isolation: Isolation,
        plan: BatchPlan,
        candidates: &[&Candidate],
    ) -> Result<(Vec<Outcome>, Began), Interrupt> {
        let Some(session) = self.session.as_mut() else {
            return Err(Interrupt::NotNow(Fault::new(FaultClass::Transient, None, "no session")));
        };
        if isolation != Isolation::None {
            self.marks.mark(shared, session, candidates).await?;
        }
        // A message that runs by itself because it failed most likely has a known key.
        let keys = match plan {
            BatchPlan::ByItself { first: false, .. } => ExpectedKeys::Known,
            _ => self.prediction.expect(candidates),
        };
        let run = BatchRun::begin((shared, &self.batch.trace), session, plan, keys, candidates);
        let result = match one_statement_handler(&run, session) {
            Some(handler) => commit_in_one_statement(&run, session, handler).await,
            None => transact(&run, session, &mut self.batch.unconfirmed).await,
        };
        self.batch.duration = run.started.elapsed();
        if candidates.iter().map(|one| one.delivery.message.body.len()).sum::<usize>() > MAX_KEPT_BYTES {
            session.connection.shrink_buffers();
        }
        match &result {
            Ok(outcomes) if keys == ExpectedKeys::Fresh || outcomes.iter().all(was_fresh) => {
                self.prediction.record_fresh();
            }
            Ok(_) | Err(Interrupt::Known) => self.prediction.record_known(),
            Err(_) if keys == ExpectedKeys::Fresh => self.prediction.record_fresh_failed(),
            Err(_) => {}
        }
        Ok((result?, run.began))
    }

    /// Records the outcomes of a committed batch. Consuming continues if their success ends a stall.
    fn record_commit(
        &mut self,
        shared: &ConsumerContext,
        began: Began,
        candidates: &[&Candidate],
        outcomes: &[Outcome],
    ) {
        self.backoff.reset();
        self.record_epoch();
        let decided = candidates.iter().map(|candidate| &candidate.identity).zip(outcomes);
        if shared.progress.record_outcomes(began, decided)
            && self.arrivals.aside.resume(tokio::time::Instant::now())
        {
            tracing::info!(consumer = %shared.consumer.name, "consuming continues");
        }
        match shared.progress.is_stalled() {
            true => shared.health.record_statement_success(),
            false => shared.health.record_resumption(),
        }
    }

    /// Records that a message was decided on the session's database.
    pub(super) fn record_epoch(&mut self) {
        if let Some(epoch) = self.session.as_ref().map(|session| session.cell.epoch.clone()) {
            self.record_decided_epoch(epoch);
        }
    }

    /// Closes a session of unknown state, at both ends: its transaction and its locks must not linger.
    pub(crate) async fn give_up_session(&mut self) {
        if let Some(session) = self.session.take() {
            let backend = session.backend;
            drop(session);
            self.shared.terminate_session(backend).await;
        }
    }

    /// Waits for the end of a fault that no message caused, with growing pauses. Gives the batch up only when its messages come again
    /// anyway.
    pub(crate) async fn wait_out(&mut self, interrupt: Interrupt) -> Result<(), AbandonedBatch> {
        let shared = Arc::clone(&self.shared);
        let consumer = &shared.consumer.name;
        if matches!(&interrupt, Interrupt::Outage(outage) if outage.is_idle_end()) {
            // No outage: the next session does the work, after the shortest pause.
            self.session = None;
            self.marks.take_back(&shared, &mut self.session).await;
            return self.wait_before_retry().await;
        }
        shared.counters.count_outage();
        match interrupt {
            Interrupt::Outage(outage) => {
                match outage.is_silence() {
                    // Perhaps only this connection is dead: its other end must not hold its locks.
                    true => self.give_up_session().await,
                    false => self.session = None,
                }
                tracing::warn!(%consumer, error = %outage,
                    "PostgreSQL unavailable: consuming waits, no attempt is spent");
            }
            Interrupt::Known => return Ok(()),
            Interrupt::NotNow(fault) | Interrupt::Held(fault) | Interrupt::Failed(fault) => {
                // Its transaction may be open: sqlx rolls back with the next use of the connection, and that comes after a pause.
                // Other consumers must not wait for its locks meanwhile.
                self.session = None;
                shared.health.record_stall(&fault, None);
                tracing::error!(%consumer, sqlstate = fault.code, error = %fault,
                    "consuming waits until this is fixed; no attempt is spent");
            }
            Interrupt::Tainted(fault) => {
                self.give_up_session().await;
                tracing::error!(%consumer, error = %fault, "closing a connection to PostgreSQL");
            }
        }
        // A wait kills no process: if the process ends meanwhile, the batch's messages must not be charged with that.
        self.marks.take_back(&shared, &mut self.session).await;
        self.wait_before_retry().await
    }

    /// Waits before the next try, longer each time. Abandons the batch if the worker stops, or all of its channels are over.
    async fn wait_before_retry(&mut self) -> Result<(), AbandonedBatch> {
        // Never held over a pause: a consumer that waits must not stop the others.
        self.batch.permit = None;
        // Waiting for a server is work, too, however long it is away.
        self.expect_work(1);
        let pause = self.backoff.next_pause();
        tokio::select! {
            () = self.shared.stop.cancelled() => return Err(AbandonedBatch),
            () = tokio::time::sleep(pause) => {}
        }
        // All of them: a delivery that is dropped while its channel lives would come again only when that channel ends.
        if self.batch.channels.iter().all(|channel| channel.is_over()) {
            return Err(AbandonedBatch);
        }
        Ok(())
    }

    /// Returns the lane's session; opens one if none is open or admitted. Retries until PostgreSQL answers or the batch is abandoned.
    pub(crate) async fn ensure_session(&mut self) -> Result<&mut Session, AbandonedBatch> {
        if self.session.as_ref().is_some_and(|open| !self.shared.factory.record_timeline(open)) {
            tracing::warn!(consumer = %self.shared.consumer.name,
                "closing a connection to a server on an older timeline");
            self.session = None;
        }
        while self.session.is_none() {
            match self.shared.open_session().await {
                Ok(session) => self.session = Some(session),
                Err(error) => {
                    self.shared.counters.count_outage();
                    tracing::warn!(consumer = %self.shared.consumer.name, error = %error,
                        "no connection to PostgreSQL: consuming waits");
                    self.wait_before_retry().await?;
                }
            }
        }
        self.session.as_mut().ok_or(AbandonedBatch)
    }
}

/// Returns whether a message's key was new: also for a first run that is left undecided.
fn was_fresh(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Undecided { attempts, fault } => *attempts == 0 && fault.class != FaultClass::Crashed,
        other => other.attempt() == Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_run_that_is_left_undecided_had_a_fresh_key() {
        let undecided = |attempts, class| Outcome::Undecided { attempts, fault: Fault::new(class, None, "") };
        assert!(was_fresh(&undecided(0, FaultClass::Environment)));
        assert!(!was_fresh(&undecided(1, FaultClass::Environment)), "it has answered for a run before");
        assert!(!was_fresh(&undecided(0, FaultClass::Crashed)), "its key is marked");
        assert!(was_fresh(&Outcome::Completed { attempt: 1, response: None }));
        assert!(!was_fresh(&Outcome::Completed { attempt: 2, response: None }));
    }
}
