//! A lane's transactions: tried until they are decided, or until their messages will come again anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::Connection as _;

use super::call::{Attempt, Pass};
use super::deadline::in_time;
use super::forecast::Expect;
use super::isolate::Company;
use super::lane::{Abandoned, Lane};
use super::prepare::{Candidate, Known};
use super::shared::Shared;
use super::stop::Stop;
use super::transaction::{audit_only, record_failure, refuse, transact};
use super::unconfirmed::Unconfirmed;
use crate::amqp::Delivery;
use crate::blame::{Blame, Circumstances, blame};
use crate::fault::{Fault, FaultClass};
use crate::handler::Run;
use crate::identity::{Identity, IdentityPart};
use crate::outcome::Outcome;
use crate::pg::{self, AuditRecord, Session};

/// Most messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const SUBTRANSACTIONS: usize = 64;

/// For how many clean batches after one with a failure a lane goes on running batches in parts at once, which costs a clean
/// batch a little and spares one with a bad message its first pass.
const WARY: u32 = 16;

/// Messages of a batch that are run by themselves, fail, and have no witness, before the rest is left aside untried: what strikes so
/// many strikes the others as well, and a lane has more to do.
const UNWITNESSED: usize = 8;

/// Messages of a tenant in a batch that are run by themselves and find what they need held, before its others are left aside untried.
/// Each has waited for a lock.
const HELD: usize = 8;

/// How often a message waits for the process to be alone in it, before it runs beside others.
const MOST_TRIES: u32 = 8;

/// A run by itself that takes longer leaves those behind it that have met locks for later: each of them may wait as long.
const LONG: Duration = Duration::from_secs(1);

/// Why a batch is not decided by a transaction.
#[derive(Debug)]
enum Setback {
    /// Some message failed, or all of them did.
    Failed(Fault),
    /// Another transaction holds a key, or what else our own statements need.
    Held(Fault),
}

impl Setback {
    fn into_fault(self) -> Fault {
        match self {
            Self::Failed(fault) | Self::Held(fault) => fault,
        }
    }
}

