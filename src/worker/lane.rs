//! A lane takes batches, one after another, through its own connection to PostgreSQL.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::call::Pass;
use super::deadline::in_time;
use super::isolate::{Company, Part, Parts, Turn, has_suspects, tell_apart};
use super::marks::Marks;
use super::portion::portions;
use super::precheck::precheck;
use super::prepare::{Candidate, Known, prepare};
use super::record::audit_record;
use super::settle::settle;
use super::shared::Shared;
use super::stop::Stop;
use super::transaction::{audit_only, record_failure, refuse, transact};
use crate::amqp::{Delivery, Epoch};
use crate::backoff::Backoff;
use crate::decide::leaders;
use crate::failpoint::step;
use crate::fault::{Fault, FaultClass};
use crate::identity::Identity;
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{self, AuditRecord, Session};
use crate::plant::planted;

/// Most messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const SUBTRANSACTIONS: usize = 64;

/// Deliveries on their way to the lanes, taken by one lane at a time.
pub(crate) type Intake = Arc<Mutex<mpsc::Receiver<Delivery>>>;

/// The batch was given up without a decision: its messages are not settled, so they come again.
#[derive(Debug)]
pub(crate) struct Abandoned;

/// One lane.
pub(crate) struct Lane {
    shared: Arc<Shared>,
    session: Option<Session>,
    backoff: Backoff,
    /// The channels that the batch at hand came on.
    epochs: Vec<Arc<Epoch>>,
    marks: Marks,
    turn: Option<Turn>,
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            session: None,
            backoff: Backoff::default(),
            epochs: Vec::new(),
            marks: Marks::default(),
            turn: None,
        }
    }

    /// Takes batches until told to stop. A batch that has been taken is finished first.
    pub(crate) async fn run(mut self, intake: Intake) {
        let most = usize::try_from(self.shared.consumer.batch).unwrap_or(1);
        loop {
            let mut batch = Vec::with_capacity(most);
            let taken = async {
                // Whoever waits for the intake takes what is there, without lingering: at a low rate batches are small and
                // quick, under a backlog they are full.
                let mut intake = intake.lock().await;
                intake.recv_many(&mut batch, most).await
            };
            // Both futures can be dropped while waiting: recv_many takes nothing then.
            let count = tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => break,
                count = taken => count,
            };
            if count == 0 {
                break;
            }
            for batch in portions(batch, |delivery| delivery.message.body.len()) {
                if self.batch(batch).await.is_err() {
                    // The process lives: whatever was at work has killed nobody.
                    self.marks.take_back(&self.shared, &mut self.session).await;
                    self.turn = None;
                    tracing::debug!(consumer = %self.shared.consumer.name, "a batch was left to redelivery");
                }
            }
        }
        self.marks.take_back(&self.shared, &mut self.session).await;
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    /// The walk of a batch.
    async fn batch(&mut self, deliveries: Vec<Delivery>) -> Result<(), Abandoned> {
        let shared = Arc::clone(&self.shared);
        self.epochs.clear();
        for delivery in &deliveries {
            if !self.epochs.iter().any(|epoch| Arc::ptr_eq(epoch, &delivery.epoch)) {
                self.epochs.push(Arc::clone(&delivery.epoch));
            }
        }
        if planted("ack_before_commit") {
            for delivery in &deliveries {
                let _ = delivery.epoch.settle([delivery.tag]).await;
            }
        }
        let mut candidates = Vec::with_capacity(deliveries.len());
        let mut refused = Vec::new();
        // What came on a channel that is gone comes again on the next one.
        for delivery in deliveries.into_iter().filter(|delivery| !delivery.epoch.is_over()) {
            match prepare(&shared, delivery) {
                Ok(candidate) => candidates.push(candidate),
                Err(refusal) => refused.push(refusal),
            }
        }
        if !refused.is_empty() {
            let mut settled = refused
                .into_iter()
                .map(|refused| (refused.delivery, refused.known, Outcome::refused(refused.rejection)))
                .collect::<Vec<_>>();
            self.refuse(&mut settled).await?;
            settle(&shared, settled).await?;
        }
        while !candidates.is_empty() {
            candidates = self.round(candidates).await?;
        }
        Ok(())
    }

    /// Decides and settles candidates; returns those that must go through another round: later messages of a batch whose
    /// first message with the same identity did not complete, or had another payload; and redelivered ones, whose turn comes
    /// after the others'.
    async fn round(&mut self, candidates: Vec<Candidate>) -> Result<Vec<Candidate>, Abandoned> {
        let shared = Arc::clone(&self.shared);
        let leader_of = leaders(candidates.iter().map(|candidate| &candidate.identity));
        let first: Vec<usize> = (0..candidates.len()).filter(|&index| leader_of[index].is_none()).collect();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; candidates.len()];

        let leading: Vec<&Candidate> = first.iter().map(|&index| &candidates[index]).collect();
        let known = precheck(&shared, &mut self.session, &leading).await;
        let mut listed = Vec::new();
        for (&index, known) in first.iter().zip(known) {
            if known {
                let outcome = Outcome::Duplicate(DuplicateSource::Mirror);
                if shared.list_duplicates {
                    listed.push(audit_record(&candidates[index], &outcome));
                }
                outcomes[index] = Some(outcome);
            }
        }
        let open: Vec<usize> = first.into_iter().filter(|&index| outcomes[index].is_none()).collect();
        let work: Vec<&Candidate> = open.iter().map(|&index| &candidates[index]).collect();
        for (position, outcome) in self.decide(&work).await? {
            outcomes[open[position]] = Some(outcome);
        }

        // The others follow the first of their identity.
        for (index, leader) in leader_of.iter().enumerate() {
            let Some(leader) = *leader else { continue };
            if candidates[leader].fingerprint != candidates[index].fingerprint {
                continue;
            }
            if let Some(retried @ Outcome::Retried { .. }) = &outcomes[leader] {
                // Waits as long as the first: run at once, the copies of one batch would use up all attempts.
                outcomes[index] = Some(retried.clone());
            } else if matches!(outcomes[leader], Some(Outcome::Completed { .. } | Outcome::Duplicate(_))) {
                let outcome = Outcome::Duplicate(DuplicateSource::Batch);
                if shared.list_duplicates {
                    listed.push(audit_record(&candidates[index], &outcome));
                }
                outcomes[index] = Some(outcome);
            }
        }
        if !listed.is_empty() {
            self.write_audit(&listed).await?;
        }
        let mut again = Vec::new();
        let mut settled = Vec::with_capacity(candidates.len());
        for (candidate, outcome) in candidates.into_iter().zip(outcomes) {
            match outcome {
                Some(outcome) => {
                    let known = Known::from(&candidate.identity);
                    settled.push((candidate.delivery, known, outcome));
                }
                None => again.push(candidate),
            }
        }
        settle(&shared, settled).await?;
        Ok(again)
    }

    /// Commits what may run now, and says what became of it, by position. Redelivered messages, of which one may have killed a
    /// process, are left for rounds of their own: what was decided before them must be settled before one of them runs.
    async fn decide(&mut self, work: &[&Candidate]) -> Result<Vec<(usize, Outcome)>, Abandoned> {
        if !has_suspects(work) || planted("never_isolate") {
            return Ok(self.commit(Company::Any, work).await?.into_iter().enumerate().collect());
        }
        let mut outcomes = Vec::new();
        let (company, positions) = match self.tell_apart(work).await?.next() {
            Part::GivenUp(positions) => {
                for (position, marks) in positions {
                    let text = format!("a process died {marks} times while this message was at work");
                    let fault = Fault::new(FaultClass::Crashed, None, text);
                    outcomes.push((position, self.failed(work[position], &fault).await?));
                }
                return Ok(outcomes);
            }
            Part::Run(company, positions) => (company, positions),
        };
        let some: Vec<&Candidate> = positions.iter().map(|&position| work[position]).collect();
        let done = self.commit(company, &some).await?;
        Ok(positions.into_iter().zip(done).collect())
    }

    async fn tell_apart(&mut self, work: &[&Candidate]) -> Result<Parts, Abandoned> {
        let identities: Vec<&Identity> = work.iter().map(|candidate| &candidate.identity).collect();
        loop {
            let shared = Arc::clone(&self.shared);
            let consumer = &shared.consumer;
            let session = self.session().await?;
            step("worker.look_up_suspects.before");
            let asked = pg::look_up(&mut session.connection, &consumer.name, &identities);
            match pg::within(shared.postgres.patience(), asked).await {
                Ok(records) => {
                    step("worker.look_up_suspects.after");
                    return Ok(tell_apart(work, &records, consumer.on_conflict, consumer.retry.max_crashes));
                }
                Err(error) => self.wait_out(Stop::of_ours(error)).await?,
            }
        }
    }

    /// Commits all: together; where some message fails, each in a subtransaction of its own; what then still fails as a
    /// whole (at COMMIT, or by a timeout), one by one.
    async fn commit(&mut self, company: Company, work: &[&Candidate]) -> Result<Vec<Outcome>, Abandoned> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        self.marks.begin();
        let outcomes = self.pass_after_pass(company, work).await?;
        // Each has an outcome now, and the rows say so.
        self.marks.reported();
        self.turn = None;
        Ok(outcomes)
    }

    async fn pass_after_pass(
        &mut self,
        company: Company,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Abandoned> {
        match self.attempt(company, Pass::Together, work).await? {
            Ok(outcomes) => return Ok(outcomes),
            Err(fault) => {
                self.shared.counters.fallback();
                tracing::debug!(fault = %fault, messages = work.len(), "a batch failed: each of its messages runs by itself");
            }
        }
        let mut outcomes = Vec::with_capacity(work.len());
        for chunk in work.chunks(SUBTRANSACTIONS) {
            match self.attempt(company, Pass::Each, chunk).await? {
                Ok(some) => outcomes.extend(some),
                Err(mut fault) => {
                    for &one in chunk {
                        if chunk.len() > 1 {
                            match self.attempt(company, Pass::Each, &[one]).await? {
                                Ok(some) => {
                                    outcomes.extend(some);
                                    continue;
                                }
                                Err(its_own) => fault = its_own,
                            }
                        }
                        outcomes.push(self.failed(one, &fault).await?);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// One transaction, again and again while no message is to blame. The inner result is the messages' failure.
    async fn attempt(
        &mut self,
        company: Company,
        pass: Pass,
        work: &[&Candidate],
    ) -> Result<Result<Vec<Outcome>, Fault>, Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            self.session().await?;
            if self.turn.is_none() {
                self.turn = Some(Turn::take(&shared.turns, company).await);
            }
            let stop = match self.once(&shared, company, pass, work).await {
                Ok(outcomes) => {
                    self.backoff.reset();
                    return Ok(Ok(outcomes));
                }
                Err(stop) => stop,
            };
            match stop {
                Stop::Outage(outage) if planted("outage_spends_attempt") => {
                    self.session = None;
                    let fault = Fault::new(FaultClass::Transient, None, outage.to_string());
                    let mut outcomes = Vec::with_capacity(work.len());
                    for &one in work {
                        outcomes.push(self.failed(one, &fault).await?);
                    }
                    return Ok(Ok(outcomes));
                }
                Stop::Failed(fault) => return Ok(Err(fault)),
                Stop::Tainted(fault) => {
                    self.give_up_session().await;
                    return Ok(Err(fault));
                }
                other => self.wait_out(other).await?,
            }
        }
    }

    async fn once(
        &mut self,
        shared: &Shared,
        company: Company,
        pass: Pass,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Stop> {
        let Some(session) = self.session.as_mut() else {
            return Err(Stop::NotNow(Fault::new(FaultClass::Transient, None, "no session")));
        };
        if !shared.history.admits(&session.cell.epoch) {
            self.session = None;
            let text = "the database has a newer history than this connection";
            return Err(Stop::NotNow(Fault::new(FaultClass::Environment, None, text)));
        }
        if company != Company::Any {
            self.marks.mark(shared, session, work).await?;
        }
        transact(shared, session, pass, work).await
    }

    /// Closes a session that nobody knows the state of, at both ends: its transaction and its locks must not linger.
    async fn give_up_session(&mut self) {
        if let Some(session) = self.session.take() {
            let backend = session.backend;
            drop(session);
            self.shared.end(backend).await;
        }
    }

    async fn failed(&mut self, one: &Candidate, fault: &Fault) -> Result<Outcome, Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, record_failure(&shared, session, one, fault)).await {
                Ok(outcome) => return Ok(outcome),
                Err(stop) => self.wait_out(stop).await?,
            }
        }
    }

    async fn write_audit(&mut self, records: &[AuditRecord]) -> Result<(), Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            match in_time(&shared, audit_only(&shared, session, records)).await {
                Ok(()) => return Ok(()),
                Err(stop) => self.wait_out(stop).await?,
            }
        }
    }

    async fn refuse(&mut self, refused: &mut [(Delivery, Known, Outcome)]) -> Result<(), Abandoned> {
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
    async fn wait_out(&mut self, stop: Stop) -> Result<(), Abandoned> {
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
            Stop::NotNow(fault) | Stop::Failed(fault) => {
                tracing::error!(%consumer, error = %fault, "consuming waits until this is mended; no attempt is spent");
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
        self.turn = None;
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
    async fn session(&mut self) -> Result<&mut Session, Abandoned> {
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
