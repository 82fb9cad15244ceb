//! One batch of events: takes, publishes, deletes those that have arrived, counts those that have failed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lapin::BasicProperties;
use lapin::types::{FieldTable, ShortString};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use oncely_amqp::{
    AmqpError, EXCHANGES_AT_ONCE, OutgoingMessage, PublishConnection, PublishLimits, PublishResult,
    restore_headers,
};
use oncely_config::EventSettings;
use oncely_core::blame::{Blame, Circumstances, blame};
use oncely_core::fault::FaultClass;
use oncely_core::own_headers;
use oncely_failpoint::step;
use oncely_postgres::{
    self as pg, EventFailure, NoSession, OrderingKeyCursor, Session, TakeLimits, TakenEvent,
};
use oncely_process::witnesses::{Began, OtherFailures, TryResult, Witnesses};
use oncely_traces::EventTraces;

/// Most bytes in one batch, of payloads and of decoded headers, unless it is one event.
const BYTES: i64 = 8 << 20;

/// Most bytes in one batch for which a connection keeps memory.
const KEPT: i64 = 1 << 20;

/// Most bytes of payload that are sent without a look at the clock.
const PART_BYTES: usize = 512 << 10;

/// Events of one ordering key in one batch: each is published and confirmed before the next.
const IN_ROW: i64 = 50;

/// Reason of an event that was not sent, as its queue is silent.
const HELD_BACK: &str = "held_back";

/// Ordering keys that are read for one batch, as a multiple of its events: many keys may wait.
const KEYS: i64 = 10;

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
    /// Counts failures.
    fn count(&mut self, failures: &[EventFailure<'_>]) {
        self.parked = failures.iter().filter(|failure| failure.again_at.is_none()).count();
        self.failed = failures.len() - self.parked;
        let undecided =
            failures.iter().filter(|failure| !failure.is_charged() && failure.reason != HELD_BACK);
        self.undecided = undecided.count();
    }
}

/// Reason why a batch, or a part of it, stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventError {
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("{0}")]
    NoSession(#[from] NoSession),
    #[error("{0}")]
    Amqp(#[from] AmqpError),
    #[error("changed {changed} of {wanted} events")]
    Changed { changed: u64, wanted: usize },
}

/// Inputs of a batch.
pub(crate) struct EventBatch<'a> {
    pub(crate) session: &'a mut Session,
    /// Present if commits wait for a standby: asks whether the data that `session` sees has reached it.
    pub(crate) witness: Option<&'a mut PgConnection>,
    pub(crate) connection: &'a PublishConnection,
    pub(crate) settings: &'a EventSettings,
    pub(crate) cursor: &'a mut OrderingKeyCursor,
    /// Whether this batch takes ordered events first; the next one does not.
    pub(crate) ordered_first: &'a mut bool,
    pub(crate) client_timeout: Duration,
    /// Time after which no more of the batch is published.
    pub(crate) longest: Duration,
    /// Longest wait for an answer of the broker. Confirms are awaited until that much time after `longest`, and then a channel may be opened to
    /// see whether the broker answers at all, in two such waits: PostgreSQL lets the batch's transaction be idle for longer than all of them.
    pub(crate) answer: Duration,
    pub(crate) traces: &'a EventTraces,
    pub(crate) witnesses: &'a Witnesses<Uuid>,
}

/// Returns whether any event is due, for a lane that has no connection to the broker yet: without events it needs none.
pub(crate) async fn is_due(
    session: &mut Session,
    settings: &EventSettings,
    client_timeout: Duration,
) -> Result<bool, sqlx::Error> {
    let now = session.clock.now();
    let mut transaction = pg::within(client_timeout, session.connection.begin()).await?;
    let limits = TakeLimits { events: 1, in_row: 1, ..limits(settings) };
    let mut cursor = None;
    let some = async {
        Ok(!pg::take_events(&mut transaction, now, limits).await?.is_empty()
            || !pg::take_ordered(&mut transaction, now, limits, &mut cursor).await?.is_empty()
            // The walk ended early: a lane that goes on from there finds the events behind these keys.
            || cursor.is_some())
    };
    let due = pg::within(client_timeout, some).await?;
    pg::within(client_timeout, transaction.rollback()).await?;
    Ok(due)
}

fn limits(settings: &EventSettings) -> TakeLimits {
    let events = i64::from(settings.batch);
    TakeLimits { events, bytes: BYTES, keys: events * KEYS, in_row: IN_ROW.min(events) }
}

