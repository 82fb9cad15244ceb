//! A consumer that only observes (`mode = "observe"`): it reads a queue of its own beside another consumer's, claims each message's key
//! under a name of its own, runs no handler, and records how it would have judged the message: first, duplicate, conflict, or without
//! identity.
//!
//! Beside the lanes, and not through them: nothing here fails, waits, is tried again or is published. One loop for each consumer, so that
//! messages are judged in the order of the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::sync::mpsc;

use super::batch::prepare::{ReadingStretch, prepare};
use super::candidate::{Candidate, PartialIdentity, RejectedDelivery, text};
use super::shared::ConsumerContext;
use oncely_amqp::{ChannelLife, Delivery};
use oncely_core::backoff::Backoff;
use oncely_core::decide::{KeyDecision, KeyRecord, KeyStatus, decide, leaders};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::reason::Rejection;
use oncely_failpoint::step;
use oncely_handler::{ConsumerHandler, Context, HandlerError, Message, SqlHandler, handler_fn};
use oncely_postgres::{self as pg, AuditRecord, NoSession, PgFault, Session, classify};

/// Outcome of observed messages in the trail.
pub(crate) const OBSERVED: &str = "observed";

/// Judgement of an observed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// Its key is new: it would have run.
    First,
    /// The same key and payload came before: it would have been stopped.
    Duplicate,
    /// It was redelivered, and its key is known: a copy, or the message itself, recorded before a connection was lost.
    Unsure,
    /// It would have been dead-lettered: another payload under a known key, or no identity.
    Rejected(Rejection),
}

impl Observation {
    /// Returns the reason for the trail and the metric; `None` for the first.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::First => None,
            Self::Duplicate => Some("duplicate"),
            Self::Unsure => Some("unsure"),
            Self::Rejected(rejection) => Some(rejection.reason.as_str()),
        }
    }

    /// Returns the judgement of a message that may have been recorded before.
    fn again(self) -> Self {
        match self {
            Self::First => Self::First,
            Self::Duplicate | Self::Unsure | Self::Rejected(_) => Self::Unsure,
        }
    }
}

/// An observed message.
struct ObservedMessage {
    queue: String,
    trace_id: Option<String>,
    /// It may have been recorded before.
    came_before: bool,
    known: PartialIdentity,
    /// Its identity and fingerprint; or the reason why it has none.
    is: Result<(Identity, Option<Fingerprint>), Rejection>,
    channel: Arc<ChannelLife>,
    tag: u64,
    arrived: Instant,
}

/// Returns a handler that is never called: it only decides whether messages must be JSON, if the configuration names one.
pub(crate) fn unused_handler(consumer: &oncely_config::ConsumerSettings) -> ConsumerHandler {
    match &consumer.handler {
        Some(function) => {
            ConsumerHandler::Sql(Arc::new(SqlHandler::new(function.clone(), consumer.largest_response())))
        }
        None => ConsumerHandler::Rust(Arc::new(handler_fn(async |_: Context<'_>, _: Message<'_>| {
            Err::<(), HandlerError>(HandlerError::transient("nothing runs where messages are only observed"))
        }))),
    }
}

/// Takes deliveries until the worker stops; recorded ones are acknowledged, and the rest comes again.
pub(super) async fn shadow(shared: Arc<ConsumerContext>, mut arriving: mpsc::Receiver<Box<Delivery>>) {
    let most = usize::try_from(shared.consumer.batch).unwrap_or(usize::MAX);
    let beat = shared.liveness.watch(format!("observing for {}", shared.consumer.name));
    let mut notebook =
        ObservationLog { shared: Arc::clone(&shared), session: None, backoff: Backoff::default() };
    loop {
        beat.idle();
        let first = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            first = arriving.recv() => first,
        };
        let Some(first) = first else { break };
        let mut batch = vec![first];
        while batch.len() < most
            && let Ok(next) = arriving.try_recv()
        {
            batch.push(next);
        }
        // Paused: the deliveries taken come again with their channel.
        let Some(_at_work) = shared.gate.begin() else { continue };
        let mut looked = Vec::with_capacity(batch.len());
        let mut read = ReadingStretch::default();
        for delivery in batch.into_iter().filter(|delivery| !delivery.channel.is_over()) {
            read.add(delivery.message.body.len()).await;
            looked.push(observe(&shared, delivery));
        }
        beat.expect(shared.postgres.client_timeout().saturating_mul(4) + LONGEST_PAUSE);
        while !looked.is_empty() {
            match notebook.note(&mut looked).await {
                Ok(sights) => {
                    acknowledge(&shared, looked, &sights).await;
                    break;
                }
                Err(fault) => {
                    shared.health.stalled(&fault, None);
                    shared.counters.outage();
                    tracing::warn!(consumer = %shared.consumer.name, error = %fault,
                        "cannot record observed messages; retrying");
                    tokio::select! {
                        () = shared.stop.cancelled() => break,
                        () = tokio::time::sleep(notebook.backoff.next_pause()) => {}
                    }
                    beat.expect(shared.postgres.client_timeout().saturating_mul(4) + LONGEST_PAUSE);
                }
            }
        }
    }
    if let Some(session) = notebook.session.take() {
        session.close().await;
    }
}

