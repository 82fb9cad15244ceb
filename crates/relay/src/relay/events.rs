//! One batch of events: takes, publishes, deletes those that have arrived, counts those that have failed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lapin::BasicProperties;
use lapin::types::{FieldTable, ShortString};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::waker::{LaneWait, ReadResult};
use oncely_amqp::{
    AmqpError, MAX_CONCURRENT_EXCHANGES, OutgoingMessage, PublishConnection, PublishLimits, PublishResult,
    restore_headers,
};
use oncely_config::EventSettings;
use oncely_core::blame::{Blame, Circumstances, blame};
use oncely_core::fault::FaultClass;
use oncely_core::own_headers;
use oncely_failpoint::step;
use oncely_postgres::{
    self as pg, EventFailure, NoSession, OrderingKeyCursor, Session, TakeLimits, TakenEvent, Unit,
};
use oncely_process::witnesses::{Began, OtherFailures, TryResult, Witnesses};
use oncely_traces::EventTraces;

/// Maximum number of bytes in one batch, of payloads and of decoded headers, unless it is one event.
const MAX_BATCH_BYTES: i64 = 8 << 20;

/// Maximum number of bytes in one batch for which a connection keeps memory.
const MAX_KEPT_BYTES: i64 = 1 << 20;

/// Maximum number of bytes of payload that are sent between two checks of the time limit.
const MAX_PART_BYTES: usize = 512 << 10;

/// Maximum number of events of one ordering key in one batch: each is published and confirmed before the next.
const MAX_EVENTS_PER_KEY: i64 = 50;

/// Reason of an event that was not sent, as its queue is silent.
const HELD_BACK_REASON: &str = "held_back";

/// Ordering keys that are read for one batch, as a multiple of its events: many keys may wait.
const KEYS_PER_EVENT: i64 = 10;

/// Results of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventReport {
    pub(crate) taken: usize,
    /// Confirmed and deleted.
    pub(crate) published: usize,
    /// Refused or returned; tried again later.
    pub(crate) failed: usize,
    /// Refused or returned for the last time.
    pub(crate) parked: usize,
    /// Those of `failed` with a failure that may affect every event. No attempt is spent.
    pub(crate) undecided: usize,
    /// Time at which the oldest published event was written, and time at which it was taken.
    pub(crate) oldest: Option<(DateTime<Utc>, DateTime<Utc>)>,
}

