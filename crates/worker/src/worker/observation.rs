//! A consumer that only observes (`mode = "observe"`): it reads a queue of its own beside another consumer's, claims each message's key
//! under a name of its own, runs no handler, and records the decision that it would have made: first, duplicate, conflict, or without
//! identity.
//!
//! Beside the lanes, and not through them: nothing here fails, waits, is tried again or is published. One loop for each consumer, so that
//! messages are recorded in the order of the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::sync::mpsc;

use super::batch::prepare::{ReadingStretch, prepare};
use super::candidate::{Candidate, PartialIdentity, RejectedDelivery, text_or_empty};
use super::shared::ConsumerContext;
use oncely_amqp::{ChannelLife, Delivery};
use oncely_config::ConsumerSettings;
use oncely_core::backoff::Backoff;
use oncely_core::decide::{KeyDecision, KeyRecord, KeyStatus, decide_on_key, find_leaders};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::reason::Rejection;
use oncely_failpoint::step;
use oncely_handler::{ConsumerHandler, Context, HandlerError, Message, SqlHandler, handler_fn};
use oncely_postgres::{self as pg, AuditRecord, NoSession, PgFault, Session, classify};

/// Outcome of observed messages in the trail.
pub(crate) const OBSERVED_OUTCOME: &str = "observed";

/// Observation about a message: the decision that a handler's consumer would have made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// Its key is new: it would have run.
    First,
    /// A message with its key and payload came before: it would have been stopped.
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

    /// Converts the observation about a message that may have been recorded before: a known key may be its own.
    fn into_redelivered(self) -> Self {
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
    /// Whether it may have been recorded before.
    may_be_recorded: bool,
    partial_identity: PartialIdentity,
    /// The identity and fingerprint to claim; or the reason why it has none.
    claim: Result<(Identity, Option<Fingerprint>), Rejection>,
    channel: Arc<ChannelLife>,
    tag: u64,
    arrived_at: Instant,
}

/// Builds the placeholder handler of an observer, which is never called. A configured SQL function still decides whether bodies must be
/// JSON (`handler.json`); without one, any body is accepted.
pub(crate) fn build_placeholder_handler(consumer: &ConsumerSettings) -> ConsumerHandler {
    match &consumer.handler {
        Some(function) => {
            ConsumerHandler::Sql(Arc::new(SqlHandler::new(function.clone(), consumer.largest_response())))
        }
        None => ConsumerHandler::Rust(Arc::new(handler_fn(async |_: Context<'_>, _: Message<'_>| {
            Err::<(), HandlerError>(HandlerError::transient("nothing runs where messages are only observed"))
        }))),
    }
}

/// Takes and records deliveries until the worker stops. Recorded deliveries are acknowledged; the others come again.
pub(super) async fn run_observation(
    shared: Arc<ConsumerContext>,
    mut arriving: mpsc::Receiver<Box<Delivery>>,
) {
    let max_messages = usize::try_from(shared.consumer.batch).unwrap_or(usize::MAX);
    let beat = shared.liveness.watch(format!("observing for {}", shared.consumer.name));
    let mut log = ObservationLog { shared: Arc::clone(&shared), session: None, backoff: Backoff::default() };
    loop {
        beat.set_idle();
        let first = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            first = arriving.recv() => first,
        };
        let Some(first) = first else { break };
        let mut batch = vec![first];
        while batch.len() < max_messages
            && let Ok(next) = arriving.try_recv()
        {
            batch.push(next);
        }
        // Paused: the deliveries taken come again with their channel.
        let Some(_at_work) = shared.gate.begin_batch() else { continue };
        let mut messages = Vec::with_capacity(batch.len());
        let mut stretch = ReadingStretch::default();
        for delivery in batch.into_iter().filter(|delivery| !delivery.channel.is_over()) {
            stretch.add(delivery.message.body.len()).await;
            messages.push(observe(&shared, delivery));
        }
        beat.begin_step(shared.postgres.client_timeout().saturating_mul(4) + MAX_PAUSE);
        while !messages.is_empty() {
            match log.record(&mut messages).await {
                Ok(observations) => {
                    acknowledge(&shared, messages, &observations).await;
                    break;
                }
                Err(fault) => {
                    shared.health.record_stall(&fault, None);
                    shared.counters.count_outage();
                    tracing::warn!(consumer = %shared.consumer.name, error = %fault,
                        "cannot record observed messages; retrying");
                    tokio::select! {
                        () = shared.stop.cancelled() => break,
                        () = tokio::time::sleep(log.backoff.next_pause()) => {}
                    }
                    beat.begin_step(shared.postgres.client_timeout().saturating_mul(4) + MAX_PAUSE);
                }
            }
        }
    }
    if let Some(session) = log.session.take() {
        session.close().await;
    }
}