/// Longest pause of [`Backoff`].
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

fn observe(shared: &ConsumerContext, delivery: Box<Delivery>) -> ObservedMessage {
    let (prepared, known) = match prepare(shared, delivery) {
        Ok(Candidate { delivery, identity, fingerprint, .. }) => {
            let known = PartialIdentity::from(&identity);
            ((delivery, Ok((identity, fingerprint))), known)
        }
        Err(rejected) => {
            let RejectedDelivery { delivery, rejection, known } = *rejected;
            ((delivery, Err(rejection)), known)
        }
    };
    let (delivery, is) = prepared;
    ObservedMessage {
        queue: delivery.message.queue.clone(),
        trace_id: delivery.message.trace_id().map(|id| id.to_string()),
        came_before: delivery.message.redelivered,
        known,
        is,
        channel: Arc::clone(&delivery.channel),
        tag: delivery.tag,
        arrived: delivery.arrived,
    }
}

/// State of the recording of observed messages.
struct ObservationLog {
    shared: Arc<ConsumerContext>,
    session: Option<Session>,
    backoff: Backoff,
}

impl ObservationLog {
    /// Records the messages in one transaction. After an error nothing was recorded; or all of it, if the reply to COMMIT was lost: then
    /// they may have been recorded before.
    async fn note(&mut self, looked: &mut [ObservedMessage]) -> Result<Vec<Observation>, Fault> {
        let limit = self.shared.postgres.client_timeout();
        let mut session = match self.session.take().filter(|session| self.shared.factory.admits(session)) {
            Some(session) => session,
            None => {
                let opened = self.shared.factory.open(&self.shared.application()).await;
                opened.map_err(|error| session_fault(&error))?
            }
        };
        let mut is_committing = false;
        match pg::within(limit.saturating_mul(3), self.write(&mut session, looked, &mut is_committing)).await
        {
            Ok(Some(sights)) => {
                self.session = Some(session);
                self.backoff.reset();
                self.shared.health.resumed();
                Ok(sights)
            }
            Ok(None) => {
                self.session = Some(session);
                Err(Fault::new(FaultClass::Contention, None, "a key was collected meanwhile"))
            }
            // The session is dropped, in any state.
            Err(error) => {
                if is_committing {
                    looked.iter_mut().for_each(|one| one.came_before = true);
                }
                Err(match classify(error) {
                    PgFault::Fault(fault) => fault,
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                })
            }
        }
    }

    /// Writes the records. Returns `None` if a known key was collected meanwhile; the transaction is rolled back.
    async fn write(
        &self,
        session: &mut Session,
        looked: &[ObservedMessage],
        is_committing: &mut bool,
    ) -> Result<Option<Vec<Observation>>, sqlx::Error> {
        let shared = &*self.shared;
        let consumer = &shared.consumer.name;
        let now = shared.clock.now();
        let named: Vec<(usize, &Identity, Option<Fingerprint>)> = looked
            .iter()
            .enumerate()
            .filter_map(|(index, one)| {
                one.is.as_ref().ok().map(|(identity, print)| (index, identity, *print))
            })
            .collect();
        let leader_of = leaders(named.iter().map(|(_, identity, _)| *identity));
        let first: Vec<usize> = (0..named.len()).filter(|&place| leader_of[place].is_none()).collect();
        let claims: Vec<(&Identity, Option<Fingerprint>)> =
            first.iter().map(|&place| (named[place].1, named[place].2)).collect();
        let mut transaction = pg::begin(&mut session.connection).await?;
        let mut records: Vec<Option<KeyRecord>> = vec![None; named.len()];
        let Some(known) = claim_or_read(&mut transaction, consumer, now, &claims).await? else {
            transaction.rollback().await?;
            return Ok(None);
        };
        for (place, record) in first.into_iter().zip(known) {
            records[place] = record;
        }
        let mut sights: Vec<Observation> = looked
            .iter()
            .map(|one| match &one.is {
                Ok(_) => Observation::First,
                Err(rejection) => Observation::Rejected(rejection.clone()),
            })
            .collect();
        for (place, (index, _, print)) in named.iter().enumerate() {
            // Record of the key, by a message before this batch or the first of it.
            let record = match (&records[place], leader_of[place]) {
                (Some(record), _) => Some(record.clone()),
                (None, None) => None,
                (None, Some(leader)) => {
                    Some(records[leader].clone().unwrap_or_else(|| claimed(named[leader].2)))
                }
            };
            if let Some(record) = record {
                sights[*index] = match decide(&record, print.as_ref(), shared.consumer.on_conflict) {
                    KeyDecision::Reject(rejection) => Observation::Rejected(rejection),
                    KeyDecision::Duplicate | KeyDecision::Retake | KeyDecision::Leased => {
                        Observation::Duplicate
                    }
                };
            }
        }
        let sights: Vec<Observation> = sights
            .into_iter()
            .zip(looked)
            .map(|(sight, one)| if one.came_before { sight.again() } else { sight })
            .collect();
        let rows: Vec<AuditRecord<'_>> =
            looked.iter().zip(&sights).map(|(one, sight)| audit_record(one, sight)).collect();
        pg::append_audit(&mut transaction, consumer, &shared.worker, now, &rows).await?;
        *is_committing = true;
        step("observe.commit.before");
        transaction.commit().await?;
        step("observe.commit.after");
        Ok(Some(sights))
    }
}