impl EventReport {
    /// Sets the numbers of failed, parked and undecided events.
    fn count_failures(&mut self, failures: &[EventFailure<'_>]) {
        self.parked = failures.iter().filter(|failure| failure.retry_at.is_none()).count();
        self.failed = failures.len() - self.parked;
        let undecided =
            failures.iter().filter(|failure| !failure.is_charged() && failure.reason != HELD_BACK_REASON);
        self.undecided = undecided.count();
    }
}

/// Reason why a batch, or a part of it, is not published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventError {
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("{0}")]
    NoSession(#[from] NoSession),
    #[error("{0}")]
    Amqp(#[from] AmqpError),
    #[error("changed {changed} of {expected} events")]
    Changed { changed: u64, expected: usize },
}

/// Inputs of a batch.
pub(crate) struct EventBatch<'a, 'b> {
    pub(crate) session: &'a mut Session,
    pub(crate) unit: &'a Unit,
    /// Present if commits wait for a standby: queries whether the data that `session` sees has reached it.
    pub(crate) witness: Option<&'a mut PgConnection>,
    pub(crate) connection: &'a PublishConnection,
    pub(crate) settings: &'a EventSettings,
    /// The unit's.
    pub(crate) cursor: &'a mut OrderingKeyCursor,
    /// Whether this batch takes ordered events first; the next one does not.
    pub(crate) ordered_first: &'a mut bool,
    pub(crate) client_timeout: Duration,
    /// Time after which no more of the batch is published.
    pub(crate) max_publish_time: Duration,
    /// Maximum wait for an answer of the broker. Confirms are awaited until that much time after `max_publish_time`, and then a channel may
    /// be opened to see whether the broker answers at all, in two such waits: PostgreSQL lets the batch's transaction be idle for longer
    /// than all of them.
    pub(crate) answer_timeout: Duration,
    pub(crate) traces: &'a EventTraces,
    pub(crate) witnesses: &'a Witnesses<Uuid>,
    /// The lane, for the result of its read, which is known before the events are published.
    pub(crate) lane: &'a mut LaneWait<'b>,
}

/// Returns whether any event of a unit is due, for a lane that has no connection to the broker yet: without events it needs none. Takes
/// events in a transaction that is rolled back.
pub(crate) async fn has_due_events(
    session: &mut Session,
    unit: &Unit,
    settings: &EventSettings,
    client_timeout: Duration,
) -> Result<bool, sqlx::Error> {
    let now = session.clock.now();
    let mut transaction = pg::wait_for_answer(client_timeout, session.connection.begin()).await?;
    let limits = TakeLimits { events: 1, per_key: 1, ..take_limits(settings) };
    let mut cursor = None;
    let query = async {
        Ok(!pg::take_events(&mut transaction, unit, now, limits).await?.is_empty()
            || !pg::take_ordered(&mut transaction, unit, now, limits, &mut cursor).await?.is_empty()
            // The walk ended early: a lane that goes on from there finds the events behind these keys.
            || cursor.is_some())
    };
    let has_events = pg::wait_for_answer(client_timeout, query).await?;
    pg::wait_for_answer(client_timeout, transaction.rollback()).await?;
    Ok(has_events)
}

/// Returns the limits of one batch.
fn take_limits(settings: &EventSettings) -> TakeLimits {
    let events = i64::from(settings.batch);
    TakeLimits {
        events,
        bytes: MAX_BATCH_BYTES,
        keys: events * KEYS_PER_EVENT,
        per_key: MAX_EVENTS_PER_KEY.min(events),
    }
}

impl EventBatch<'_, '_> {
    /// Takes a batch of events, publishes it, deletes the events that have arrived. The rows stay locked meanwhile, so that several lanes
    /// and relays share the work; a crash before the COMMIT publishes the same events again, with the same `message_id`s. Beside the
    /// results it returns the error of the broker's connection that ended the batch; `None` if the batch was not ended early.
    pub(crate) async fn publish(self) -> Result<(EventReport, Option<AmqpError>), EventError> {
        let Self {
            session,
            unit,
            witness,
            connection,
            settings,
            cursor,
            ordered_first,
            client_timeout,
            max_publish_time,
            answer_timeout,
            traces,
            witnesses,
            lane,
        } = self;
        let now = session.clock.now();
        let mut transaction = pg::wait_for_answer(client_timeout, session.connection.begin()).await?;
        step("events.take.before");
        let limits = take_limits(settings);
        let events =
            take_batch(&mut transaction, unit, client_timeout, now, limits, cursor, *ordered_first).await?;
        *ordered_first = !*ordered_first;
        step("events.take.after");
        lane.record_read(match events.len() {
            // Also where the walk over the ordering keys goes on: those that it has seen wait.
            0 => ReadResult::Nothing,
            taken if i64::try_from(taken).is_ok_and(|taken| taken < limits.events) => ReadResult::Some,
            _ => ReadResult::Full,
        });
        if events.iter().map(TakenEvent::size).sum::<i64>() > MAX_KEPT_BYTES {
            // It would keep the memory for the largest batch.
            transaction.shrink_buffers();
        }
        if events.is_empty() {
            pg::wait_for_answer(client_timeout, transaction.rollback()).await?;
            return Ok((EventReport::default(), None));
        }
        // Visible is not enough if a standby may take over: an event that may still be lost must not be published.
        if let Some(witness) = witness {
            pg::wait_for_answer(client_timeout, pg::wait_for_standby(witness)).await?;
        }
        step("events.publish.before");
        let began = witnesses.begin();
        let record_publish = |event: &TakenEvent, result: &PublishResult, began| {
            let failure = describe_failure(event, result).map(|(reason, _)| reason);
            traces.record_publish(event, now, began, failure);
        };
        let until = Instant::now() + max_publish_time;
        let limits = PublishLimits { answer_timeout, until: Some(until + answer_timeout) };
        let (results, failure) = publish_in_waves(connection, &events, until, limits, record_publish).await;
        step("events.publish.after");
        let mut report = EventReport { taken: events.len(), ..EventReport::default() };
        let arrived_events: Vec<&TakenEvent> = zip_results(&events, &results)
            .filter(|(_, result)| **result == PublishResult::Arrived)
            .map(|(event, _)| event)
            .collect();
        delete_arrived(&mut transaction, client_timeout, &arrived_events).await?;
        report.published = arrived_events.len();
        report.oldest = arrived_events.iter().map(|event| event.created_at).min().map(|oldest| (oldest, now));
        // Publishing may have taken longer than a pause.
        let now = session.clock.now();
        let judge = FailureJudge { settings, now, witnesses, began, has_arrived: !arrived_events.is_empty() };
        let failures = judge.judge_failures(zip_results(&events, &results));
        record_failures(&mut transaction, client_timeout, now, &failures).await?;
        report.count_failures(&failures);
        log_failures(&failures);
        step("events.commit.before");
        pg::wait_for_answer(client_timeout, transaction.commit()).await?;
        step("events.commit.after");
        let results_of_tries = arrived_events.iter().map(|event| (&event.id, TryResult::Succeeded));
        let results_of_tries = results_of_tries
            .chain(failures.iter().map(|failure| (&failure.event.id, to_try_result(failure))));
        witnesses.record_results(began, tokio::time::Instant::now(), results_of_tries);
        Ok((report, failure))
    }
}

/// Takes a batch of events. Ordered events and others are first in turn, as either may fill the batch.
async fn take_batch(
    connection: &mut PgConnection,
    unit: &Unit,
    client_timeout: Duration,
    now: DateTime<Utc>,
    limits: TakeLimits,
    cursor: &mut OrderingKeyCursor,
    ordered_first: bool,
) -> Result<Vec<TakenEvent>, sqlx::Error> {
    let mut events = Vec::new();
    for is_ordered in [ordered_first, !ordered_first] {
        let bytes = limits.bytes - events.iter().map(TakenEvent::size).sum::<i64>();
        let limits = TakeLimits { bytes, ..limits };
        if bytes > 0 {
            let take = async {
                match is_ordered {
                    true => pg::take_ordered(connection, unit, now, limits, cursor).await,
                    false => pg::take_events(connection, unit, now, limits).await,
                }
            };
            events.extend(pg::wait_for_answer(client_timeout, take).await?);
        }
    }
    Ok(events)
}

/// Deletes the events that have arrived. Fails if one of them is gone: the batch is given up.
async fn delete_arrived(
    connection: &mut PgConnection,
    limit: Duration,
    events: &[&TakenEvent],
) -> Result<(), EventError> {
    if events.is_empty() {
        return Ok(());
    }
    step("events.delete.before");
    let deleted = pg::wait_for_answer(limit, pg::delete_events(connection, events)).await?;
    check_changed(deleted, events.len())?;
    step("events.delete.after");
    Ok(())
}

/// Records the failures of events. Fails if one of them is gone: the batch is given up.
async fn record_failures(
    connection: &mut PgConnection,
    limit: Duration,
    now: DateTime<Utc>,
    failures: &[EventFailure<'_>],
) -> Result<(), EventError> {
    if failures.is_empty() {
        return Ok(());
    }
    step("events.fail.before");
    let changed = pg::wait_for_answer(limit, pg::fail_events(connection, now, failures)).await?;
    check_changed(changed, failures.len())?;
    step("events.fail.after");
    Ok(())
}

/// Checks that a statement has changed as many events as intended; otherwise the batch is given up.
fn check_changed(changed: u64, expected: usize) -> Result<(), EventError> {
    match usize::try_from(changed) == Ok(expected) {
        true => Ok(()),
        false => Err(EventError::Changed { changed, expected }),
    }
}

/// Pairs each event with its result; leaves out those without one.
fn zip_results<'a>(
    events: &'a [TakenEvent],
    results: &'a [Option<PublishResult>],
) -> impl Iterator<Item = (&'a TakenEvent, &'a PublishResult)> {
    events.iter().zip(results).filter_map(|(event, result)| Some((event, result.as_ref()?)))
}

/// Publishes events in waves: an event of an ordering key is sent when the one before it has arrived, so at most one of a key is in flight;
/// after an event that has not arrived, the later events of its key are not sent. Events without a key are all sent in the first wave. A
/// wave is sent in [parts](split_into_parts).
///
/// No part but the first begins after `until`: PostgreSQL ends a transaction that is idle for too long, and then all of them would be sent
/// again, repeatedly. An event that was not sent has no result, and is taken with the next batch. Also returns the error of the connection
/// that ended the waves; `None` without one.
async fn publish_in_waves(
    connection: &PublishConnection,
    events: &[TakenEvent],
    until: Instant,
    limits: PublishLimits,
    record_publish: impl Fn(&TakenEvent, &PublishResult, Instant),
) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
    let mut results: Vec<Option<PublishResult>> = vec![None; events.len()];
    let mut stuck_keys: HashSet<(&str, Option<&str>)> = HashSet::new();
    let mut waves: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        waves.entry(event.place).or_default().push(index);
    }
    let parts = waves.into_values().flat_map(|wave| split_into_parts(events, wave));
    for (number, part) in parts.enumerate() {
        if number > 0 && Instant::now() >= until {
            break;
        }
        let mut indexes = Vec::with_capacity(part.len());
        let mut messages = Vec::with_capacity(part.len());
        for index in part {
            let event = &events[index];
            if stuck_keys.contains(&(event.tenant.as_str(), event.ordering_key.as_deref())) {
                continue;
            }
            let message = match prepare_message(event) {
                Ok(message) => message,
                Err(result) => {
                    if event.ordering_key.is_some() {
                        stuck_keys.insert((event.tenant.as_str(), event.ordering_key.as_deref()));
                    }
                    results[index] = Some(result);
                    continue;
                }
            };
            indexes.push(index);
            messages.push(message);
        }
        let began = Instant::now();
        let (part_results, failure) = connection.publish(&messages, limits).await;
        for (index, result) in indexes.into_iter().zip(part_results) {
            let event = &events[index];
            if let Some(result) = &result {
                record_publish(event, result, began);
            }
            if event.ordering_key.is_some() && result != Some(PublishResult::Arrived) {
                stuck_keys.insert((event.tenant.as_str(), event.ordering_key.as_deref()));
            }
            results[index] = result;
        }
        if failure.is_some() {
            return (results, failure);
        }
    }
    (results, None)
}

