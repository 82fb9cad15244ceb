//! A lane's transactions: tried until they are decided, or until their messages will come again anyway.

use std::sync::Arc;

use super::call::Pass;
use super::deadline::in_time;
use super::isolate::{Company, Turn};
use super::lane::{Abandoned, Lane};
use super::prepare::{Candidate, Known};
use super::shared::Shared;
use super::stop::Stop;
use super::transaction::{audit_only, record_failure, refuse, transact};
use super::unconfirmed::Unconfirmed;
use crate::amqp::Delivery;
use crate::fault::{Fault, FaultClass};
use crate::handler::Run;
use crate::outcome::Outcome;
use crate::pg::{AuditRecord, Session};
use crate::plant::planted;

/// Most messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const SUBTRANSACTIONS: usize = 64;

/// For how many clean batches after one with a failure a lane goes on running batches in parts at once, which costs a clean
/// batch a little and spares one with a bad message its first pass.
const WARY: u32 = 16;

impl Lane {
    /// Commits all: together; where some message fails, in parts, inside the server; what then still fails as a whole (at
    /// COMMIT, or by a timeout), each message in a subtransaction of its own, and at last one by one.
    pub(super) async fn commit(
        &mut self,
        company: Company,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Abandoned> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        self.marks.begin();
        self.unconfirmed = Unconfirmed::default();
        let outcomes = self.pass_after_pass(company, work).await?;
        self.marks.reported(self.unconfirmed.take_found());
        self.turn = None;
        Ok(outcomes)
    }

    async fn pass_after_pass(
        &mut self,
        company: Company,
        work: &[&Candidate],
    ) -> Result<Vec<Outcome>, Abandoned> {
        let in_parts = matches!(self.shared.run, Run::Sql(_)) && work.len() > 1;
        if self.wary == 0 || !in_parts {
            match self.attempt(company, Pass::Together, work).await? {
                Ok(outcomes) => return Ok(outcomes),
                Err(fault) => {
                    self.wary = WARY;
                    self.shared.counters.fallback();
                    tracing::debug!(fault = %fault, messages = work.len(), "a batch failed: it runs again, in parts");
                }
            }
        }
        if in_parts && let Ok(outcomes) = self.attempt(company, Pass::Parts, work).await? {
            let is_good =
                |outcome: &Outcome| matches!(outcome, Outcome::Completed { .. } | Outcome::Duplicate(_));
            self.wary = match outcomes.iter().all(is_good) {
                true => self.wary - 1,
                false => WARY,
            };
            return Ok(outcomes);
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
                    shared.health.resumed();
                    self.note_history();
                    return Ok(Ok(outcomes));
                }
                Err(stop) => stop,
            };
            match stop {
                Stop::Known => {}
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
        if company != Company::Any {
            self.marks.mark(shared, session, work).await?;
        }
        let expect = self.forecast.expect(work);
        let done = transact(shared, session, pass, work, expect, &mut self.unconfirmed).await;
        match &done {
            Ok(outcomes) if outcomes.iter().all(|outcome| outcome.attempt() == Some(1)) => {
                self.forecast.nobody_knew();
            }
            Ok(_) | Err(Stop::Known) => self.forecast.postgres_knew(),
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
                    return Ok(outcome);
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
            Stop::NotNow(fault) | Stop::Failed(fault) => {
                // Its transaction may be open: sqlx rolls back with the next use of the connection, and that comes after a pause.
                // Other consumers must not wait for its locks meanwhile.
                self.session = None;
                shared.health.stalled(&fault, None);
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
