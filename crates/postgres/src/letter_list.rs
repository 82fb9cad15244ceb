//! Lists dead letters for operators: rows, and failure groups.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

/// A filter of dead letters; `None` matches any.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct LetterFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<Vec<String>>,
    /// Only letters after this time and id in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<(DateTime<Utc>, Uuid)>,
    pub limit: i64,
}

/// A dead letter without its message.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct LetterRow {
    pub tenant: String,
    pub id: Uuid,
    pub consumer: String,
    pub key: String,
    pub dead_lettered_at: DateTime<Utc>,
    pub reason: String,
    pub error_code: Option<String>,
    pub detail: Option<String>,
    pub attempt: i32,
    pub queue: String,
    pub worker: String,
    pub trace_id: Option<String>,
    pub state: String,
    pub generation: i32,
    pub times: i32,
    pub failure_group: String,
    pub exchange: String,
    pub routing_key: String,
    pub body_size: i64,
    pub whole: bool,
    /// The id of the key that encrypted the stored body.
    pub encrypted_by: Option<String>,
    pub omitted: Option<String>,
    pub updated_at: DateTime<Utc>,
    pub swept_at: Option<DateTime<Utc>>,
}

/// Lists dead letters, newest first.
///
/// # Errors
/// If the query fails.
pub async fn list_letters(
    connection: &mut PgConnection,
    filter: &LetterFilter,
) -> sqlx::Result<Vec<LetterRow>> {
    sqlx::query_file_as!(
        LetterRow,
        "src/letters_list.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.queue.as_deref(),
        filter.reason.as_deref(),
        filter.group.as_deref(),
        filter.key.as_deref(),
        filter.since,
        filter.until,
        filter.ids.as_deref() as Option<&[Uuid]>,
        filter.states.as_deref() as Option<&[String]>,
        filter.limit,
        filter.before.map(|(at, _)| at),
        filter.before.map(|(_, id)| id)
    )
    .fetch_all(connection)
    .await
}

/// A group of dead letters with the same kind of failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct LetterGroup {
    pub consumer: String,
    pub failure_group: String,
    pub reason: String,
    pub error_code: Option<String>,
    pub detail: Option<String>,
    pub waiting: i64,
    pub requeueing: i64,
    pub requeued: i64,
    pub discarded: i64,
    pub came_back: i64,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
}

/// Lists failure groups, those with most waiting letters first. Covers the newest 100,000 letters that match.
///
/// # Errors
/// If the query fails.
pub async fn list_letter_groups(
    connection: &mut PgConnection,
    filter: &LetterFilter,
) -> sqlx::Result<Vec<LetterGroup>> {
    sqlx::query_file_as!(
        LetterGroup,
        "src/letters_groups.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.queue.as_deref(),
        filter.reason.as_deref(),
        filter.group.as_deref(),
        filter.key.as_deref(),
        filter.since,
        filter.until,
        filter.limit
    )
    .fetch_all(connection)
    .await
}

/// Number of letters of a group that came in a part of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterTrend {
    pub consumer: String,
    pub failure_group: String,
    /// The number of the part, from 0.
    pub part: i32,
    pub count: i64,
}

/// Counts the letters of each group from `since` to `until` in `parts` of equal length. Covers the newest 100,000 letters.
pub async fn count_letter_trends(
    connection: &mut PgConnection,
    filter: &LetterFilter,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    parts: i32,
) -> sqlx::Result<Vec<LetterTrend>> {
    sqlx::query_file_as!(
        LetterTrend,
        "src/letters_trends.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.reason.as_deref(),
        filter.group.as_deref(),
        since,
        until,
        parts
    )
    .fetch_all(connection)
    .await
}

/// Counts letters that wait for an operator, up to 10,000.
pub async fn count_open_letters(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"select count(*) as "count!" from (select 1 from oncely.dead_letters where state in ('waiting', 'requeueing') limit 10000) as d"#
    )
    .fetch_one(connection)
    .await
}
