//! A lane takes batches, one after another, through its own connection to PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

use super::call::Pass;
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
use crate::fault::{Fault, FaultClass};
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{AuditRecord, Session};

/// Most messages in a transaction that gives each a subtransaction of its own: PostgreSQL keeps 64 of them per backend in
/// shared memory (PGPROC_MAX_CACHED_SUBXIDS); beyond that every reader's snapshot gets slower.
const SUBTRANSACTIONS: usize = 64;

/// Longest time for one transaction on a connection that may have died without a word, unless two statements may take
/// longer. Well below RabbitMQ's consumer timeout of 30 minutes.
const DEADLINE: Duration = Duration::from_secs(300);

/// Waits for a transaction up to the deadline; then its connection is given up with it.
async fn in_time<T>(shared: &Shared, transaction: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let deadline = DEADLINE.max(shared.postgres.patience() * 2);
    match tokio::time::timeout(deadline, transaction).await {
        Ok(done) => done,
        // The future was dropped half-way: its connection is not used again.
        Err(_) => Err(Stop::Tainted(Fault::new(
            FaultClass::Transient,
            None,
            format!("not done within {deadline:?}"),
        ))),
    }
}

/// Most bytes of bodies in one transaction: all of them are one message to PostgreSQL, which takes up to 1 GiB.
const PORTION: usize = 64 << 20;

/// Parts of a batch with at most [`PORTION`] bytes each (or one message that is larger), in their order.
fn portions<T>(batch: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut portions: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in batch {
        let more = size(&one);
        match portions.last_mut() {
            Some(portion) if bytes + more <= PORTION => portion.push(one),
            _ => {
                bytes = 0;
                portions.push(vec![one]);
            }
        }
        bytes += more;
    }
    portions
}

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
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, session: None, backoff: Backoff::default(), epochs: Vec::new() }
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
                    tracing::debug!(consumer = %self.shared.consumer.name, "a batch was left to redelivery");
                }
            }
        }
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
    /// first message with the same identity did not complete, or had another payload.
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
        for (index, outcome) in open.iter().zip(self.commit(&work).await?) {
            outcomes[*index] = Some(outcome);
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

    /// Commits all: together; where some message fails, each in a subtransaction of its own; what then still fails as a
    /// whole (at COMMIT, or by a timeout), one by one.
    async fn commit(&mut self, work: &[&Candidate]) -> Result<Vec<Outcome>, Abandoned> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        match self.attempt(Pass::Together, work).await? {
            Ok(outcomes) => return Ok(outcomes),
            Err(fault) => {
                self.shared.counters.fallback();
                tracing::debug!(fault = %fault, messages = work.len(), "a batch failed: each of its messages runs by itself");
            }
        }
        let mut outcomes = Vec::with_capacity(work.len());
        for chunk in work.chunks(SUBTRANSACTIONS) {
            match self.attempt(Pass::Each, chunk).await? {
                Ok(some) => outcomes.extend(some),
                Err(mut fault) => {
                    for &one in chunk {
                        if chunk.len() > 1 {
                            match self.attempt(Pass::Each, &[one]).await? {
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
        pass: Pass,
        work: &[&Candidate],
    ) -> Result<Result<Vec<Outcome>, Fault>, Abandoned> {
        loop {
            let shared = Arc::clone(&self.shared);
            let session = self.session().await?;
            let stop = match in_time(&shared, transact(&shared, session, pass, work)).await {
                Ok(outcomes) => {
                    self.backoff.reset();
                    return Ok(Ok(outcomes));
                }
                Err(stop) => stop,
            };
            match stop {
                Stop::Failed(fault) => return Ok(Err(fault)),
                Stop::Tainted(fault) => {
                    self.session = None;
                    return Ok(Err(fault));
                }
                other => self.wait_out(other).await?,
            }
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
        let consumer = &self.shared.consumer.name;
        self.shared.counters.outage();
        match stop {
            Stop::Outage(outage) => {
                self.session = None;
                tracing::warn!(%consumer, error = %outage, "PostgreSQL is away: consuming waits, no attempt is spent");
            }
            Stop::NotNow(fault) | Stop::Failed(fault) => {
                tracing::error!(%consumer, error = %fault, "consuming waits until this is mended; no attempt is spent");
            }
            Stop::Tainted(fault) => {
                self.session = None;
                tracing::error!(%consumer, error = %fault, "a connection to PostgreSQL is given up");
            }
        }
        self.pause().await
    }

    async fn pause(&mut self) -> Result<(), Abandoned> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_where_postgresql_could_not_take_it_at_once() {
        let split = |sizes: &[usize]| portions(sizes.to_vec(), |size| *size);
        assert_eq!(split(&[1, 2, 3]), [vec![1, 2, 3]]);
        assert_eq!(split(&[PORTION, 1, PORTION - 1, 1]), [vec![PORTION], vec![1, PORTION - 1], vec![1]]);
        assert_eq!(split(&[2 * PORTION, 1]), [vec![2 * PORTION], vec![1]]);
        assert_eq!(split(&[]), Vec::<Vec<usize>>::new());
    }
}
