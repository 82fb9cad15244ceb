//! Decides which messages of a batch commit together, apart, or one by one; which are charged with failures, and which wait.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch_run::BatchPlan;
use super::deadline::QUERY_CANCELED_CODE;
use super::runner::TransactionRunner;
use super::setback::{Setback, Setbacks, concerns_responses};
use crate::worker::candidate::{Candidate, MAX_TRANSACTION_BYTES, total_size};
use crate::worker::interrupt::AbandonedBatch;
use crate::worker::isolation::contention::ContentionMode;
use crate::worker::isolation::permit::Isolation;
use crate::worker::progress::FailedRun;
use crate::worker::shared::ConsumerContext;
use oncely_core::blame::Blame;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::IdentityPart;
use oncely_core::outcome::Outcome;
use oncely_handler::ConsumerHandler;

/// Maximum number of messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const MAX_SUBTRANSACTIONS: usize = 64;

/// Number of clean batches after one with a failure in which a lane goes on running batches apart at once, which costs a clean batch a
/// little and spares one with a bad message its first pass.
const PARTS_FIRST_BATCHES: u32 = 16;

/// Share of failing messages from which each has a subtransaction from the start: parts of a batch would mostly fail, and run twice.
const MIN_FAILING_SHARE: f64 = 0.06;

/// Number of messages that make up half of the remembered share of failures.
const HALF_WEIGHT_MESSAGES: f64 = 64.0;

/// Messages of a batch that run by themselves, fail, and have no witness, before the rest is left aside untried: a fault of this number of
/// messages affects the others as well, and a lane has more to do.
const MAX_UNWITNESSED: usize = 8;

/// Messages of a tenant in a batch that run by themselves and meet held locks, before its others are left aside untried. Each has waited
/// for a lock.
const MAX_HELD_MESSAGES: usize = 8;

/// Time of a message that runs by itself after which those behind it that met locks are left aside: each might take as long. If it has not
/// succeeded, its tenant is late.
const MIN_LONG_RUN: Duration = Duration::from_secs(1);

/// Decides the batches of a lane.
pub(crate) struct Decider {
    pub(crate) runner: TransactionRunner,
    /// Maximum number of messages in a batch: with more, the responses were too large together.
    max_messages: usize,
    /// Number of next batches that run apart at once, since one has failed.
    parts_first: u32,
    /// Share of messages that fail, refused ones included.
    failing_share: f64,
    /// Messages that were taken together with these, decided before them.
    pub(crate) taken_together: TakenTogether,
}

/// Messages that were taken together, and are decided in parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenTogether {
    /// One has used up its time.
    is_out_of_time: bool,
    /// Some are of tenants that are not late.
    has_others: bool,
}

impl Decider {
    pub(crate) fn new(runner: TransactionRunner) -> Self {
        Self {
            runner,
            max_messages: usize::MAX,
            parts_first: 0,
            failing_share: 0.0,
            taken_together: TakenTogether::default(),
        }
    }

    /// Records whether any of these messages, taken together and decided in parts, is of a tenant that is not late.
    pub(crate) fn record_others(&mut self, candidates: &[&Candidate]) {
        let late = self.runner.arrivals.aside.late_tenants(Instant::now().into());
        self.taken_together.has_others |= candidates.iter().any(|one| !late.contains(&one.identity.tenant));
    }

