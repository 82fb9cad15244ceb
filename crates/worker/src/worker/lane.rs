//! A lane takes batches, one after another, through its own connection to PostgreSQL.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::precheck::precheck;
use super::batch::prepare::{names_unknown_key, prepare_all};
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
use crate::worker::undecided::{abandon_deliveries, postponed};
use oncely_amqp::{ChannelLife, Delivery};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_failpoint::step;
use oncely_postgres as pg;
use oncely_process::metrics::Stage;

/// Longest wait of a message for another transaction's locks, from one try to the next.
const LONGEST_HELD: Duration = Duration::from_secs(5);

/// Time for which messages that have to run alone let others pass at least: enough to take all that has arrived.
const LETS_PASS: Duration = Duration::from_millis(50);

/// Time after which an idle lane takes back its remaining marks: its session is gone, so they would count as crashes.
const MARKS_OWED: Duration = Duration::from_secs(1);

/// One lane.
pub(crate) struct Lane {
    shared: Arc<ConsumerContext>,
    arrivals: Arc<Arrivals<Box<Delivery>>>,
    pub(super) decider: Decider,
}

impl Lane {
    pub(crate) fn new(shared: Arc<ConsumerContext>, arrivals: Arc<Arrivals<Box<Delivery>>>) -> Self {
        let runner = TransactionRunner::new(Arc::clone(&shared), Arc::clone(&arrivals));
        Self { shared, arrivals, decider: Decider::new(runner) }
    }