impl Lane {
    /// Commits what can be: together; where some message fails, in parts, inside the server; and what the company in the batch may have
    /// caused, message by message, each in a transaction of its own. What nobody answers for yet is undecided. Where `back`, the
    /// messages have been through this, and run by themselves at once.
    pub(super) async fn commit(
        &mut self,
        company: Company,
        back: bool,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Abandoned> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        self.marks.begin();
        self.unconfirmed = Unconfirmed::default();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; work.len()];
        let fault = match back {
            true => None,
            false => self.in_company(company, work, &mut outcomes).await?,
        };
        self.by_themselves(company, work, &mut outcomes, fault).await?;
        self.shared.permits.decided();
        let shared = Arc::clone(&self.shared);
        let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        let is_undecided =
            |(_, outcome): &(&&Candidate, &Outcome)| matches!(outcome, Outcome::Undecided { .. });
        let undecided = work.iter().zip(&outcomes).filter(is_undecided);
        // Their runs have ended, and killed nobody.
        let mut unwritten: Vec<Identity> = undecided.map(|(one, _)| one.identity.clone()).collect();
        unwritten.extend(self.unconfirmed.take_found());
        self.marks.reported(unwritten);
        if self.marks.are_owed() {
            self.marks.take_back(&shared, &mut self.session).await;
        }
        self.permit = None;
        Ok(outcomes)
    }

    /// All of them in one transaction, and, where that fails, in one that keeps them apart. Fills in what is decided; returns what the
    /// last transaction failed with.
    async fn in_company(
        &mut self,
        company: Company,
        work: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
    ) -> Result<Option<Fault>, Abandoned> {
        let in_parts = matches!(self.shared.run, Run::Sql(_)) && work.len() > 1;
        let mut attempt = Attempt::new(Pass::Together);
        let mut last = None;
        if self.wary == 0 || !in_parts {
            let mut setback = match self.attempt(company, attempt, work).await? {
                Ok(done) => {
                    fill(outcomes, 0, done);
                    return Ok(None);
                }
                Err(setback) => setback,
            };
            self.wary = WARY;
            self.shared.counters.fallback();
            tracing::debug!(?setback, messages = work.len(), "a batch failed: its messages are told apart");
            if let Setback::Failed(fault) = &setback
                && fault.class == FaultClass::Contention
                && work.len() > 1
            {
                // Not the same way again: no other lane of the consumer is at work beside it.
                self.shared.permits.contended();
                attempt.contended = true;
                match self.attempt(company, attempt, work).await? {
                    Ok(done) => {
                        fill(outcomes, 0, done);
                        return Ok(None);
                    }
                    Err(again) => setback = again,
                }
            }
            if let Setback::Held(fault) = setback {
                return Ok(Some(fault));
            }
            last = Some(setback.into_fault());
        }
        let (pass, size) = match in_parts {
            true => (Pass::Parts, work.len()),
            // A single message is next to run by itself.
            false if work.len() == 1 => return Ok(last),
            false => (Pass::Each, SUBTRANSACTIONS),
        };
        attempt.pass = pass;
        for (number, chunk) in work.chunks(size).enumerate() {
            match self.attempt(company, attempt, chunk).await? {
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
        self.wary = match outcomes.iter().all(is_good) {
            true => self.wary.saturating_sub(1),
            false => WARY,
        };
        Ok(last)
    }

    /// Runs what is not decided message by message, each in a transaction of its own, and decides who answers for what fails there.
    async fn by_themselves(
        &mut self,
        company: Company,
        work: &[&Candidate],
        outcomes: &mut [Option<Outcome>],
        mut last: Option<Fault>,
    ) -> Result<(), Abandoned> {
        let (mut unwitnessed, mut is_slow) = (0, false);
        // By tenant: one that holds all of its keys keeps no other one's untried.
        let mut held: HashMap<&IdentityPart, usize> = HashMap::new();
        for index in 0..work.len() {
            let before = match &outcomes[index] {
                None => last.clone(),
                Some(Outcome::Undecided { fault, .. }) => Some(fault.clone()),
                Some(_) => continue,
            };
            let witness = outcomes.iter().any(|outcome| outcome.as_ref().is_some_and(Outcome::completes));
            let tenant = &work[index].identity.tenant;
            let is_held = is_slow || held.get(tenant).is_some_and(|held| *held >= HELD);
            if let Some(fault) = &before
                && (is_held && fault.class == FaultClass::Contention
                    || unwitnessed >= UNWITNESSED && !witness)
            {
                outcomes[index].get_or_insert(Outcome::Undecided { attempts: 0, fault: fault.clone() });
                continue;
            }
            match before.as_ref().map(|fault| fault.class) {
                // Not of a key that somebody holds: no lane of ours is in its way.
                Some(FaultClass::Contention) if is_collision(before.as_ref()) => {
                    self.shared.permits.contended()
                }
                // Its plans and prepared statements are of another time.
                Some(FaultClass::Session) => self.session = None,
                _ => {}
            }
            // The others need not wait for all of them.
            self.permit = None;
            let started = Instant::now();
            let outcome = self.by_itself(company, witness, work[index]).await?;
            is_slow |= started.elapsed() > LONG;
            if let Outcome::Undecided { fault, .. } = &outcome {
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
                if matches!(&outcomes[index], Some(Outcome::Undecided { fault, .. }) if fault.class != FaultClass::Contention)
                {
                    outcomes[index] = Some(self.by_itself(company, true, work[index]).await?);
                }
            }
        }
        Ok(())
    }

    /// Runs one message in a transaction of its own.
    async fn by_itself(
        &mut self,
        company: Company,
        witness: bool,
        one: &Candidate,
    ) -> Result<Outcome, Abandoned> {
        let attempt = Attempt { witness, ..Attempt::new(Pass::Single) };
        let fault = match self.attempt(company, attempt, &[one]).await? {
            Ok(mut done) => match done.pop() {
                Some(outcome) => return Ok(outcome),
                None => Fault::new(FaultClass::Transient, None, "a transaction without an outcome"),
            },
            Err(Setback::Held(fault)) => return Ok(Outcome::Undecided { attempts: 0, fault }),
            Err(Setback::Failed(fault)) => fault,
        };
        // It failed as a whole, at COMMIT or by a limit: nothing of it is recorded.
        let circumstances = Circumstances {
            by_itself: true,
            witness: witness || self.shared.progress.has_witness(&one.identity),
            is_last: true,
            poisoned: self.shared.progress.poisoned(),
        };
        match blame(fault.class, circumstances) {
            Blame::Message(class) => self.failed(one, &Fault { class, ..fault }).await,
            Blame::Company | Blame::Nobody => Ok(Outcome::Undecided { attempts: 0, fault }),
        }
    }

    /// One transaction, again and again while PostgreSQL is away or nothing at all can be written.
    async fn attempt(
        &mut self,
        company: Company,
        attempt: Attempt,
        work: &[&Candidate],
    ) -> Result<Result<Vec<Outcome>, Setback>, Abandoned> {
        let mut is_renewed = false;
        loop {
            let shared = Arc::clone(&self.shared);
            self.session().await?;
            let exclusive = shared.permits.is_serial();
            if self.permit.as_ref().is_none_or(|permit| exclusive && !permit.exclusive) {
                // Rolled back first: what is left of a failed transaction must hold no locks that another lane waits for, who has the permit.
                if let Some(session) = &mut self.session
                    && session.connection.should_flush()
                    && let Err(error) =
                        pg::within(shared.postgres.patience(), session.connection.ping()).await
                {
                    self.wait_out(Stop::of_ours(error)).await?;
                    continue;
                }
                self.permit = None;
                let company = match work {
                    // It has waited often enough for all others to pause.
                    [one] if shared.progress.tries(&one.identity) >= MOST_TRIES => Company::Suspects,
                    _ => company,
                };
                self.permit = shared.permits.take(company).await;
                if self.permit.is_none() {
                    let text = "others are at work, and it must run alone";
                    return Ok(Err(Setback::Held(Fault::new(FaultClass::Contention, None, text))));
                }
            }
            let stop = match self.once(&shared, company, attempt, work).await {
                Ok(outcomes) => {
                    self.backoff.reset();
                    self.note_history();
                    let decided = work.iter().map(|one| &one.identity).zip(&outcomes);
                    if shared.progress.note(decided) && self.intake.aside.resume(tokio::time::Instant::now())
                    {
                        tracing::info!(consumer = %shared.consumer.name, "a message has succeeded: consuming goes on");
                    }
                    match shared.progress.is_stalled() {
                        true => shared.health.committed(),
                        false => shared.health.resumed(),
                    }
                    return Ok(Ok(outcomes));
                }
                Err(stop) => stop,
            };
            match stop {
                Stop::Known => {}
                // The connection's own fault: once more on a new one.
                Stop::Failed(fault) if fault.class == FaultClass::Session && !is_renewed => {
                    is_renewed = true;
                    self.session = None;
                }
                Stop::Failed(fault) => return Ok(Err(Setback::Failed(fault))),
                Stop::Held(fault) => {
                    // Rolled back with the next use of the connection; its locks must not be held over a pause.
                    self.session = None;
                    return Ok(Err(Setback::Held(fault)));
                }
                Stop::Tainted(fault) => {
                    self.give_up_session().await;
                    return Ok(Err(Setback::Failed(fault)));
                }
                other => self.wait_out(other).await?,
            }
        }
    }

    async fn once(
        &mut self,
        shared: &Shared,
        company: Company,
        attempt: Attempt,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Stop> {
        let Some(session) = self.session.as_mut() else {
            return Err(Stop::NotNow(Fault::new(FaultClass::Transient, None, "no session")));
        };
        if company != Company::Any {
            self.marks.mark(shared, session, work).await?;
        }
        // By itself a message has failed before, so its key is most likely known.
        let expect = match attempt.pass {
            Pass::Single => Expect::Known,
            _ => self.forecast.expect(work),
        };
        let done = transact(shared, session, attempt, work, expect, &mut self.unconfirmed).await;
        match &done {
            Ok(outcomes) if outcomes.iter().all(|outcome| outcome.attempt() == Some(1)) => {
                self.forecast.nobody_knew();
            }
            Ok(_) | Err(Stop::Known) => self.forecast.postgres_knew(),
            Err(_) if expect == Expect::Fresh => self.forecast.fresh_failed(),
            Err(_) => {}
        }
        done
    }

    /// Something was decided on the session's database.
    fn note_history(&mut self) {
        if let Some(session) = &self.session
            && !self.histories.contains(&session.cell.epoch)
        {
            self.histories.push(session.cell.epoch.clone());
        }
    }

    /// Closes a session that nobody knows the state of, at both ends: its transaction and its locks must not linger.
    pub(super) async fn give_up_session(&mut self) {
        if let Some(session) = self.session.take() {
            let backend = session.backend;
            drop(session);
            self.shared.end(backend).await;
        }
    }

    pub(super) async fn failed(&mut self, one: &Candidate, fault: &Fault) -> Result<Outcome, Abandoned> {
        let mut counted = None;
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, record_failure(&shared, session, one, fault, &mut counted)).await {
                Ok(outcome) => {
                    self.note_history();
                    shared.progress.note(std::iter::once((&one.identity, &outcome)));
                    return Ok(outcome);
                }
                // The key itself: it is left for later, and with it what would have been recorded.
                Err(Stop::Held(fault)) => {
                    self.session = None;
                    return Ok(Outcome::Undecided { attempts: 0, fault });
                }
                Err(stop) => self.wait_out(stop).await?,
            }
        }
    }

    pub(super) async fn write_audit(&mut self, records: &[AuditRecord<'_>]) -> Result<(), Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, audit_only(&shared, session, records)).await {
                Ok(()) => {
                    self.note_history();
                    return Ok(());
                }
                Err(stop) => self.wait_out(stop).await?,
            }
        }
    }

    pub(super) async fn refuse(
        &mut self,
        refused: &mut [(Box<Delivery>, Known, Outcome)],
    ) -> Result<(), Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, refuse(&shared, session, refused)).await {
                Ok(()) => return Ok(()),
                Err(stop) => self.wait_out(stop).await?,
            }
        }
    }

    /// Nobody's fault: waits, with growing pauses, and gives the batch up only when its messages will come again anyway.
    pub(super) async fn wait_out(&mut self, stop: Stop) -> Result<(), Abandoned> {
        let shared = Arc::clone(&self.shared);
        let consumer = &shared.consumer.name;
        shared.counters.outage();
        match stop {
            Stop::Outage(outage) => {
                match outage.is_silence() {
                    // Perhaps only this connection is dead: its other end must not hold its locks.
                    true => self.give_up_session().await,
                    false => self.session = None,
                }
                tracing::warn!(%consumer, error = %outage, "PostgreSQL is away: consuming waits, no attempt is spent");
            }
            Stop::Known => return Ok(()),
            Stop::NotNow(fault) | Stop::Held(fault) | Stop::Failed(fault) => {
                // Its transaction may be open: sqlx rolls back with the next use of the connection, and that comes after a pause.
                // Other consumers must not wait for its locks meanwhile.
                self.session = None;
                shared.health.stalled(&fault, None);
                tracing::error!(%consumer, sqlstate = fault.code, error = %fault,
                    "consuming waits until this is mended; no attempt is spent");
            }
            Stop::Tainted(fault) => {
                self.give_up_session().await;
                tracing::error!(%consumer, error = %fault, "a connection to PostgreSQL is given up");
            }
        }
        // Waiting kills nobody, however long it takes and whoever ends the process meanwhile.
        self.marks.take_back(&shared, &mut self.session).await;
        self.pause().await
    }

    async fn pause(&mut self) -> Result<(), Abandoned> {
        // Never held over a pause: one consumer that waits must not stop the others.
        self.permit = None;
        let pause = self.backoff.next();
        tokio::select! {
            () = self.shared.stop.cancelled() => return Err(Abandoned),
            () = tokio::time::sleep(pause) => {}
        }
        // All of them: a delivery that is dropped while its channel lives would come again only when that channel ends.
        if self.epochs.iter().all(|epoch| epoch.is_over()) {
            return Err(Abandoned);
        }
        Ok(())
    }

    /// The lane's session, opened when there is none.
    pub(super) async fn session(&mut self) -> Result<&mut Session, Abandoned> {
        if self.session.as_ref().is_some_and(|open| !self.shared.history.admits(&open.cell.epoch)) {
            tracing::warn!(consumer = %self.shared.consumer.name, "a connection to an older timeline is given up");
            self.session = None;
        }
        while self.session.is_none() {
            match self.shared.open_session().await {
                Ok(session) => self.session = Some(session),
                Err(error) => {
                    self.shared.counters.outage();
                    tracing::warn!(consumer = %self.shared.consumer.name, error = %error, "consuming waits");
                    self.pause().await?;
                }
            }
        }
        self.session.as_mut().ok_or(Abandoned)
    }
}

/// Did two of our own transactions stand in each other's way?
fn is_collision(fault: Option<&Fault>) -> bool {
    fault.and_then(|fault| fault.code.as_deref()).is_some_and(|code| code.starts_with("40"))
}

/// Puts the outcomes of a part of a batch where they belong.
fn fill(outcomes: &mut [Option<Outcome>], from: usize, done: Vec<Outcome>) {
    for (slot, outcome) in outcomes[from..].iter_mut().zip(done) {
        *slot = Some(outcome);
    }
}