    /// Commits the batch in one transaction; if a message fails, in one that rolls back each failure by itself; a failure that the rest of
    /// the batch may have caused runs again in a transaction of its own. A message with a failure that can't be attributed yet stays
    /// undecided. If `is_from_aside`, the messages were undecided before, and each runs by itself at once; so does a large one: its body is
    /// sent once then. Messages of a tenant that is known as late never share a transaction with others, since they would use up their
    /// time: they come last, or wait aside.
    pub(crate) async fn commit(
        &mut self,
        isolation: Isolation,
        is_from_aside: bool,
        candidates: &[&Candidate],
    ) -> Result<Vec<Outcome>, AbandonedBatch> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        self.runner.begin_commit();
        let late = self.runner.arrivals.aside.late_tenants(Instant::now().into());
        let (order, late_order): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|&index| !late.contains(&candidates[index].identity.tenant));
        let fault = Fault::new(FaultClass::Contention, None, "messages of its tenant were out of time");
        let mut outcomes = vec![Outcome::Undecided { attempts: 0, fault }; candidates.len()];
        // If all are known as late there are no others to protect, unless one of a large batch was out of time before them.
        let are_late =
            order.is_empty() && !self.taken_together.has_others && !self.taken_together.is_out_of_time;
        let by_themselves =
            is_from_aside || are_late || !order.is_empty() && total_size(candidates) > MAX_TRANSACTION_BYTES;
        let mut order = if by_themselves { order_by_turn(order, late_order, is_from_aside) } else { order };
        if !is_from_aside && self.runner.shared().consumer.lock_order.is_some() {
            order.sort_by(|one, other| candidates[*one].lock.cmp(&candidates[*other].lock));
        }
        let ordered: Vec<&Candidate> = order.iter().map(|&index| candidates[index]).collect();
        let mut ordered_outcomes: Vec<Option<Outcome>> = vec![None; ordered.len()];
        let fault = match by_themselves {
            true => None,
            false => self.run_in_batches(isolation, &ordered, &mut ordered_outcomes).await?,
        };
        self.run_one_by_one(isolation, are_late && !is_from_aside, &ordered, &mut ordered_outcomes, fault)
            .await?;
        for (index, outcome) in order.into_iter().zip(ordered_outcomes) {
            if let Some(outcome) = outcome {
                outcomes[index] = outcome;
            }
        }
        let is_undecided =
            |(_, outcome): &(&&Candidate, &Outcome)| matches!(outcome, Outcome::Undecided { .. });
        let undecided = candidates.iter().zip(&outcomes).filter(is_undecided);
        let unwritten = undecided.map(|(one, _)| one.identity.clone()).collect();
        self.runner.end_commit(unwritten).await;
        Ok(outcomes)
    }

    /// Runs the messages in batches, each of which commits or leaves nothing; one that fails runs another way. Fills in decided outcomes;
    /// returns the failure of the last batch that is left to run message by message, `None` without such a batch.
    async fn run_in_batches(
        &mut self,
        isolation: Isolation,
        candidates: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
    ) -> Result<Option<Fault>, AbandonedBatch> {
        let shared = Arc::clone(self.runner.shared());
        let (mut from, mut last_fault, mut setbacks) = (0, None, Setbacks::default());
        while from < candidates.len() {
            let Some((plan, max_messages)) = self.choose_plan(&shared, candidates.len() - from, setbacks)
            else {
                break;
            };
            let paced = shared.pace.as_ref().map_or(max_messages, |pace| match from {
                0 => pace.max_at_first(),
                _ => pace.max_messages(),
            });
            // Perhaps without a bound.
            let batch = &candidates[from..candidates
                .len()
                .min(from.saturating_add(max_messages.min(paced).min(self.max_messages)))];
            let result = self.runner.run(isolation, plan, batch).await?;
            let is_too_much =
                matches!(&result, Err(setback) if concerns_responses(setback)) && batch.len() > 1;
            if setbacks.gave_way && !is_too_much && !matches!(result, Err(Setback::Held(_))) {
                // No key was held: the consumer's own transactions collide.
                shared.contention.record_collision(Instant::now().into());
            }
            let setback = match result {
                Ok(result) => {
                    // Tried again with some more: responses change.
                    self.max_messages = self.max_messages.saturating_add(self.max_messages / 8 + 1);
                    self.adapt(&shared, plan, &result);
                    let late = batch.iter().zip(&result).find(|(_, outcome)| is_out_of_time(outcome));
                    if let Some((one, _)) = late.filter(|_| self.runner.duration() > MIN_LONG_RUN) {
                        self.record_out_of_time(&one.identity.tenant);
                    }
                    fill_outcomes(outcomes, from, result);
                    (from, setbacks) = (from + batch.len(), Setbacks::default());
                    continue;
                }
                Err(setback) => setback,
            };
            tracing::debug!(?setback, ?plan, messages = batch.len(), "a batch failed");
            if is_too_much {
                self.max_messages = batch.len() / 2;
                continue;
            }
            match setbacks.add_setback(plan, &setback, batch.len()) {
                Some(next) => {
                    if matches!(plan, BatchPlan::Together { .. }) && !next.gave_way {
                        self.parts_first = PARTS_FIRST_BATCHES;
                        shared.counters.count_fallback();
                    }
                    setbacks = next;
                }
                // Message by message, when the other batches are through.
                None => {
                    self.parts_first = PARTS_FIRST_BATCHES;
                    last_fault = Some(setback.into_fault());
                    (from, setbacks) = (from + batch.len(), Setbacks::default());
                }
            }
        }
        Ok(last_fault)
    }

    /// Chooses the plan for the next messages, and their maximum number; `None` for one by one, each in a transaction of its own.
    fn choose_plan(
        &self,
        shared: &ConsumerContext,
        messages: usize,
        setbacks: Setbacks,
    ) -> Option<(BatchPlan, usize)> {
        let mode = match (setbacks.gave_way, shared.contention.mode(Instant::now().into())) {
            (true, ContentionMode::Beside) => ContentionMode::Turns { max_messages: messages },
            (_, mode) => mode,
        };
        let (turn, max_messages) = match mode {
            ContentionMode::Beside => (false, messages),
            ContentionMode::Turns { max_messages } => (true, max_messages),
            ContentionMode::ByThemselves => return None,
        };
        let each = self.failing_share > MIN_FAILING_SHARE;
        if !setbacks.failed && !each && self.parts_first == 0 {
            return Some((BatchPlan::Together { turn }, max_messages));
        }
        // A single message that may fail runs by itself at once.
        if messages == 1 {
            return (!setbacks.failed && !each).then_some((BatchPlan::Together { turn }, 1));
        }
        let in_server = matches!(shared.handler, ConsumerHandler::Sql(_));
        if !in_server && !setbacks.failed && !each {
            return Some((BatchPlan::Together { turn }, max_messages));
        }
        let plan = BatchPlan::Apart { turn, each: each && !setbacks.unparsed, unparsed: setbacks.unparsed };
        // A failed message gives its subtransaction back.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        // up to a few thousand
        let room = (MAX_SUBTRANSACTIONS as f64 / (1.0 - self.failing_share).max(0.05)) as usize;
        Some((plan, if in_server && !each { max_messages } else { max_messages.min(room) }))
    }

    /// Updates the state for the next batch by one that is decided.
    fn adapt(&mut self, shared: &ConsumerContext, plan: BatchPlan, outcomes: &[Outcome]) {
        if plan.has_turn() {
            shared.contention.record_turn_end(outcomes.len(), Instant::now().into());
        }
        self.record_failing(outcomes);
        if matches!(plan, BatchPlan::Apart { .. }) {
            self.parts_first = match outcomes.iter().all(is_good) {
                true => self.parts_first.saturating_sub(1),
                false => PARTS_FIRST_BATCHES,
            };
        }
    }

    /// Updates the share of messages that fail, of the last hundred or so.
    fn record_failing(&mut self, outcomes: &[Outcome]) {
        #[allow(clippy::cast_precision_loss)] // up to a few thousand
        let (failed, all) =
            (outcomes.iter().filter(|outcome| !is_good(outcome)).count() as f64, outcomes.len() as f64);
        let weight = all / (all + HALF_WEIGHT_MESSAGES);
        self.failing_share += (failed / all.max(1.0) - self.failing_share) * weight;
    }

    /// Runs undecided messages one by one, each in a transaction of its own, and attributes their failures. If all `are_late`, those after
    /// the first second stay undecided: others may have arrived.
    async fn run_one_by_one(
        &mut self,
        isolation: Isolation,
        are_late: bool,
        candidates: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
        mut last_fault: Option<Fault>,
    ) -> Result<(), AbandonedBatch> {
        let (mut unwitnessed, mut is_slow) = (0, false);
        let began = Instant::now();
        // By tenant: a tenant with held keys only does not keep another's messages untried.
        let mut held: HashMap<&IdentityPart, usize> = HashMap::new();
        let mut late: HashSet<&IdentityPart> = HashSet::new();
        for index in 0..candidates.len() {
            let previous_fault = match &outcomes[index] {
                None => last_fault.clone(),
                // It did not run: the next round isolates it.
                Some(Outcome::Undecided { fault, .. }) if fault.class == FaultClass::Crashed => continue,
                Some(Outcome::Undecided { fault, .. }) => Some(fault.clone()),
                Some(_) => continue,
            };
            let witness =
                outcomes.iter().any(|outcome| outcome.as_ref().is_some_and(Outcome::has_completed_key));
            let tenant = &candidates[index].identity.tenant;
            let is_held = is_slow || held.get(tenant).is_some_and(|held| *held >= MAX_HELD_MESSAGES);
            if let Some(fault) = &previous_fault
                && (is_held && fault.class == FaultClass::Contention
                    || unwitnessed >= MAX_UNWITNESSED && !witness)
            {
                outcomes[index].get_or_insert(Outcome::Undecided { attempts: 0, fault: fault.clone() });
                continue;
            }
            // A message that used up its time has taken it from all behind it: others of its tenant wait for a later batch, and after two
            // such tenants all do.
            if late.len() > 1 || late.contains(tenant) || are_late && began.elapsed() > MIN_LONG_RUN {
                let fault = Fault::new(FaultClass::Contention, None, "messages before it were out of time");
                outcomes[index] = Some(Outcome::Undecided { attempts: 0, fault });
                continue;
            }
            if previous_fault.as_ref().is_some_and(|fault| fault.class == FaultClass::Session) {
                // Its plans and prepared statements are outdated.
                self.runner.drop_session();
            }
            // The others need not wait for all of them.
            self.runner.drop_permit();
            let first = previous_fault.is_none();
            let outcome =
                self.run_alone(isolation, BatchPlan::ByItself { witness, first }, candidates[index]).await?;
            self.record_failing(std::slice::from_ref(&outcome));
            is_slow |= self.runner.duration() > MIN_LONG_RUN;
            if self.record_time(tenant, &outcome) {
                late.insert(tenant);
            }
            if let Outcome::Undecided { fault, .. } = &outcome
                && fault.class != FaultClass::Crashed
            {
                match fault.class {
                    FaultClass::Contention => *held.entry(tenant).or_default() += 1,
                    _ => unwitnessed += 1,
                }
                last_fault = Some(fault.clone());
            }
            outcomes[index] = Some(outcome);
        }
        if unwitnessed > 0 {
            self.charge_unwitnessed(isolation, candidates, outcomes).await?;
        }
        Ok(())
    }

    /// Runs messages with unattributed failures once more, and charges them. A success after their failures shows that the environment is
    /// not the cause.
    async fn charge_unwitnessed(
        &mut self,
        isolation: Isolation,
        candidates: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), AbandonedBatch> {
        if !outcomes.iter().flatten().any(Outcome::has_completed_key) {
            return Ok(());
        }
        let plan = BatchPlan::ByItself { witness: true, first: false };
        for index in 0..candidates.len() {
            let progress = &self.runner.shared().progress;
            if matches!(&outcomes[index], Some(Outcome::Undecided { fault, .. }) if !matches!(fault.class, FaultClass::Contention | FaultClass::Crashed))
                && progress.has_witness(&candidates[index].identity, progress.begin(), Instant::now().into())
            {
                let outcome = self.run_alone(isolation, plan, candidates[index]).await?;
                self.record_time(&candidates[index].identity.tenant, &outcome);
                outcomes[index] = Some(outcome);
            }
        }
        Ok(())
    }

    /// Records how long the last message took, which ran by itself. Returns whether its tenant is late.
    fn record_time(&mut self, tenant: &IdentityPart, outcome: &Outcome) -> bool {
        let (duration, has_succeeded) = (self.runner.duration(), outcome.has_completed_key());
        let is_late = duration > MIN_LONG_RUN && !has_succeeded;
        match is_late {
            true => self.record_out_of_time(tenant),
            false => self.runner.arrivals.aside.record_in_time(
                Instant::now().into(),
                tenant,
                duration,
                has_succeeded,
            ),
        }
        is_late
    }

    /// Records that the last transaction took long, and that a message of this tenant was the reason.
    fn record_out_of_time(&mut self, tenant: &IdentityPart) {
        self.taken_together.is_out_of_time = true;
        self.runner.arrivals.aside.record_out_of_time(Instant::now().into(), tenant, self.runner.duration());
    }

    /// Runs one message in a transaction of its own, and attributes its failure. A failure that is charged to it is recorded.
    async fn run_alone(
        &mut self,
        isolation: Isolation,
        plan: BatchPlan,
        candidate: &Candidate,
    ) -> Result<Outcome, AbandonedBatch> {
        let began = self.runner.shared().progress.begin();
        let fault = match self.runner.run(isolation, plan, &[candidate]).await? {
            Ok(mut done) => match done.pop() {
                Some(outcome) => return Ok(outcome),
                None => Fault::new(FaultClass::Transient, None, "a transaction without an outcome"),
            },
            Err(Setback::Held(fault)) => return Ok(Outcome::Undecided { attempts: 0, fault }),
            Err(Setback::Failed(fault)) => fault,
        };
        if is_collision(&fault) {
            self.runner.shared().contention.record_collision(Instant::now().into());
        }
        // It failed as a whole, at COMMIT or by a limit: nothing of it is recorded.
        let shared = Arc::clone(self.runner.shared());
        let run = FailedRun {
            identity: &candidate.identity,
            class: fault.class,
            by_itself: true,
            began,
            has_success_beside: plan.has_witness(),
            is_repeated: shared.progress.was_charged_with(&candidate.identity, fault.code.as_deref()),
        };
        match shared.progress.blame(run, Instant::now().into()) {
            Blame::Message(class) => {
                shared.progress.record_charge(&candidate.identity, fault.code.as_deref());
                self.runner.record_failed(began, candidate, &Fault { class, ..fault }).await
            }
            Blame::Batch | Blame::Unknown => {
                if fault.class != FaultClass::Contention {
                    shared.progress.record_undecided_failure(&candidate.identity, Instant::now().into());
                }
                let fault = shared.progress.undecided_fault(run, fault, Instant::now().into());
                Ok(Outcome::Undecided { attempts: 0, fault })
            }
        }
    }
}

