//! Publication of events: taken here, published by the caller, then deleted or counted as failed.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::unit::{Unit, fetch_from_unit};

/// An event to be published; its row is locked until the transaction ends.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TakenEvent {
    pub tenant: String,
    pub id: Uuid,
    pub created_at: DateTime<Utc>,
    pub attempts: i32,
    /// Whether it is a reply: a handler's response.
    pub reply: bool,
    pub exchange: String,
    pub routing_key: String,
    pub ordering_key: Option<String>,
    /// Position within the ordering key, from 1.
    pub place: i64,
    pub message_id: Option<String>,
    pub content_type: Option<String>,
    pub kind: Option<String>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub app_id: Option<String>,
    /// JSON.
    pub headers: Option<String>,
    /// `None` if it is larger than an event may be.
    pub payload: Option<Vec<u8>>,
}

impl TakenEvent {
    /// Returns the event's share of [`TakeLimits::bytes`], as `events_take.sql` counts it: decoded headers take many times their size.
    pub fn size(&self) -> i64 {
        let (payload, headers) =
            (self.payload.as_ref().map_or(0, Vec::len), self.headers.as_ref().map_or(0, String::len));
        i64::try_from(payload + 16 * headers).unwrap_or(i64::MAX)
    }
}

/// The limits of one batch.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// Maximum number of events.
    pub events: i64,
    /// Maximum bytes of payloads, and of headers as decoded.
    pub bytes: i64,
    /// Maximum number of ordering keys examined.
    pub keys: i64,
    /// Maximum number of events of one ordering key.
    pub per_key: i64,
}

/// Maximum bytes of a payload that `oncely.add_event` accepts. A larger row bypassed that function.
const MAX_PAYLOAD_BYTES: i32 = 16 << 20;
/// Maximum bytes of headers as text that it accepts.
const MAX_HEADER_BYTES: i32 = 1 << 20;

/// The ordering key (with its tenant) after which the next walk begins; after its end a walk starts over.
pub type OrderingKeyCursor = Option<(String, String)>;

/// Returns whether any event may be due, in one round trip.
pub async fn has_events(
    connection: &mut PgConnection,
    unit: &Unit,
    now: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let rows = fetch_from_unit!(FoundEvents, "src/events_look.sql", unit, connection, now)?;
    Ok(rows.iter().any(|row| row.any))
}

#[derive(Debug, sqlx::FromRow)]
struct FoundEvents {
    any: bool,
}

/// Takes events without an ordering key.
pub async fn take_events(
    connection: &mut PgConnection,
    unit: &Unit,
    now: DateTime<Utc>,
    limits: TakeLimits,
) -> sqlx::Result<Vec<TakenEvent>> {
    fetch_from_unit!(
        TakenEvent,
        "src/events_take.sql",
        unit,
        connection,
        now,
        limits.events,
        limits.bytes,
        MAX_PAYLOAD_BYTES,
        MAX_HEADER_BYTES
    )
}

/// Takes ordered events: for each key as many as may be published one after another. The walk over the keys continues where the last one
/// ended, so that no key waits for ever behind many others.
pub async fn take_ordered(
    connection: &mut PgConnection,
    unit: &Unit,
    now: DateTime<Utc>,
    limits: TakeLimits,
    cursor: &mut OrderingKeyCursor,
) -> sqlx::Result<Vec<TakenEvent>> {
    let (tenant, key) = cursor.take().unwrap_or_default();
    let heads = fetch_from_unit!(
        OrderingKeyHead,
        "src/events_heads.sql",
        unit,
        &mut *connection,
        now,
        &tenant,
        &key,
        limits.keys,
        limits.events
    )?;
    let Some(last) = heads.last() else { return Ok(Vec::new()) };
    if last.seen >= limits.keys || last.found >= limits.events {
        *cursor = Some((last.tenant.clone(), last.ordering_key.clone()));
    }
    let ready: Vec<_> = heads.into_iter().filter(|head| head.ready).collect();
    let Some(per_key) = compute_events_per_key(limits, ready.len()) else { return Ok(Vec::new()) };
    let (tenants, ids, places) = if per_key == 1 {
        let (tenants, ids): (Vec<String>, Vec<Uuid>) =
            ready.into_iter().map(|head| (head.tenant, head.id)).unzip();
        let places = vec![1_i64; ids.len()];
        (tenants, ids, places)
    } else {
        let (tenants, keys): (Vec<String>, Vec<String>) =
            ready.into_iter().map(|head| (head.tenant, head.ordering_key)).unzip();
        let found = fetch_from_unit!(
            PlacedEvent,
            "src/events_follow.sql",
            unit,
            &mut *connection,
            &tenants,
            &keys,
            per_key,
            limits.events
        )?;
        found.into_iter().map(|event| (event.tenant, event.id, event.place)).collect()
    };
    let mut events = fetch_from_unit!(
        TakenEvent,
        "src/events_take_ordered.sql",
        unit,
        connection,
        now,
        &tenants,
        &ids,
        &places,
        limits.bytes,
        MAX_PAYLOAD_BYTES,
        MAX_HEADER_BYTES
    )?;
    drop_behind_gaps(&mut events);
    Ok(events)
}