/// Splits a wave into parts of at most [`MAX_PART_BYTES`] of payload, or of one larger event, for at most [`MAX_CONCURRENT_EXCHANGES`]
/// exchanges: a slow link or a silent queue delays one part. The exchange of the first event comes first.
fn split_into_parts(events: &[TakenEvent], mut wave: Vec<usize>) -> Vec<Vec<usize>> {
    let exchange = |index: usize| events[index].exchange.as_str();
    let mut exchange_order: HashMap<&str, usize> = HashMap::new();
    for &index in &wave {
        let next = exchange_order.len();
        exchange_order.entry(exchange(index)).or_insert(next);
    }
    wave.sort_by_key(|&index| exchange_order.get(exchange(index)));
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let (mut bytes, mut exchanges) = (0, 0);
    for index in wave {
        let size = events[index].payload.as_ref().map_or(0, Vec::len);
        let last = parts.last().and_then(|part| part.last());
        let is_other = last.is_none_or(|&last| exchange(last) != exchange(index));
        (bytes, exchanges) = (bytes + size, exchanges + usize::from(is_other));
        match parts.last_mut() {
            Some(part) if bytes <= MAX_PART_BYTES && exchanges <= MAX_CONCURRENT_EXCHANGES => {
                part.push(index)
            }
            _ => {
                (bytes, exchanges) = (size, 1);
                parts.push(vec![index]);
            }
        }
    }
    parts
}