/// Maximum pause of [`Backoff`].
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Reads the observed parts of a delivery: its identity, or the reason why it has none.
fn observe(shared: &ConsumerContext, delivery: Box<Delivery>) -> ObservedMessage {
    let (delivery_and_claim, partial_identity) = match prepare(shared, delivery) {
        Ok(Candidate { delivery, identity, fingerprint, .. }) => {
            let partial_identity = PartialIdentity::from(&identity);
            ((delivery, Ok((identity, fingerprint))), partial_identity)
        }
        Err(rejected) => {
            let RejectedDelivery { delivery, rejection, identity: partial_identity } = *rejected;
            ((delivery, Err(rejection)), partial_identity)
        }
    };
    let (delivery, claim) = delivery_and_claim;
    ObservedMessage {
        queue: delivery.message.queue.clone(),
        trace_id: delivery.message.trace_id().map(|id| id.to_string()),
        may_be_recorded: delivery.message.redelivered,
        partial_identity,
        claim,
        channel: Arc::clone(&delivery.channel),
        tag: delivery.tag,
        arrived_at: delivery.arrived_at,
    }
}

/// State of the recording of observed messages.
struct ObservationLog {
    shared: Arc<ConsumerContext>,
    session: Option<Session>,
    backoff: Backoff,
}