impl EventBatch<'_> {
    /// Takes a batch, publishes it, deletes the events that have arrived. The rows stay locked meanwhile, so that several lanes and relays
    /// share the work; a crash before the COMMIT publishes the same events again, with the same `message_id`s. Beside the results it
    /// returns the error of the broker's connection that ended the batch, if one did.
    pub(crate) async fn publish(self) -> Result<(EventReport, Option<AmqpError>), EventError> {
        let Self {
            session,
            witness,
            connection,
            settings,
            cursor,
            ordered_first,
            client_timeout,
            longest,
            answer,
            traces,
            witnesses,
        } = self;
        let now = session.clock.now();
        let limits = limits(settings);
        let mut transaction = pg::within(client_timeout, session.connection.begin()).await?;
        step("events.take.before");
        let mut events = Vec::new();
        // Either may fill the batch, so they are first in turn.
        for is_ordered in [*ordered_first, !*ordered_first] {
            let limits = TakeLimits {
                bytes: limits.bytes - events.iter().map(TakenEvent::size).sum::<i64>(),
                ..limits
            };
            if limits.bytes > 0 {
                events.extend(
                    pg::within(client_timeout, async {
                        match is_ordered {
                            true => pg::take_ordered(&mut transaction, now, limits, cursor).await,
                            false => pg::take_events(&mut transaction, now, limits).await,
                        }
                    })
                    .await?,
                );
            }
        }
        *ordered_first = !*ordered_first;
        step("events.take.after");
        if events.iter().map(TakenEvent::size).sum::<i64>() > KEPT {
            // It would keep the memory for the largest batch.
            transaction.shrink_buffers();
        }
        if events.is_empty() {
            pg::within(client_timeout, transaction.rollback()).await?;
            return Ok((EventReport::default(), None));
        }
        // Visible is not enough if a standby may take over: an event that may still be lost must not be published.
        if let Some(witness) = witness {
            pg::within(client_timeout, pg::await_standby(witness)).await?;
        }
        step("events.publish.before");
        let began = witnesses.begin();
        let published = |event: &TakenEvent, result: &PublishResult, began| {
            let failure = reason(event, result).map(|(reason, _)| reason);
            traces.published(event, now, began, failure);
        };
        let until = Instant::now() + longest;
        let limits = PublishLimits { answer, until: Some(until + answer) };
        let (results, failed) = publish(connection, &events, until, limits, published).await;
        step("events.publish.after");
        let mut report = EventReport { taken: events.len(), ..EventReport::default() };
        let arrived: Vec<&TakenEvent> = with_result(&events, &results)
            .filter(|(_, result)| **result == PublishResult::Arrived)
            .map(|(event, _)| event)
            .collect();
        delete(&mut transaction, client_timeout, &arrived).await?;
        report.published = arrived.len();
        report.oldest = arrived.iter().map(|event| event.created_at).min().map(|oldest| (oldest, now));
        // Publishing may have taken longer than a pause.
        let now = session.clock.now();
        let judge = FailureJudge { settings, now, witnesses, began, has_arrived: !arrived.is_empty() };
        let failures = judge.failures(with_result(&events, &results));
        fail(&mut transaction, client_timeout, now, &failures).await?;
        report.count(&failures);
        log_failures(&failures);
        step("events.commit.before");
        pg::within(client_timeout, transaction.commit()).await?;
        step("events.commit.after");
        let said = arrived.iter().map(|event| (&event.id, TryResult::Succeeded));
        let said = said.chain(failures.iter().map(|failure| (&failure.event.id, try_result(failure))));
        witnesses.note(began, tokio::time::Instant::now(), said);
        Ok((report, failed))
    }
}

/// Deletes the events that have arrived.
async fn delete(
    connection: &mut PgConnection,
    limit: Duration,
    arrived: &[&TakenEvent],
) -> Result<(), EventError> {
    if arrived.is_empty() {
        return Ok(());
    }
    step("events.delete.before");
    let deleted = pg::within(limit, pg::delete_events(connection, arrived)).await?;
    expect(deleted, arrived.len())?;
    step("events.delete.after");
    Ok(())
}