/// Claims keys; returns the records of those that are known, by position. Returns `None` if one of these was collected meanwhile.
async fn claim_or_read(
    transaction: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> Result<Option<Vec<Option<KeyRecord>>>, sqlx::Error> {
    let mut records = vec![None; claims.len()];
    if claims.is_empty() {
        return Ok(Some(records));
    }
    let mut is_won = vec![false; claims.len()];
    for position in pg::claim(transaction, consumer, now, claims).await? {
        is_won[position] = true;
    }
    let lost: Vec<usize> = (0..claims.len()).filter(|&position| !is_won[position]).collect();
    if !lost.is_empty() {
        let identities: Vec<&Identity> = lost.iter().map(|&position| claims[position].0).collect();
        // A statement of its own: it sees the row to which the claim has lost.
        let found = pg::look_up(transaction, consumer, &identities).await?;
        for (position, record) in lost.into_iter().zip(found) {
            let Some(record) = record else { return Ok(None) };
            records[position] = Some(record);
        }
    }
    Ok(Some(records))
}

/// Returns the record of a key that this batch has claimed.
fn claimed(fingerprint: Option<Fingerprint>) -> KeyRecord {
    KeyRecord {
        status: KeyStatus::Completed,
        fingerprint,
        attempts: 1,
        crash_attempts: 0,
        reason: None,
        last_error: None,
        error_code: None,
        not_before: None,
        is_running: false,
        is_leased: false,
    }
}

fn audit_record<'a>(one: &'a ObservedMessage, sight: &'a Observation) -> AuditRecord<'a> {
    AuditRecord {
        tenant: text(one.known.tenant.as_ref()),
        key: text(one.known.key.as_ref()),
        queue: &one.queue,
        outcome: OBSERVED,
        reason: sight.reason(),
        error_code: None,
        detail: match sight {
            Observation::Rejected(rejection) => Some(&rejection.detail),
            Observation::Unsure => Some("redelivered: a copy, or noted before"),
            Observation::First | Observation::Duplicate => None,
        },
        attempt: 0,
        duration_us: None,
        trace_id: one.trace_id.as_deref(),
    }
}

fn session_fault(error: &NoSession) -> Fault {
    Fault::new(FaultClass::Environment, None, error.to_string())
}

/// Acknowledges recorded messages, and counts them.
async fn acknowledge(shared: &ConsumerContext, looked: Vec<ObservedMessage>, sights: &[Observation]) {
    let mut channels: Vec<(Arc<ChannelLife>, Vec<u64>)> = Vec::new();
    let mut completed = false;
    for (one, sight) in looked.into_iter().zip(sights) {
        let took = one.arrived.elapsed();
        shared.counters.metrics.observed(sight.reason());
        match sight {
            Observation::First => {
                completed = true;
                shared.counters.settled(&Outcome::Completed { attempt: 0, response: None }, took);
            }
            Observation::Duplicate | Observation::Unsure => {
                shared.counters.settled(&Outcome::Duplicate(DuplicateSource::Postgres), took);
            }
            // No message is dead-lettered here.
            Observation::Rejected(_) => {}
        }
        match channels.iter_mut().find(|(channel, _)| Arc::ptr_eq(channel, &one.channel)) {
            Some((_, tags)) => tags.push(one.tag),
            None => channels.push((one.channel, vec![one.tag])),
        }
    }
    if completed {
        shared.health.completed(shared.clock.now());
    }
    for (channel, tags) in channels {
        let (count, is_stale) = (tags.len(), channel.is_over());
        step("observe.ack.before");
        let settled = channel.settle(tags).await;
        step("observe.ack.after");
        shared.counters.metrics.acknowledged(count, !is_stale && settled.is_ok());
        if let Err(error) = settled {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
    }
}