/// Returns the message of an event. An error is the result of an event that can't be a message: its row bypassed `oncely.emit` and the
/// table's constraints.
fn prepare_message(event: &TakenEvent) -> Result<OutgoingMessage<'_>, PublishResult> {
    let payload = event.payload.as_deref().ok_or(PublishResult::TooLarge)?;
    build_message(event, payload).ok_or(PublishResult::Unreadable)
}

/// Builds the message of an event; `None` if a name is too long, or the headers can't be read.
fn build_message<'a>(event: &'a TakenEvent, payload: &'a [u8]) -> Option<OutgoingMessage<'a>> {
    // A longer one panics when it becomes a short string.
    let short = |text: &str| ShortString::try_new(text).ok();
    short(&event.exchange).and(short(&event.routing_key))?;
    let id = event.id.to_string();
    let headers = match event.headers.as_deref() {
        Some(text) => restore_headers(&serde_json::from_str(text).ok()?)?,
        None => FieldTable::default(),
    };
    let mut properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(short(event.message_id.as_deref().unwrap_or(&id))?)
        .with_timestamp(u64::try_from(event.created_at.timestamp()).unwrap_or(0));
    macro_rules! set {
        ($($field:ident => $with:ident),+) => {
            $(if let Some(text) = event.$field.as_deref() {
                properties = properties.$with(short(text)?);
            })+
        };
    }
    set!(
        content_type => with_content_type,
        kind => with_type,
        correlation_id => with_correlation_id,
        reply_to => with_reply_to,
        app_id => with_app_id
    );
    Some(OutgoingMessage::new(
        own_headers::EVENT,
        id,
        &event.exchange,
        &event.routing_key,
        properties,
        headers,
        payload,
    ))
}