/// Records the failures of events.
async fn fail(
    connection: &mut PgConnection,
    limit: Duration,
    now: DateTime<Utc>,
    failures: &[EventFailure<'_>],
) -> Result<(), EventError> {
    if failures.is_empty() {
        return Ok(());
    }
    step("events.fail.before");
    let counted = pg::within(limit, pg::fail_events(connection, now, failures)).await?;
    expect(counted, failures.len())?;
    step("events.fail.after");
    Ok(())
}

fn expect(changed: u64, wanted: usize) -> Result<(), EventError> {
    match usize::try_from(changed) == Ok(wanted) {
        true => Ok(()),
        false => Err(EventError::Changed { changed, wanted }),
    }
}

fn with_result<'a>(
    events: &'a [TakenEvent],
    results: &'a [Option<PublishResult>],
) -> impl Iterator<Item = (&'a TakenEvent, &'a PublishResult)> {
    events.iter().zip(results).filter_map(|(event, result)| Some((event, result.as_ref()?)))
}

/// Publishes in waves: an event of an ordering key is sent when the one before it has arrived, so at most one of a key is in flight; after
/// an event that has not arrived its key drops out. Events without a key are all sent in the first wave. A wave is sent in [parts].
///
/// No part but the first begins after `until`: PostgreSQL ends a transaction that is idle for too long, and then all of them would be sent
/// again, repeatedly. An event that was not sent has no result, and is taken with the next batch.
async fn publish(
    connection: &PublishConnection,
    events: &[TakenEvent],
    until: Instant,
    limits: PublishLimits,
    published: impl Fn(&TakenEvent, &PublishResult, Instant),
) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
    let mut results: Vec<Option<PublishResult>> = vec![None; events.len()];
    let mut stuck: HashSet<(&str, Option<&str>)> = HashSet::new();
    let mut waves: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        waves.entry(event.place).or_default().push(index);
    }
    let parts = waves.into_values().flat_map(|wave| parts(events, wave));
    for (number, part) in parts.enumerate() {
        if number > 0 && Instant::now() >= until {
            break;
        }
        let mut going = Vec::with_capacity(part.len());
        let mut messages = Vec::with_capacity(part.len());
        for index in part {
            let event = &events[index];
            if stuck.contains(&(event.tenant.as_str(), event.ordering_key.as_deref())) {
                continue;
            }
            let message = match outgoing(event) {
                Ok(message) => message,
                Err(result) => {
                    if event.ordering_key.is_some() {
                        stuck.insert((event.tenant.as_str(), event.ordering_key.as_deref()));
                    }
                    results[index] = Some(result);
                    continue;
                }
            };
            going.push(index);
            messages.push(message);
        }
        let began = Instant::now();
        let (said, failed) = connection.publish(&messages, limits).await;
        for (index, result) in going.into_iter().zip(said) {
            let event = &events[index];
            if let Some(result) = &result {
                published(event, result, began);
            }
            if event.ordering_key.is_some() && result != Some(PublishResult::Arrived) {
                stuck.insert((event.tenant.as_str(), event.ordering_key.as_deref()));
            }
            results[index] = result;
        }
        if failed.is_some() {
            return (results, failed);
        }
    }
    (results, None)
}

/// Splits a wave into parts of at most [`PART_BYTES`] of payload, or of one larger event, for at most [`EXCHANGES_AT_ONCE`] exchanges: a
/// slow link or a silent queue delays one part. The exchange of the first event comes first.
fn parts(events: &[TakenEvent], mut wave: Vec<usize>) -> Vec<Vec<usize>> {
    let exchange = |index: usize| events[index].exchange.as_str();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for &index in &wave {
        let next = places.len();
        places.entry(exchange(index)).or_insert(next);
    }
    wave.sort_by_key(|&index| places.get(exchange(index)));
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let (mut bytes, mut exchanges) = (0, 0);
    for index in wave {
        let size = events[index].payload.as_ref().map_or(0, Vec::len);
        let last = parts.last().and_then(|part| part.last());
        let is_other = last.is_none_or(|&last| exchange(last) != exchange(index));
        (bytes, exchanges) = (bytes + size, exchanges + usize::from(is_other));
        match parts.last_mut() {
            Some(part) if bytes <= PART_BYTES && exchanges <= EXCHANGES_AT_ONCE => part.push(index),
            _ => {
                (bytes, exchanges) = (size, 1);
                parts.push(vec![index]);
            }
        }
    }
    parts
}

/// Returns the message of an event; or the reason why it can't be one: a row that bypassed `oncely.emit` and the table's constraints.
fn outgoing(event: &TakenEvent) -> Result<OutgoingMessage<'_>, PublishResult> {
    let payload = event.payload.as_deref().ok_or(PublishResult::TooLarge)?;
    message(event, payload).ok_or(PublishResult::Unreadable)
}

