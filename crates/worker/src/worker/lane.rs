//! A lane takes batches, one after another, through its own connection to PostgreSQL.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::precheck::precheck;
use super::batch::prepare::{names_unknown_signing_key, prepare_all};
use super::candidate::{Candidate, DecidedDelivery};
use super::round::{DecidedRound, Round, RoundOutcomes};
use crate::worker::intake::arrivals::{Arrivals, BusyLane, split_by_bytes};
use crate::worker::intake::aside::{BatchOrigin, Cause};
use crate::worker::interrupt::{AbandonedBatch, Interrupt};
use crate::worker::isolation::permit::Isolation;
use crate::worker::isolation::suspects::{BatchPart, SuspectGroups, group_suspects, has_suspects};
use crate::worker::settle::settle;
use crate::worker::shared::ConsumerContext;
use crate::worker::transaction::decider::{Decider, TakenTogether};
use crate::worker::transaction::runner::TransactionRunner;
use crate::worker::undecided::{abandon_deliveries, postpone_delivery};
use oncely_amqp::{ChannelLife, Delivery};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_failpoint::step;
use oncely_postgres as pg;
use oncely_process::metrics::Stage;

/// Maximum wait of a message for another transaction's locks, from one try to the next.
const MAX_HELD_WAIT: Duration = Duration::from_secs(5);

/// Shortest time for which messages that have to run alone wait for others: enough to take all that has arrived.
const MIN_PASS_TIME: Duration = Duration::from_millis(50);

/// Time after which an idle lane takes back its remaining marks: its session is gone, so they would count as crashes.
const MARKS_OWED_TIME: Duration = Duration::from_secs(1);

/// One lane.
pub(crate) struct Lane {
    shared: Arc<ConsumerContext>,
    arrivals: Arc<Arrivals<Box<Delivery>>>,
    pub(super) decider: Decider,
}

impl Lane {
    /// Registers a lane with the process's liveness; [`Lane::run`] starts its work.
    pub(crate) fn register(shared: Arc<ConsumerContext>, arrivals: Arc<Arrivals<Box<Delivery>>>) -> Self {
        let runner = TransactionRunner::register(Arc::clone(&shared), Arc::clone(&arrivals));
        Self { shared, arrivals, decider: Decider::new(runner) }
    }

