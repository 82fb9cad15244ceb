//! What of a batch commits together, what apart, and what message by message: who is to blame, and who has to wait for whom.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attempts::{Attempts, Setback};
use super::deadline::is_late;
use super::plan::Plan;
use crate::blame::{Blame, Circumstances, blame};
use crate::fault::{Fault, FaultClass};
use crate::handler::Run;
use crate::identity::IdentityPart;
use crate::outcome::Outcome;
use crate::worker::abandoned::Abandoned;
use crate::worker::candidate::Candidate;
use crate::worker::isolation::permit::Isolation;

/// Most messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const SUBTRANSACTIONS: usize = 64;

/// For how many clean batches after one with a failure a lane goes on running batches apart at once, which costs a clean
/// batch a little and spares one with a bad message its first pass.
const PARTS_FIRST: u32 = 16;

/// Messages of a batch that are run by themselves, fail, and have no witness, before the rest is left aside untried: what strikes so
/// many strikes the others as well, and a lane has more to do.
const UNWITNESSED: usize = 8;

/// Messages of a tenant in a batch that are run by themselves and find what they need held, before its others are left aside untried.
/// Each has waited for a lock.
const MOST_HELD: usize = 8;

/// For how long a tenant is known as late after one of its messages has used up its time in vain.
const LATE: Duration = Duration::from_secs(60);

/// Once a message that runs by itself has taken longer than this, those behind it that met locks are left aside: each might take as long.
const LONG: Duration = Duration::from_secs(1);

/// Decides the batches of a lane.
pub(crate) struct Decider {
    pub(crate) attempts: Attempts,
    /// Batches that still run apart at once, since one has failed.
    parts_first: u32,
    /// Tenants of which a message has used up its time in vain and none has succeeded since; and when that was.
    late: HashMap<IdentityPart, Instant>,
}

impl Decider {
    pub(crate) fn new(attempts: Attempts) -> Self {
        Self { attempts, parts_first: 0, late: HashMap::new() }
    }

    /// Commits the batch in one transaction; where a message fails, in one that rolls back each failure by itself; and a failure that the
    /// rest of the batch may have caused runs again in a transaction of its own. A message whose failure nobody can be charged with yet
    /// stays undecided. Where `back`, the messages were undecided before, and each runs by itself at once. Messages of a tenant that is
    /// known as late never share a transaction with others, whose time they would use up: they come last, or wait aside.
    pub(crate) async fn commit(
        &mut self,
        isolation: Isolation,
        back: bool,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Abandoned> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        self.attempts.begin();
        self.late.retain(|_, at| at.elapsed() < LATE);
        let (mut order, late): (Vec<usize>, Vec<usize>) =
            (0..work.len()).partition(|&index| !self.late.contains_key(&work[index].identity.tenant));
        let fault = Fault::new(FaultClass::Contention, None, "messages of its tenant were out of time");
        let mut outcomes = vec![Outcome::Undecided { attempts: 0, fault }; work.len()];
        // Where all are known as late there is nobody to protect.
        let by_themselves = back || order.is_empty();
        if by_themselves {
            order.extend(late);
        }
        let now: Vec<&Candidate> = order.iter().map(|&index| work[index]).collect();
        let mut decided: Vec<Option<Outcome>> = vec![None; now.len()];
        let fault = match by_themselves {
            true => None,
            false => self.in_batch(isolation, &now, &mut decided).await?,
        };
        self.by_themselves(isolation, &now, &mut decided, fault).await?;
        for (index, outcome) in order.into_iter().zip(decided) {
            if let Some(outcome) = outcome {
                outcomes[index] = outcome;
            }
        }
        let is_undecided =
            |(_, outcome): &(&&Candidate, &Outcome)| matches!(outcome, Outcome::Undecided { .. });
        let undecided = work.iter().zip(&outcomes).filter(is_undecided);
        let unwritten = undecided.map(|(one, _)| one.identity.clone()).collect();
        self.attempts.end(unwritten).await;
        Ok(outcomes)
    }