fn message<'a>(event: &'a TakenEvent, payload: &'a [u8]) -> Option<OutgoingMessage<'a>> {
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

/// Returns the meaning of a result: a stable code and a text for people. `None` if the event has arrived.
fn reason(event: &TakenEvent, result: &PublishResult) -> Option<(&'static str, String)> {
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
            (HELD_BACK, text.to_owned())
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

/// Returns the class of a result, as of a handler's error.
fn class(result: &PublishResult) -> FaultClass {
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

/// Circumstances in which events have failed.
struct FailureJudge<'a> {
    settings: &'a EventSettings,
    now: DateTime<Utc>,
    witnesses: &'a Witnesses<Uuid>,
    /// Begin of the batch's publication.
    began: Began,
    /// Other events of the batch have arrived.
    has_arrived: bool,
}

impl FailureJudge<'_> {
    fn failures<'a>(
        &self,
        events: impl Iterator<Item = (&'a TakenEvent, &'a PublishResult)>,
    ) -> Vec<EventFailure<'a>> {
        let failures = events.filter_map(|(event, result)| {
            let (reason, error) = reason(event, result)?;
            if let PublishResult::HeldBack(left) = result {
                let again_at = self.after(Some(*left));
                return Some(EventFailure { event, attempts: event.attempts, again_at, reason, error });
            }
            let attempts = event.attempts.saturating_add(1);
            let delay = self.settings.after(u32::try_from(attempts).unwrap_or(u32::MAX), event.reply);
            let failure = match self.blame(event, result, delay.is_none()) {
                Some(FaultClass::Rejected | FaultClass::Poison) => {
                    EventFailure { event, attempts, again_at: None, reason, error }
                }
                Some(_) => EventFailure { event, attempts, again_at: self.after(delay), reason, error },
                None => {
                    let (pause, _) = self.witnesses.undecided(&event.id, tokio::time::Instant::now(), true);
                    self.witnesses.stall();
                    let again_at = self.after(Some(pause));
                    EventFailure { event, attempts: event.attempts, again_at, reason, error }
                }
            };
            Some(failure)
        });
        failures.collect()
    }

    /// Returns the class of a failure that the event is charged with; `None` if every event may have it. If it would be parked, events of
    /// the same batch may have arrived before the fault began, and earlier attempts may have been spent on it.
    fn blame(&self, event: &TakenEvent, result: &PublishResult, is_last: bool) -> Option<FaultClass> {
        let (witnesses, now) = (self.witnesses, tokio::time::Instant::now());
        let class = class(result);
        // A missing requester affects its own reply only.
        let is_own = event.reply && *result == PublishResult::Unroutable;
        let is_last = is_last || class == FaultClass::Poison;
        let seen =
            is_own || witnesses.has_witness(&event.id, self.began, now) || self.has_arrived && !is_last;
        let company = if seen { OtherFailures::Unknown } else { witnesses.fails(&event.id, now) };
        let again =
            event.attempts > 0 && !witnesses.is_stalled() && (!is_last || company != OtherFailures::Others);
        let circumstances = Circumstances {
            by_itself: true,
            witness: seen || again,
            alone: company == OtherFailures::Alone,
            // An event waits for no locks of others.
            persists: false,
        };
        match blame(class, circumstances) {
            Blame::Message(class) => Some(class),
            Blame::Batch | Blame::Nobody => None,
        }
    }

    fn after(&self, delay: Option<Duration>) -> Option<DateTime<Utc>> {
        self.now.checked_add_signed(chrono::Duration::from_std(delay?).ok()?)
    }
}

fn try_result(failure: &EventFailure<'_>) -> TryResult {
    match failure.again_at {
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
        *parked += usize::from(failure.again_at.is_none());
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
            parts(&events, (0..events.len()).collect())
        };
        assert!(split(&[]).is_empty());
        assert_eq!(split(&[(1, PART_BYTES), (1, 1), (1, 2 * PART_BYTES), (1, 1)]), [[0], [1], [2], [3]]);
        assert_eq!(split(&[(2, 1), (1, 1), (2, 1)]), [vec![0, 2, 1]]);
        let many: Vec<(usize, usize)> = (0..EXCHANGES_AT_ONCE + 1).map(|exchange| (exchange, 1)).collect();
        assert_eq!(split(&many).iter().map(Vec::len).collect::<Vec<_>>(), [EXCHANGES_AT_ONCE, 1]);
    }
}