    /// Takes batches until the worker stops. A batch that has been taken is finished first.
    pub(crate) async fn run(mut self) {
        let arrivals = Arc::clone(&self.arrivals);
        let shared = Arc::clone(&self.shared);
        loop {
            self.decider.runner.mark_idle();
            let mut batch = Vec::new();
            let (mut taken, mut late) = (BatchOrigin::Arrived, None);
            let owes = self.decider.runner.owes_marks();
            let mut is_over = true;
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => {}
                from = arrivals.take(&mut batch) => (taken, late) = from,
                // Deliveries taken by then are in `batch`.
                () = tokio::time::sleep(MARKS_OWED), if owes => is_over = false,
            }
            if batch.is_empty() && is_over {
                break;
            }
            if owes {
                self.decider.runner.take_back_marks().await;
            }
            self.decider.runner.expect_work(batch.len());
            // Paused: the deliveries taken come again when their channel is closed.
            let Some(_at_work) = shared.gate.begin() else {
                abandon_deliveries(&shared, batch).await;
                continue;
            };
            self.decider.together = TakenTogether::default();
            for batch in split_by_bytes(batch, |delivery| delivery.size()) {
                let abandon = self.shared.abandon.clone();
                let done = tokio::select! {
                    biased;
                    // Dropped half-way, together with its connection.
                    () = abandon.cancelled() => {
                        self.decider.runner.give_up_session().await;
                        Err(AbandonedBatch)
                    }
                    done = self.process_batch(taken, batch) => done,
                };
                self.decider.runner.end_trace();
                if done.is_err() {
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
        let done = settle(&self.shared, self.decider.runner.trace(), settled).await;
        self.decider.runner.expect_work(messages);
        done
    }

    /// Processes a batch from its preparation to its settlement.
    pub(super) async fn process_batch(
        &mut self,
        taken: BatchOrigin,
        deliveries: Vec<Box<Delivery>>,
    ) -> Result<(), AbandonedBatch> {
        let shared = Arc::clone(&self.shared);
        let mut at_work = Some(self.arrivals.at_work());
        let mut channels: Vec<Arc<ChannelLife>> = Vec::new();
        for delivery in &deliveries {
            if !channels.iter().any(|channel| Arc::ptr_eq(channel, &delivery.channel)) {
                channels.push(Arc::clone(&delivery.channel));
            }
        }
        self.decider.runner.begin_batch(channels.clone(), shared.traces.batch(deliveries.len()));
        let metrics = &shared.counters.metrics;
        #[allow(clippy::cast_precision_loss)] // a few thousand
        metrics.batch.record(deliveries.len() as f64);
        #[allow(clippy::cast_precision_loss)] // half of prefetch at most
        metrics.aside.set(self.arrivals.aside.len() as f64);
        let began = Instant::now();
        // A delivery of a lost channel comes again on the next one.
        let (gone, deliveries): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|delivery| delivery.channel.is_over());
        abandon_deliveries(&shared, gone).await;
        let postponed = self.make_room();
        if !postponed.is_empty() {
            self.settle(postponed).await?;
        }
        if shared.keys.are_stale() || deliveries.iter().any(|delivery| names_unknown_key(&shared, delivery)) {
            self.decider.runner.refresh_keys(began.into_std()).await?;
        }
        let (mut candidates, rejected) = prepare_all(&shared, deliveries).await;
        shared.record_stage(self.decider.runner.trace(), Stage::Prepare, began.into_std());
        if !rejected.is_empty() {
            let mut settled: Vec<DecidedDelivery> =
                rejected.into_iter().map(|one| DecidedDelivery::from(*one)).collect();
            self.decider.runner.reject(&mut settled).await?;
            settled.iter().for_each(|one| shared.journal.note(&one.delivery, &one.outcome));
            self.settle(settled).await?;
        }
        while !candidates.is_empty() {
            candidates = self.round(taken, &channels, &mut at_work, candidates).await?;
        }
        Ok(())
    }

    /// Decides and settles candidates; returns those that must go through another round: later messages of a batch if the first with the
    /// same identity did not complete, or had another payload; and redelivered ones, and new copies of them, which come after the others.
    async fn round(
        &mut self,
        taken: BatchOrigin,
        channels: &[Arc<ChannelLife>],
        at_work: &mut Option<BusyLane>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, AbandonedBatch> {
        let shared = Arc::clone(&self.shared);
        let mut round = Round::new(candidates);
        self.precheck(&mut round).await;
        let open = round.open();
        let work: Vec<&Candidate> = open.iter().map(|&index| round.candidate(index)).collect();
        let decided = self.decide(taken, &work).await?;
        round.decide(&open, decided);
        round.decide_copies(&shared);
        let records = round.audit_records();
        if !records.is_empty() {
            self.decider.runner.write_audit(&records).await?;
        }
        // A failover has happened in between, and may have undone earlier decisions: all are made again.
        if !self.decider.runner.confirm_epoch().await? {
            tracing::warn!(consumer = %shared.consumer.name,
                "database epoch changed during a batch; deciding the batch again");
            return Ok(round.into_candidates());
        }
        let DecidedRound { mut settled, again, undecided, suspects, completed } = round.end(&shared);
        let is_aside = !suspects.is_empty() || !undecided.is_empty();
        for Candidate { delivery, identity, .. } in suspects {
            let now = Instant::now();
            self.arrivals.aside.put(now + LETS_PASS, now, Cause::Suspect, identity.tenant, delivery);
        }
        *at_work = None;
        if !undecided.is_empty() {
            settled.extend(self.put_aside(taken, undecided, completed));
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
        Ok(again)
    }

    /// Asks the mirror about the round's identities.
    async fn precheck(&mut self, round: &mut Round) {
        let shared = Arc::clone(&self.shared);
        let runner = &mut self.decider.runner;
        runner.begin_round();
        let began = Instant::now();
        let open = round.open();
        let leading: Vec<&Candidate> = open.iter().map(|&index| round.candidate(index)).collect();
        if let Some((known, epoch)) =
            precheck(&shared, &runner.prediction, &mut runner.session, &leading).await
            && known.contains(&true)
        {
            runner.note_decided_epoch(epoch);
            runner.prediction.record_mirror_hit();
            for (index, _) in open.into_iter().zip(known).filter(|(_, known)| *known) {
                round.known_to_mirror(&shared, index);
            }
        }
        shared.record_stage(runner.trace(), Stage::Precheck, began.into_std());
    }

    /// Puts aside messages with failures that are not attributed yet. Returns those that have waited longest if there is no room for all:
    /// they go to the end of their queue, without an attempt. `goes_on`: another message of their batch has succeeded.
    fn put_aside(
        &mut self,
        taken: BatchOrigin,
        undecided: Vec<(Candidate, Fault)>,
        goes_on: bool,
    ) -> Vec<DecidedDelivery> {
        let shared = &self.shared;
        let now = Instant::now();
        let mut example = None;
        // Copies wait as long as the first of them.
        let mut waits: HashMap<Identity, (Duration, Instant)> = HashMap::new();
        for (Candidate { delivery, identity, .. }, fault) in undecided {
            let known = waits.entry(identity.clone());
            let has_failed = fault.class != FaultClass::Contention;
            let (wait, since) =
                *known.or_insert_with(|| shared.progress.undecided(&identity, now, has_failed));
            if fault.class == FaultClass::Contention {
                tracing::debug!(consumer = %shared.consumer.name, tenant = %identity.tenant, key = %identity.key,
                    error = %fault, "message waits: another transaction holds a lock that it needs");
                self.arrivals.aside.put(
                    now + wait.min(LONGEST_HELD),
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
        if let Some((identity, fault)) = example.filter(|_| !goes_on) {
            shared.progress.stall();
            self.arrivals.aside.pause(now, taken);
            let consumer = &shared.consumer.name;
            let (tenant, key, waiting) = (&identity.tenant, &identity.key, self.arrivals.aside.len());
            match shared.health.stalled(&fault, Some(&identity)) {
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
        let overflow = self.arrivals.overflow(|delivery| delivery.size()).into_iter();
        overflow.map(|delivery| postponed(&self.shared, delivery)).collect()
    }

    /// Commits the messages that may run now, and returns the outcomes by position. Redelivered messages, of which one may have killed a
    /// process, are left for rounds of their own: decisions before them must be settled before one of them runs.
    async fn decide(
        &mut self,
        taken: BatchOrigin,
        work: &[&Candidate],
    ) -> Result<RoundOutcomes, AbandonedBatch> {
        let back = taken == BatchOrigin::Back;
        self.decider.note_others(work);
        if !has_suspects(work) {
            let done = self.decider.commit(Isolation::None, back, work).await?;
            return Ok(RoundOutcomes::all(done.into_iter().enumerate()));
        }
        let mut outcomes = Vec::new();
        let (isolation, positions) = match self.tell_apart(work).await?.next() {
            BatchPart::GivenUp(positions) => {
                for (position, marks) in positions {
                    let text = format!("a process died {marks} times while this message was at work");
                    let fault = Fault::new(FaultClass::Crashed, None, text);
                    let began = self.shared.progress.begin();
                    outcomes.push((
                        position,
                        self.decider.runner.record_failed(began, work[position], &fault).await?,
                    ));
                }
                return Ok(RoundOutcomes::all(outcomes));
            }
            BatchPart::Running(positions) => {
                let text = "another session runs a copy of this message";
                let fault = Fault::new(FaultClass::Contention, None, text);
                let waits = Outcome::Undecided { attempts: 0, fault };
                return Ok(RoundOutcomes::all(
                    positions.into_iter().map(|position| (position, waits.clone())),
                ));
            }
            BatchPart::Run(isolation, positions) => (isolation, positions),
            // Behind them in the queue there may be others: these come first, and then a few of them at a time.
            BatchPart::Alone(later) if taken == BatchOrigin::Arrived => {
                return Ok(RoundOutcomes { outcomes, later });
            }
            BatchPart::Alone(positions) => (Isolation::Exclusive, positions.into_iter().take(1).collect()),
        };
        let some: Vec<&Candidate> = positions.iter().map(|&position| work[position]).collect();
        let done = self.decider.commit(isolation, back, &some).await?;
        Ok(RoundOutcomes::all(positions.into_iter().zip(done)))
    }

    async fn tell_apart(&mut self, work: &[&Candidate]) -> Result<SuspectGroups, AbandonedBatch> {
        let identities: Vec<&Identity> = work.iter().map(|candidate| &candidate.identity).collect();
        loop {
            let shared = Arc::clone(&self.shared);
            let consumer = &shared.consumer;
            let session = self.decider.runner.session().await?;
            step("worker.look_up_suspects.before");
            let asked = pg::look_up(&mut session.connection, &consumer.name, &identities);
            match pg::within(shared.postgres.client_timeout(), asked).await {
                Ok(records) => {
                    step("worker.look_up_suspects.after");
                    let now = shared.clock.now();
                    let crashes = consumer.retry.max_crashes;
                    let parts = group_suspects(work, &records, consumer.on_conflict, crashes, now);
                    let died = u64::try_from(parts.alone.len() + parts.given_up.len()).unwrap_or(u64::MAX);
                    shared.counters.metrics.crash_attempts.increment(died);
                    return Ok(parts);
                }
                Err(error) => self.decider.runner.wait_out(Interrupt::of_ours(error)).await?,
            }
        }
    }
}