    /// All of them in one transaction, and, where that fails, in one that keeps them apart. Fills in what is decided; returns what the
    /// last transaction failed with.
    async fn in_batch(
        &mut self,
        isolation: Isolation,
        work: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
    ) -> Result<Option<Fault>, Abandoned> {
        let shared = Arc::clone(self.attempts.shared());
        let in_parts = matches!(shared.run, Run::Sql(_)) && work.len() > 1;
        let mut contended = false;
        let mut last = None;
        if self.parts_first == 0 || !in_parts {
            let mut setback = match self.attempts.run(isolation, Plan::Together { contended }, work).await? {
                Ok(done) => {
                    fill(outcomes, 0, done);
                    return Ok(None);
                }
                Err(setback) => setback,
            };
            self.parts_first = PARTS_FIRST;
            shared.counters.fallback();
            tracing::debug!(?setback, messages = work.len(), "a batch failed: its messages are told apart");
            if let Setback::Failed(fault) = &setback
                && fault.class == FaultClass::Contention
                && work.len() > 1
            {
                // Not the same way again: no other lane of the consumer is at work beside it.
                shared.permits.contended();
                contended = true;
                match self.attempts.run(isolation, Plan::Together { contended }, work).await? {
                    Ok(done) => {
                        fill(outcomes, 0, done);
                        return Ok(None);
                    }
                    Err(again) => setback = again,
                }
            }
            let is_held = matches!(setback, Setback::Held(_));
            let fault = setback.into_fault();
            // Kept apart they would be out of time once more: the server ends a function's whole statement.
            if is_held || is_late(&fault) {
                return Ok(Some(fault));
            }
            last = Some(fault);
        }
        let size = match in_parts {
            true => work.len(),
            // A single message is next to run by itself.
            false if work.len() == 1 => return Ok(last),
            false => SUBTRANSACTIONS,
        };
        for (number, chunk) in work.chunks(size).enumerate() {
            let mut plan = Plan::Apart { contended, unparsed: false };
            let mut done = self.attempts.run(isolation, plan, chunk).await?;
            if in_parts && matches!(&done, Err(Setback::Failed(fault)) if is_of_values(fault)) {
                plan = Plan::Apart { contended, unparsed: true };
                done = self.attempts.run(isolation, plan, chunk).await?;
            }
            match done {
                Ok(done) => fill(outcomes, number * size, done),
                Err(setback) => last = Some(setback.into_fault()),
            }
        }
        let is_good = |outcome: &Option<Outcome>| {
            matches!(
                outcome,
                Some(Outcome::Completed { .. } | Outcome::Duplicate(_) | Outcome::Postponed { .. })
            )
        };
        self.parts_first = match outcomes.iter().all(is_good) {
            true => self.parts_first.saturating_sub(1),
            false => PARTS_FIRST,
        };
        Ok(last)
    }