    /// Takes batches until the worker stops. A batch that has been taken is finished first.
    pub(crate) async fn run(mut self) {
        let arrivals = Arc::clone(&self.arrivals);
        let shared = Arc::clone(&self.shared);
        loop {
            self.decider.runner.mark_idle();
            let mut batch = Vec::new();
            let (mut origin, mut late) = (BatchOrigin::Arrived, None);
            let owes_marks = self.decider.runner.owes_marks();
            let mut is_over = true;
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => {}
                from = arrivals.take(&mut batch) => (origin, late) = from,
                // Deliveries taken by then are in `batch`.
                () = tokio::time::sleep(MARKS_OWED_TIME), if owes_marks => is_over = false,
            }
            if batch.is_empty() && is_over {
                break;
            }
            if owes_marks {
                self.decider.runner.take_back_marks().await;
            }
            self.decider.runner.expect_work(batch.len());
            // Paused: the deliveries taken come again when their channel is closed.
            let Some(_at_work) = shared.gate.begin_batch() else {
                abandon_deliveries(&shared, batch).await;
                continue;
            };
            self.decider.taken_together = TakenTogether::default();
            for batch in split_by_bytes(batch, |delivery| delivery.size()) {
                let abandon = self.shared.abandon.clone();
                let result = tokio::select! {
                    biased;
                    // Dropped half-way, together with its connection.
                    () = abandon.cancelled() => {
                        self.decider.runner.give_up_session().await;
                        Err(AbandonedBatch)
                    }
                    result = self.process_batch(origin, batch) => result,
                };
                self.decider.runner.end_trace();
                if result.is_err() {
                    self.decider.runner.abandon().await;
                    tracing::debug!(consumer = %self.shared.consumer.name, "batch left to redelivery");
                }
            }
            drop(late);
        }
        self.decider.runner.close().await;
    }

    /// Settles decided deliveries. While too many wait for their copies to arrive, the lane waits, too.
    async fn settle(&self, settled: Vec<DecidedDelivery>) -> Result<(), AbandonedBatch> {
        let messages = settled.len();
        self.decider.runner.mark_idle();
        let result = settle(&self.shared, self.decider.runner.trace(), settled).await;
        self.decider.runner.expect_work(messages);
        result
    }

    /// Processes a batch from its preparation to its settlement.
    pub(super) async fn process_batch(
        &mut self,
        origin: BatchOrigin,
        deliveries: Vec<Box<Delivery>>,
    ) -> Result<(), AbandonedBatch> {
        let shared = Arc::clone(&self.shared);
        let mut at_work = Some(self.arrivals.mark_busy());
        let mut channels: Vec<Arc<ChannelLife>> = Vec::new();
        for delivery in &deliveries {
            if !channels.iter().any(|channel| Arc::ptr_eq(channel, &delivery.channel)) {
                channels.push(Arc::clone(&delivery.channel));
            }
        }
        self.decider.runner.begin_batch(channels.clone(), shared.traces.begin_batch(deliveries.len()));
        let metrics = &shared.counters.metrics;
        #[allow(clippy::cast_precision_loss)] // a few thousand
        metrics.batch.record(deliveries.len() as f64);
        #[allow(clippy::cast_precision_loss)] // half of prefetch at most
        metrics.aside.set(self.arrivals.aside.len() as f64);
        let began = Instant::now();
        // A delivery of a lost channel comes again on the next one.
        let (lost, deliveries): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|delivery| delivery.channel.is_over());
        abandon_deliveries(&shared, lost).await;
        let postponed = self.make_room();
        if !postponed.is_empty() {
            self.settle(postponed).await?;
        }
        if shared.keys.are_stale()
            || deliveries.iter().any(|delivery| names_unknown_signing_key(&shared, delivery))
        {
            self.decider.runner.refresh_keys(began.into_std()).await?;
        }
        let (mut candidates, rejected) = prepare_all(&shared, deliveries).await;
        shared.record_stage(self.decider.runner.trace(), Stage::Prepare, began.into_std());
        if !rejected.is_empty() {
            let mut settled: Vec<DecidedDelivery> =
                rejected.into_iter().map(|one| DecidedDelivery::from(*one)).collect();
            self.decider.runner.record_rejected(&mut settled).await?;
            settled.iter().for_each(|one| shared.journal.record(&one.delivery, &one.outcome));
            self.settle(settled).await?;
        }
        while !candidates.is_empty() {
            candidates = self.run_round(origin, &channels, &mut at_work, candidates).await?;
        }
        Ok(())
    }

    /// Decides and settles candidates; returns those that must go through another round: later messages of a batch if the first with the
    /// same identity did not complete, or had another payload; and redelivered ones, and new copies of them, which come after the others.
    async fn run_round(
        &mut self,
        origin: BatchOrigin,
        channels: &[Arc<ChannelLife>],
        at_work: &mut Option<BusyLane>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, AbandonedBatch> {
        let shared = Arc::clone(&self.shared);
        let mut round = Round::new(candidates);
        self.precheck(&mut round).await;
        let positions = round.open_leaders();
        let candidates: Vec<&Candidate> = positions.iter().map(|&index| round.candidate(index)).collect();
        let outcomes = self.commit_runnable(origin, &candidates).await?;
        round.record_outcomes(&positions, outcomes);
        round.decide_copies(&shared);
        let records = round.build_audit_records();
        if !records.is_empty() {
            self.decider.runner.write_audit(&records).await?;
        }
        // A failover has happened in between, and may have undone earlier decisions: all are made again.
        if !self.decider.runner.confirm_epoch().await? {
            tracing::warn!(consumer = %shared.consumer.name,
                "database epoch changed during a batch; deciding the batch again");
            return Ok(round.into_candidates());
        }
        let DecidedRound { mut settled, next_round, undecided, suspects, has_completed } = round.end(&shared);
        let is_aside = !suspects.is_empty() || !undecided.is_empty();
        for Candidate { delivery, identity, .. } in suspects {
            let now = Instant::now();
            self.arrivals.aside.put(now + MIN_PASS_TIME, now, Cause::Suspect, identity.tenant, delivery);
        }
        *at_work = None;
        if !undecided.is_empty() {
            settled.extend(self.put_aside(origin, undecided, has_completed));
        }
        if is_aside {
            // Deliveries settled behind waiting ones are acknowledged all the same.
            for channel in channels {
                if let Err(error) = channel.release().await {
                    tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
                }
            }
        }
        self.settle(settled).await?;
        Ok(next_round)
    }

    /// Queries the mirror for the round's identities, and records those that it knows as duplicates.
    async fn precheck(&mut self, round: &mut Round) {
        let shared = Arc::clone(&self.shared);
        let runner = &mut self.decider.runner;
        runner.begin_round();
        let began = Instant::now();
        let open = round.open_leaders();
        let leading: Vec<&Candidate> = open.iter().map(|&index| round.candidate(index)).collect();
        if let Some((hits, epoch)) =
            precheck(&shared, &runner.prediction, &mut runner.session, &leading).await
            && hits.contains(&true)
        {
            runner.record_decided_epoch(epoch);
            runner.prediction.record_mirror_hit();
            for (index, _) in open.into_iter().zip(hits).filter(|(_, hit)| *hit) {
                round.record_mirror_hit(&shared, index);
            }
        }
        shared.record_stage(runner.trace(), Stage::Precheck, began.into_std());
    }

    /// Puts aside messages with failures that are not attributed yet. Returns those that have waited longest if there is no room for all:
    /// they go to the end of their queue, without an attempt. `has_success`: another message of their batch has succeeded.
    fn put_aside(
        &mut self,
        origin: BatchOrigin,
        undecided: Vec<(Candidate, Fault)>,
        has_success: bool,
    ) -> Vec<DecidedDelivery> {
        let shared = &self.shared;
        let now = Instant::now();
        let mut example = None;
        // Copies wait as long as the first of them.
        let mut waits: HashMap<Identity, (Duration, Instant)> = HashMap::new();
        for (Candidate { delivery, identity, .. }, fault) in undecided {
            let wait_of_identity = waits.entry(identity.clone());
            let has_failed = fault.class != FaultClass::Contention;
            let (wait, since) =
                *wait_of_identity.or_insert_with(|| shared.progress.postpone(&identity, now, has_failed));
            if fault.class == FaultClass::Contention {
                tracing::debug!(consumer = %shared.consumer.name, tenant = %identity.tenant, key = %identity.key,
                    error = %fault, "message waits: another transaction holds a lock that it needs");
                self.arrivals.aside.put(
                    now + wait.min(MAX_HELD_WAIT),
                    since,
                    Cause::Held,
                    identity.tenant.clone(),
                    delivery,
                );
            } else {
                self.arrivals.aside.put(
                    now + wait,
                    since,
                    Cause::Environment,
                    identity.tenant.clone(),
                    delivery,
                );
                example.get_or_insert((identity, fault));
            }
        }
        if let Some((identity, fault)) = example.filter(|_| !has_success) {
            shared.progress.record_stall();
            self.arrivals.aside.pause(now, origin);
            let consumer = &shared.consumer.name;
            let (tenant, key, waiting) = (&identity.tenant, &identity.key, self.arrivals.aside.len());
            match shared.health.record_stall(&fault, Some(&identity)) {
                true => {
                    tracing::error!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault, waiting,
                        "consumer stalled: no message succeeds; failed messages wait, no attempt is spent");
                }
                false => {
                    tracing::warn!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault, waiting,
                        "message failed, and no other succeeded meanwhile; it waits, no attempt is spent");
                }
            }
        }
        self.make_room()
    }

    /// Takes deliveries from aside that are too many, or have waited too long: they go to the end of their queue, without an attempt.
    fn make_room(&self) -> Vec<DecidedDelivery> {
        let overflow = self.arrivals.take_overflow(|delivery| delivery.size()).into_iter();
        overflow.map(|delivery| postpone_delivery(&self.shared, delivery)).collect()
    }

    /// Commits the messages that may run now, and returns the outcomes by position. Redelivered messages, of which one may have killed a
    /// process, are left for rounds of their own: decisions before them must be settled before one of them runs.
    ///
    /// # Errors
    /// If the worker stops, or all channels of the batch are over: its messages come again.
    async fn commit_runnable(
        &mut self,
        origin: BatchOrigin,
        candidates: &[&Candidate],
    ) -> Result<RoundOutcomes, AbandonedBatch> {
        let is_from_aside = origin == BatchOrigin::Back;
        self.decider.record_others(candidates);
        if !has_suspects(candidates) {
            let outcomes = self.decider.commit(Isolation::None, is_from_aside, candidates).await?;
            return Ok(RoundOutcomes::from_outcomes(outcomes.into_iter().enumerate()));
        }
        let mut outcomes = Vec::new();
        let (isolation, positions) = match self.classify_suspects(candidates).await?.into_next() {
            BatchPart::GivenUp(positions) => {
                for (position, marks) in positions {
                    let text = format!("a process died {marks} times while this message was at work");
                    let fault = Fault::new(FaultClass::Crashed, None, text);
                    let began = self.shared.progress.begin();
                    outcomes.push((
                        position,
                        self.decider.runner.record_failed(began, candidates[position], &fault).await?,
                    ));
                }
                return Ok(RoundOutcomes::from_outcomes(outcomes));
            }
            BatchPart::Running(positions) => {
                let text = "another session runs a copy of this message";
                let fault = Fault::new(FaultClass::Contention, None, text);
                let waits = Outcome::Undecided { attempts: 0, fault };
                return Ok(RoundOutcomes::from_outcomes(
                    positions.into_iter().map(|position| (position, waits.clone())),
                ));
            }
            BatchPart::Run(isolation, positions) => (isolation, positions),
            // Behind them in the queue there may be others: these come first, and then a few of them at a time.
            BatchPart::Alone(later) if origin == BatchOrigin::Arrived => {
                return Ok(RoundOutcomes { outcomes, later });
            }
            BatchPart::Alone(positions) => (Isolation::Exclusive, positions.into_iter().take(1).collect()),
        };
        let candidates: Vec<&Candidate> = positions.iter().map(|&position| candidates[position]).collect();
        let outcomes = self.decider.commit(isolation, is_from_aside, &candidates).await?;
        Ok(RoundOutcomes::from_outcomes(positions.into_iter().zip(outcomes)))
    }

    /// Reads the suspects' rows, and groups the suspects by them: those that run together, those that run alone, and those that are given
    /// up. Waits while PostgreSQL is away.
    async fn classify_suspects(
        &mut self,
        candidates: &[&Candidate],
    ) -> Result<SuspectGroups, AbandonedBatch> {
        let identities: Vec<&Identity> = candidates.iter().map(|candidate| &candidate.identity).collect();
        loop {
            let shared = Arc::clone(&self.shared);
            let consumer = &shared.consumer;
            let session = self.decider.runner.ensure_session().await?;
            step("worker.look_up_suspects.before");
            let query = pg::look_up(&mut session.connection, &consumer.name, &identities);
            match pg::wait_for_answer(shared.postgres.client_timeout(), query).await {
                Ok(records) => {
                    step("worker.look_up_suspects.after");
                    let now = shared.clock.now();
                    let max_crashes = consumer.retry.max_crashes;
                    let groups = group_suspects(candidates, &records, consumer.on_conflict, max_crashes, now);
                    let crashes =
                        u64::try_from(groups.alone.len() + groups.given_up.len()).unwrap_or(u64::MAX);
                    shared.counters.metrics.crash_attempts.increment(crashes);
                    return Ok(groups);
                }
                Err(error) => self.decider.runner.wait_out(Interrupt::from_statement(error)).await?,
            }
        }
    }
}