/// An ordering key with its first event.
#[derive(Debug, sqlx::FromRow)]
struct OrderingKeyHead {
    tenant: String,
    ordering_key: String,
    id: Uuid,
    ready: bool,
    seen: i64,
    found: i64,
}

#[derive(Debug, sqlx::FromRow)]
struct PlacedEvent {
    tenant: String,
    id: Uuid,
    place: i64,
}

/// Computes the number of events per ordering key that fill the batch; more would be read in vain. `None` without a key.
fn compute_events_per_key(limits: TakeLimits, keys: usize) -> Option<i64> {
    let events = u64::try_from(limits.events).unwrap_or(1);
    let share = (keys > 0).then(|| events.div_ceil(keys as u64))?;
    Some(limits.per_key.min(i64::try_from(share).unwrap_or(i64::MAX)).max(1))
}

/// Removes the events of an ordering key that follow one that was not taken: they must not overtake it, and stay pending. Expects the
/// events of each key by ascending `place`.
fn drop_behind_gaps(events: &mut Vec<TakenEvent>) {
    let mut next = std::collections::HashMap::new();
    events.retain(|event| {
        let next = next.entry((event.tenant.clone(), event.ordering_key.clone())).or_insert(1);
        let follows = event.place == *next;
        *next += i64::from(follows);
        follows
    });
}

/// Deletes published events. Returns the number deleted.
pub async fn delete_events(connection: &mut PgConnection, events: &[&TakenEvent]) -> sqlx::Result<u64> {
    let tenants: Vec<String> = events.iter().map(|event| event.tenant.clone()).collect();
    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    let deleted = sqlx::query_scalar!(r#"select oncely.delete_events($1, $2) as "gone!""#, &tenants, &ids)
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(deleted).unwrap_or(0))
}

/// The result of a failed publication.
#[derive(Clone, Debug)]
pub struct EventFailure<'a> {
    pub event: &'a TakenEvent,
    pub attempts: i32,
    /// When it is tried again; `None` if it is parked.
    pub retry_at: Option<DateTime<Utc>>,
    pub reason: &'static str,
    pub error: String,
}

impl EventFailure<'_> {
    /// Returns whether the failure costs an attempt.
    pub fn is_charged(&self) -> bool {
        self.attempts > self.event.attempts
    }
}

/// Records that events could not be published. Returns the number of events changed.
pub async fn fail_events(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    failures: &[EventFailure<'_>],
) -> sqlx::Result<u64> {
    let tenants: Vec<String> = failures.iter().map(|f| f.event.tenant.clone()).collect();
    let ids: Vec<Uuid> = failures.iter().map(|f| f.event.id).collect();
    let attempts: Vec<i32> = failures.iter().map(|f| f.attempts).collect();
    let times: Vec<DateTime<Utc>> = failures.iter().map(|f| f.retry_at.unwrap_or(now)).collect();
    let parked: Vec<bool> = failures.iter().map(|f| f.retry_at.is_none()).collect();
    let reasons: Vec<String> = failures.iter().map(|f| f.reason.to_owned()).collect();
    let errors: Vec<String> = failures.iter().map(|f| f.error.replace('\0', "\u{fffd}")).collect();
    let result = sqlx::query_file!(
        "src/events_fail.sql",
        &tenants,
        &ids,
        &attempts,
        &times,
        &parked,
        &reasons,
        &errors
    )
    .execute(connection)
    .await?;
    Ok(result.rows_affected())
}

/// Reads the database's time.
pub async fn read_database_time(connection: &mut PgConnection) -> sqlx::Result<DateTime<Utc>> {
    let row = sqlx::query!(r#"select clock_timestamp() as "now!""#).fetch_one(connection).await?;
    Ok(row.now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, place: i64) -> TakenEvent {
        TakenEvent {
            tenant: "t".to_owned(),
            id: Uuid::nil(),
            created_at: DateTime::UNIX_EPOCH,
            attempts: 0,
            reply: false,
            exchange: String::new(),
            routing_key: String::new(),
            ordering_key: Some(key.to_owned()),
            place,
            message_id: None,
            content_type: None,
            kind: None,
            correlation_id: None,
            reply_to: None,
            app_id: None,
            headers: None,
            payload: Some(Vec::new()),
        }
    }

    #[test]
    fn no_more_is_read_of_an_ordering_key_than_fills_the_batch() {
        let limits = TakeLimits { events: 500, bytes: 1, keys: 5_000, per_key: 50 };
        let shares: Vec<_> =
            [0, 1, 10, 300, 500, 900].map(|keys| compute_events_per_key(limits, keys)).into();
        assert_eq!(shares, [None, Some(50), Some(50), Some(2), Some(1), Some(1)]);
    }

    #[test]
    fn an_event_never_overtakes_one_that_was_not_taken() {
        let mut taken =
            vec![event("a", 1), event("c", 1), event("a", 2), event("b", 2), event("c", 3), event("a", 4)];
        drop_behind_gaps(&mut taken);
        let left: Vec<_> = taken.iter().map(|e| (e.ordering_key.as_deref().unwrap(), e.place)).collect();
        assert_eq!(left, [("a", 1), ("c", 1), ("a", 2)]);
    }
}