    /// Runs what is not decided message by message, each in a transaction of its own, and decides who answers for what fails there.
    async fn by_themselves(
        &mut self,
        isolation: Isolation,
        work: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
        mut last: Option<Fault>,
    ) -> Result<(), Abandoned> {
        let (mut unwitnessed, mut is_slow) = (0, false);
        // By tenant: one that holds all of its keys keeps no other one's untried.
        let mut held: HashMap<&IdentityPart, usize> = HashMap::new();
        let mut late: HashSet<&IdentityPart> = HashSet::new();
        for index in 0..work.len() {
            let before = match &outcomes[index] {
                None => last.clone(),
                // It did not run: the next round isolates it.
                Some(Outcome::Undecided { fault, .. }) if fault.class == FaultClass::Crashed => continue,
                Some(Outcome::Undecided { fault, .. }) => Some(fault.clone()),
                Some(_) => continue,
            };
            let witness = outcomes.iter().any(|outcome| outcome.as_ref().is_some_and(Outcome::completes));
            let tenant = &work[index].identity.tenant;
            let is_held = is_slow || held.get(tenant).is_some_and(|held| *held >= MOST_HELD);
            if let Some(fault) = &before
                && (is_held && fault.class == FaultClass::Contention
                    || unwitnessed >= UNWITNESSED && !witness)
            {
                outcomes[index].get_or_insert(Outcome::Undecided { attempts: 0, fault: fault.clone() });
                continue;
            }
            // One that used up its time has taken it from all behind it: another of its tenant's waits for a later batch, and behind two
            // tenants' everybody does.
            if late.len() > 1 || late.contains(tenant) {
                let fault = Fault::new(FaultClass::Contention, None, "messages before it were out of time");
                outcomes[index] = Some(Outcome::Undecided { attempts: 0, fault });
                continue;
            }
            match before.as_ref().map(|fault| fault.class) {
                // Not of a key that somebody holds: no lane of ours is in its way.
                Some(FaultClass::Contention) if is_collision(before.as_ref()) => {
                    self.attempts.shared().permits.contended();
                }
                // Its plans and prepared statements are of another time.
                Some(FaultClass::Session) => self.attempts.drop_session(),
                _ => {}
            }
            // The others need not wait for all of them.
            self.attempts.drop_permit();
            let outcome = self.by_itself(isolation, witness, work[index]).await?;
            let is_long = self.attempts.took() > LONG;
            is_slow |= is_long;
            if outcome.completes() {
                self.late.remove(tenant);
            } else if is_long {
                late.insert(tenant);
                self.late.insert(tenant.clone(), Instant::now());
            }
            if let Outcome::Undecided { fault, .. } = &outcome
                && fault.class != FaultClass::Crashed
            {
                match fault.class {
                    FaultClass::Contention => *held.entry(tenant).or_default() += 1,
                    _ => unwitnessed += 1,
                }
                last = Some(fault.clone());
            }
            outcomes[index] = Some(outcome);
        }
        // One that came late has shown that it was not the environment: the earlier ones are tried once more, and answer for it.
        let is_completed = |outcome: &Option<Outcome>| outcome.as_ref().is_some_and(Outcome::completes);
        if unwitnessed > 0 && outcomes.iter().any(is_completed) {
            for index in 0..work.len() {
                if matches!(&outcomes[index], Some(Outcome::Undecided { fault, .. }) if !matches!(fault.class, FaultClass::Contention | FaultClass::Crashed))
                {
                    outcomes[index] = Some(self.by_itself(isolation, true, work[index]).await?);
                }
            }
        }
        Ok(())
    }

    /// Runs one message in a transaction of its own.
    async fn by_itself(
        &mut self,
        isolation: Isolation,
        witness: bool,
        one: &Candidate,
    ) -> Result<Outcome, Abandoned> {
        let fault = match self.attempts.run(isolation, Plan::ByItself { witness }, &[one]).await? {
            Ok(mut done) => match done.pop() {
                Some(outcome) => return Ok(outcome),
                None => Fault::new(FaultClass::Transient, None, "a transaction without an outcome"),
            },
            Err(Setback::Held(fault)) => return Ok(Outcome::Undecided { attempts: 0, fault }),
            Err(Setback::Failed(fault)) => fault,
        };
        // It failed as a whole, at COMMIT or by a limit: nothing of it is recorded.
        let progress = &self.attempts.shared().progress;
        let circumstances = Circumstances {
            by_itself: true,
            witness: witness || progress.has_witness(&one.identity, Instant::now().into()),
            is_last: true,
            poisoned: progress.poisoned(),
        };
        match blame(fault.class, circumstances) {
            Blame::Message(class) => self.attempts.failed(one, &Fault { class, ..fault }).await,
            Blame::Batch | Blame::Nobody => Ok(Outcome::Undecided { attempts: 0, fault }),
        }
    }
}

/// Did two of our own transactions stand in each other's way?
fn is_collision(fault: Option<&Fault>) -> bool {
    fault.and_then(|fault| fault.code.as_deref()).is_some_and(|code| code.starts_with("40"))
}

/// Is there a value that its type can't hold (SQLSTATE classes 22 and 54)? Where messages run apart, the handler's own errors come as
/// rows: if the statement fails as a whole, it is over what the messages were sent as.
fn is_of_values(fault: &Fault) -> bool {
    fault.code.as_deref().is_some_and(|code| code.starts_with("22") || code.starts_with("54"))
}

/// Puts the outcomes of a part of a batch where they belong.
fn fill(outcomes: &mut [Option<Outcome>], from: usize, done: Vec<Outcome>) {
    for (slot, outcome) in outcomes[from..].iter_mut().zip(done) {
        *slot = Some(outcome);
    }
}