/// Describes a failure by a stable code and a text for people; `None` if the event has arrived.
fn describe_failure(event: &TakenEvent, result: &PublishResult) -> Option<(&'static str, String)> {
    Some(match result {
        PublishResult::Arrived => return None,
        PublishResult::Unroutable if event.reply => {
            ("requester_gone", format!("the reply queue {:?} is gone", event.routing_key))
        }
        PublishResult::Unroutable => {
            let text = format!(
                "no queue is bound to exchange {:?} with routing key {:?}",
                event.exchange, event.routing_key
            );
            ("unroutable", text)
        }
        PublishResult::Nacked => {
            ("nacked", "the broker nacked it: is a queue full (reject-publish)?".to_owned())
        }
        PublishResult::Unconfirmed => {
            let text = "the broker did not confirm it in time: has its queue a leader? It may have arrived";
            ("unconfirmed", text.to_owned())
        }
        PublishResult::HeldBack(_) => {
            let text = "not sent, as the broker did not confirm one before it with this exchange and routing key in time";
            (HELD_BACK_REASON, text.to_owned())
        }
        PublishResult::Closed(404, text) => ("exchange_missing", text.clone()),
        PublishResult::Closed(403, text) => ("access_refused", text.clone()),
        PublishResult::Closed(406, text) => ("precondition_failed", text.clone()),
        PublishResult::Closed(_, text) => ("channel_closed", text.clone()),
        PublishResult::Unreadable => {
            ("unreadable", "no message can be made of it: it was not written by oncely.emit".to_owned())
        }
        PublishResult::TooLarge => {
            ("too_large", "it is larger than oncely.emit lets be written, and was not read".to_owned())
        }
        PublishResult::HeadersTooLarge => {
            ("headers_too_large", "its headers don't fit into one frame of this broker".to_owned())
        }
    })
}

/// Classifies a result like a handler's error.
fn classify_result(result: &PublishResult) -> FaultClass {
    match result {
        // Of this event alone, and permanent.
        PublishResult::HeadersTooLarge | PublishResult::Unreadable | PublishResult::TooLarge => {
            FaultClass::Rejected
        }
        // Each try closes a channel, and the event's neighbours on that channel are published again.
        PublishResult::Closed(406, _) => FaultClass::Poison,
        // A full queue, a stalled one, or one without a leader: no event is the cause.
        PublishResult::Nacked | PublishResult::Unconfirmed | PublishResult::HeldBack(_) => {
            FaultClass::Environment
        }
        PublishResult::Unroutable | PublishResult::Closed(..) | PublishResult::Arrived => {
            FaultClass::Transient
        }
    }
}

/// Judge of the failures of a batch's events, with the circumstances in which they failed.
struct FailureJudge<'a> {
    settings: &'a EventSettings,
    now: DateTime<Utc>,
    witnesses: &'a Witnesses<Uuid>,
    /// Start of the batch's publication.
    began: Began,
    /// Other events of the batch have arrived.
    has_arrived: bool,
}

