//! Operators' view of events, and changes to them.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::tenant_groups::group_by_placement;

/// A filter of events; `None` matches any.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct EventFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// All events of the tenant after the event with this id, in the order of their ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<Uuid>,
    pub limit: i64,
}

/// An event without its message.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct EventRow {
    pub tenant: String,
    pub id: Uuid,
    pub created_at: DateTime<Utc>,
    pub available_at: DateTime<Utc>,
    pub attempts: i32,
    pub state: String,
    pub reply: bool,
    pub exchange: String,
    pub routing_key: String,
    pub ordering_key: Option<String>,
    pub ordering_number: Option<i64>,
    pub message_id: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub correlation_id: Option<String>,
    pub reason: Option<String>,
    pub last_error: Option<String>,
}

/// Lists events, oldest first; after an event of a tenant in the order of their ids.
///
/// # Errors
/// If the query fails.
pub async fn list_events(connection: &mut PgConnection, filter: &EventFilter) -> sqlx::Result<Vec<EventRow>> {
    sqlx::query_file_as!(
        EventRow,
        "src/events_list.sql",
        filter.tenant.as_deref(),
        filter.exchange.as_deref(),
        filter.routing_key.as_deref(),
        filter.ordering_key.as_deref(),
        filter.reason.as_deref(),
        filter.created_before,
        filter.ids.as_deref() as Option<&[Uuid]>,
        filter.state.as_deref(),
        filter.behind,
        filter.limit
    )
    .fetch_all(connection)
    .await
}

/// A change of events by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventChange {
    Retry,
    Discard,
}

impl EventChange {
    /// Returns the verb that is recorded for the change.
    fn verb(self) -> &'static str {
        match self {
            Self::Retry => "retry_events",
            Self::Discard => "discard_events",
        }
    }
}

/// The user, the reason and the filter recorded with a change of events.
#[derive(Clone, Copy, Debug)]
pub struct EventChangeAuthor<'a> {
    pub user: &'a str,
    pub reason: Option<&'a str>,
    pub filter: &'a serde_json::Value,
}

/// Changes those of the events that no relay holds, and records the change, in the caller's transaction. Returns the number changed.
pub async fn change_events(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    change: EventChange,
    events: &[EventRow],
    state: Option<&str>,
    author: EventChangeAuthor<'_>,
) -> sqlx::Result<usize> {
    let mut done = 0;
    for group in group_by_placement(connection, events, |event| event.tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|event| event.tenant.as_str()).collect();
        let ids: Vec<Uuid> = group.iter().map(|event| event.id).collect();
        let changed = sqlx::query_scalar!(
            r#"select oncely.change_events($1, $2, $3, $4, $5, $6, $7, $8) as "done!""#,
            change.verb(),
            now,
            &tenants as &[&str],
            &ids,
            state,
            author.filter,
            author.reason,
            author.user
        )
        .fetch_one(&mut *connection)
        .await?;
        done += usize::try_from(changed).unwrap_or(0);
    }
    Ok(done)
}

/// Number and age of the unpublished events, for operators and metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventStatus {
    /// Number of unpublished events, counted up to 10,000: includes delayed ones, but not parked ones.
    pub pending: i64,
    /// When the oldest due one was written.
    pub oldest_due: Option<DateTime<Utc>>,
    /// Number of events given up until an operator decides, counted up to 10,000.
    pub parked: i64,
    /// When the oldest parked one was written.
    pub oldest_parked: Option<DateTime<Utc>>,
}

/// Reads number and age of the unpublished events. An event behind one that waits or is parked counts as due.
///
/// # Errors
/// If the query fails.
pub async fn read_event_status(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<EventStatus> {
    sqlx::query_as!(
        EventStatus,
        r#"select
            (select count(*) from (select 1 from oncely.events where state = 'pending' limit 10000) as e) as "pending!",
            (
                select oncely.bounded(created_at) from oncely.events where state = 'pending' and available_at <= $1
                order by created_at limit 1
            ) as oldest_due,
            (select count(*) from (select 1 from oncely.events where state = 'parked' limit 10000) as e) as "parked!",
            (select oncely.bounded(created_at) from oncely.events where state = 'parked' order by created_at limit 1) as oldest_parked"#,
        now
    )
    .fetch_one(connection)
    .await
}