impl ObservationLog {
    /// Records the messages in one transaction, and returns their observations in the same order. After an error nothing was recorded, or
    /// everything if the reply to COMMIT was lost: the messages are then marked as possibly recorded.
    async fn record(&mut self, messages: &mut [ObservedMessage]) -> Result<Vec<Observation>, Fault> {
        let limit = self.shared.postgres.client_timeout();
        let mut session =
            match self.session.take().filter(|session| self.shared.factory.record_timeline(session)) {
                Some(session) => session,
                None => {
                    let session = self.shared.factory.open(&self.shared.application()).await;
                    session.map_err(|error| to_environment_fault(&error))?
                }
            };
        let mut is_committing = false;
        match pg::wait_for_answer(
            limit.saturating_mul(3),
            self.write(&mut session, messages, &mut is_committing),
        )
        .await
        {
            Ok(Some(observations)) => {
                self.session = Some(session);
                self.backoff.reset();
                self.shared.health.record_resumption();
                Ok(observations)
            }
            Ok(None) => {
                self.session = Some(session);
                Err(Fault::new(FaultClass::Contention, None, "a key was collected meanwhile"))
            }
            // The session is dropped, in any state.
            Err(error) => {
                if is_committing {
                    messages.iter_mut().for_each(|one| one.may_be_recorded = true);
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
        messages: &[ObservedMessage],
        is_committing: &mut bool,
    ) -> Result<Option<Vec<Observation>>, sqlx::Error> {
        let shared = &*self.shared;
        let consumer = &shared.consumer.name;
        let now = shared.clock.now();
        let identified: Vec<(usize, &Identity, Option<Fingerprint>)> = messages
            .iter()
            .enumerate()
            .filter_map(|(index, one)| {
                one.claim.as_ref().ok().map(|(identity, print)| (index, identity, *print))
            })
            .collect();
        let leader_of = find_leaders(identified.iter().map(|(_, identity, _)| *identity));
        let first: Vec<usize> =
            (0..identified.len()).filter(|&position| leader_of[position].is_none()).collect();
        let claims: Vec<(&Identity, Option<Fingerprint>)> =
            first.iter().map(|&position| (identified[position].1, identified[position].2)).collect();
        let mut transaction = pg::begin(&mut session.connection).await?;
        let mut records: Vec<Option<KeyRecord>> = vec![None; identified.len()];
        let Some(known_records) = claim_or_read(&mut transaction, consumer, now, &claims).await? else {
            transaction.rollback().await?;
            return Ok(None);
        };
        for (position, record) in first.into_iter().zip(known_records) {
            records[position] = record;
        }
        let observations = self.decide_observations(messages, &identified, &leader_of, &records);
        let rows: Vec<AuditRecord<'_>> = messages
            .iter()
            .zip(&observations)
            .map(|(one, observation)| build_audit_record(one, observation))
            .collect();
        pg::append_audit(&mut transaction, consumer, &shared.worker, now, &rows).await?;
        *is_committing = true;
        step("observe.commit.before");
        transaction.commit().await?;
        step("observe.commit.after");
        Ok(Some(observations))
    }

    /// Decides for each message whether it is the first with its key, a duplicate or rejected, by the records of the keys and the messages
    /// before it in the batch. `identified` has the messages with an identity, `leader_of` and `records` an entry for each of these.
    fn decide_observations(
        &self,
        messages: &[ObservedMessage],
        identified: &[(usize, &Identity, Option<Fingerprint>)],
        leader_of: &[Option<usize>],
        records: &[Option<KeyRecord>],
    ) -> Vec<Observation> {
        let mut observations: Vec<Observation> = messages
            .iter()
            .map(|one| match &one.claim {
                Ok(_) => Observation::First,
                Err(rejection) => Observation::Rejected(rejection.clone()),
            })
            .collect();
        for (position, (index, _, print)) in identified.iter().enumerate() {
            // Record of the key, by a message before this batch or the first of it.
            let record = match (&records[position], leader_of[position]) {
                (Some(record), _) => Some(record.clone()),
                (None, None) => None,
                (None, Some(leader)) => Some(
                    records[leader].clone().unwrap_or_else(|| build_claimed_record(identified[leader].2)),
                ),
            };
            let Some(record) = record else { continue };
            let on_conflict = self.shared.consumer.on_conflict;
            observations[*index] = match decide_on_key(&record, print.as_ref(), on_conflict) {
                KeyDecision::Reject(rejection) => Observation::Rejected(rejection),
                KeyDecision::Duplicate | KeyDecision::Retake | KeyDecision::Leased => Observation::Duplicate,
            };
        }
        let with_message = observations.into_iter().zip(messages);
        with_message
            .map(|(observation, one)| match one.may_be_recorded {
                true => observation.into_redelivered(),
                false => observation,
            })
            .collect()
    }
}

/// Claims keys; returns the records of the known ones by position, `None` for a key that was claimed. Returns `None` if a known key was
/// collected meanwhile.
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

/// Builds the record of a key that this batch has claimed.
fn build_claimed_record(fingerprint: Option<Fingerprint>) -> KeyRecord {
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

/// Builds the row of the trail for an observed message.
fn build_audit_record<'a>(one: &'a ObservedMessage, observation: &'a Observation) -> AuditRecord<'a> {
    AuditRecord {
        tenant: text_or_empty(one.partial_identity.tenant.as_ref()),
        key: text_or_empty(one.partial_identity.key.as_ref()),
        queue: &one.queue,
        outcome: OBSERVED_OUTCOME,
        reason: observation.reason(),
        error_code: None,
        detail: match observation {
            Observation::Rejected(rejection) => Some(&rejection.detail),
            Observation::Unsure => Some("redelivered: a copy, or noted before"),
            Observation::First | Observation::Duplicate => None,
        },
        attempt: 0,
        duration_us: None,
        trace_id: one.trace_id.as_deref(),
    }
}

/// Converts the error of a session that could not be opened to a fault of the environment.
fn to_environment_fault(error: &NoSession) -> Fault {
    Fault::new(FaultClass::Environment, None, error.to_string())
}

/// Acknowledges recorded messages, and counts them.
async fn acknowledge(shared: &ConsumerContext, messages: Vec<ObservedMessage>, observations: &[Observation]) {
    let mut channels: Vec<(Arc<ChannelLife>, Vec<u64>)> = Vec::new();
    let mut has_completed = false;
    for (one, observation) in messages.into_iter().zip(observations) {
        let duration = one.arrived_at.elapsed();
        shared.counters.metrics.count_observed(observation.reason());
        match observation {
            Observation::First => {
                has_completed = true;
                shared.counters.count_settled(&Outcome::Completed { attempt: 0, response: None }, duration);
            }
            Observation::Duplicate | Observation::Unsure => {
                shared.counters.count_settled(&Outcome::Duplicate(DuplicateSource::Postgres), duration);
            }
            // No message is dead-lettered here.
            Observation::Rejected(_) => {}
        }
        match channels.iter_mut().find(|(channel, _)| Arc::ptr_eq(channel, &one.channel)) {
            Some((_, tags)) => tags.push(one.tag),
            None => channels.push((one.channel, vec![one.tag])),
        }
    }
    if has_completed {
        shared.health.record_completion(shared.clock.now());
    }
    for (channel, tags) in channels {
        let (count, is_stale) = (tags.len(), channel.is_over());
        step("observe.ack.before");
        let result = channel.settle(tags).await;
        step("observe.ack.after");
        shared.counters.metrics.count_acknowledgements(count, !is_stale && result.is_ok());
        if let Err(error) = result {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
    }
}