impl FailureJudge<'_> {
    /// Decides when each failed event is tried again, or whether it is parked. Records failures that no event is charged with.
    fn judge_failures<'a>(
        &self,
        events: impl Iterator<Item = (&'a TakenEvent, &'a PublishResult)>,
    ) -> Vec<EventFailure<'a>> {
        let failures = events.filter_map(|(event, result)| {
            let (reason, error) = describe_failure(event, result)?;
            if let PublishResult::HeldBack(left) = result {
                let retry_at = self.retry_time(Some(*left));
                return Some(EventFailure { event, attempts: event.attempts, retry_at, reason, error });
            }
            let attempts = event.attempts.saturating_add(1);
            let delay = self.settings.delay_after(u32::try_from(attempts).unwrap_or(u32::MAX), event.reply);
            let failure = match self.decide_blame(event, result, delay.is_none()) {
                Some(FaultClass::Rejected | FaultClass::Poison) => {
                    EventFailure { event, attempts, retry_at: None, reason, error }
                }
                Some(_) => EventFailure { event, attempts, retry_at: self.retry_time(delay), reason, error },
                None => {
                    let (pause, _) = self.witnesses.postpone(&event.id, tokio::time::Instant::now(), true);
                    self.witnesses.record_stall();
                    let retry_at = self.retry_time(Some(pause));
                    EventFailure { event, attempts: event.attempts, retry_at, reason, error }
                }
            };
            Some(failure)
        });
        failures.collect()
    }

    /// Decides whether a failure is charged to its event; returns its class then, and `None` if every event may have it. If it would be
    /// parked, events of the same batch may have arrived before the fault began, and earlier attempts may have been spent on it.
    fn decide_blame(&self, event: &TakenEvent, result: &PublishResult, is_last: bool) -> Option<FaultClass> {
        let (witnesses, now) = (self.witnesses, tokio::time::Instant::now());
        let class = classify_result(result);
        // A missing requester affects its own reply only.
        let is_own = event.reply && *result == PublishResult::Unroutable;
        let is_last = is_last || class == FaultClass::Poison;
        let has_witness =
            is_own || witnesses.has_witness(&event.id, self.began, now) || self.has_arrived && !is_last;
        let others = if has_witness {
            OtherFailures::Unknown
        } else {
            witnesses.record_suspected_failure(&event.id, now)
        };
        let is_repeated =
            event.attempts > 0 && !witnesses.is_stalled() && (!is_last || others != OtherFailures::Others);
        let circumstances = Circumstances {
            is_by_itself: true,
            has_witness: has_witness || is_repeated,
            is_alone: others == OtherFailures::Alone,
            // An event waits for no locks of others.
            is_persistent: false,
        };
        match blame(class, circumstances) {
            Blame::Message(class) => Some(class),
            Blame::Batch | Blame::Unknown => None,
        }
    }

    /// Returns the time after a delay; `None` without a delay, or if it is out of range.
    fn retry_time(&self, delay: Option<Duration>) -> Option<DateTime<Utc>> {
        self.now.checked_add_signed(chrono::Duration::from_std(delay?).ok()?)
    }
}

/// Converts an event's failure to the result of its try, for the witnesses.
fn to_try_result(failure: &EventFailure<'_>) -> TryResult {
    match failure.retry_at {
        None => TryResult::Over,
        Some(_) if failure.is_charged() => TryResult::Charged,
        Some(_) => TryResult::Nothing,
    }
}

/// Logs one line per exchange and reason.
fn log_failures(failures: &[EventFailure<'_>]) {
    let mut groups: BTreeMap<(&str, &str), (usize, usize, &str)> = BTreeMap::new();
    for failure in failures {
        let group = (failure.event.exchange.as_str(), failure.reason);
        let (count, parked, _) = groups.entry(group).or_insert((0, 0, &failure.error));
        *count += 1;
        *parked += usize::from(failure.retry_at.is_none());
    }
    for ((exchange, reason), (events, parked, error)) in groups {
        if parked > 0 {
            tracing::error!(
                exchange,
                reason,
                events,
                parked,
                error,
                "cannot publish events; see the parked ones with `oncely outbox list`"
            );
        } else {
            tracing::warn!(exchange, reason, events, error, "cannot publish events; retrying");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_is_sent_in_parts_of_bounded_size_and_few_exchanges() {
        let event = |(exchange, size): &(usize, usize)| TakenEvent {
            tenant: String::new(),
            id: Uuid::nil(),
            created_at: DateTime::UNIX_EPOCH,
            attempts: 0,
            reply: false,
            exchange: exchange.to_string(),
            routing_key: String::new(),
            ordering_key: None,
            place: 1,
            message_id: None,
            content_type: None,
            kind: None,
            correlation_id: None,
            reply_to: None,
            app_id: None,
            headers: None,
            payload: Some(vec![0; *size]),
        };
        let split = |wave: &[(usize, usize)]| {
            let events: Vec<TakenEvent> = wave.iter().map(event).collect();
            split_into_parts(&events, (0..events.len()).collect())
        };
        assert!(split(&[]).is_empty());
        assert_eq!(
            split(&[(1, MAX_PART_BYTES), (1, 1), (1, 2 * MAX_PART_BYTES), (1, 1)]),
            [[0], [1], [2], [3]]
        );
        assert_eq!(split(&[(2, 1), (1, 1), (2, 1)]), [vec![0, 2, 1]]);
        let many: Vec<(usize, usize)> =
            (0..MAX_CONCURRENT_EXCHANGES + 1).map(|exchange| (exchange, 1)).collect();
        assert_eq!(split(&many).iter().map(Vec::len).collect::<Vec<_>>(), [MAX_CONCURRENT_EXCHANGES, 1]);
    }
}