/// Returns whether two transactions waited for each other. A message alone in one most likely did so with another one of its consumer.
fn is_collision(fault: &Fault) -> bool {
    fault.class == FaultClass::Contention && fault.code.as_deref().is_some_and(|code| code.starts_with("40"))
}

/// Returns the order of messages that run by themselves: those of late tenants come last. If `is_from_aside`, the order is random: messages
/// behind others that meet locks are left untried, and come first another time.
fn order_by_turn(mut order: Vec<usize>, mut late: Vec<usize>, is_from_aside: bool) -> Vec<usize> {
    if is_from_aside {
        fastrand::shuffle(&mut order);
        fastrand::shuffle(&mut late);
    }
    order.extend(late);
    order
}

/// Returns whether the message was out of time in a batch that decided the others.
fn is_out_of_time(outcome: &Outcome) -> bool {
    let code = match outcome {
        Outcome::Undecided { fault, .. } => &fault.code,
        Outcome::Retried { code, .. } | Outcome::DeadLettered { code, .. } => code,
        _ => return false,
    };
    code.as_deref() == Some(QUERY_CANCELED_CODE)
}

/// Returns whether the message ran without a failure of its own. An early copy counts as well.
fn is_good(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed { .. } | Outcome::Duplicate(_) | Outcome::Postponed { .. })
}

/// Stores the outcomes of a part of a batch at their positions.
fn fill_outcomes(outcomes: &mut [Option<Outcome>], start: usize, part: Vec<Outcome>) {
    for (slot, outcome) in outcomes[start..].iter_mut().zip(part) {
        *slot = Some(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_late_tenants_come_last_in_whatever_order_the_others_are() {
        let mut firsts = HashSet::new();
        for _ in 0..200 {
            let order = order_by_turn((0..5).collect(), (5..9).collect(), true);
            assert!(order[..5].iter().all(|index| *index < 5), "{order:?}");
            firsts.extend([order[0], order[5]]);
        }
        assert_eq!(firsts.len(), 9, "each is first at some time");
        assert_eq!(order_by_turn(vec![1, 2], vec![0], false), [1, 2, 0]);
    }
}
