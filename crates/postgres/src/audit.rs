//! The audit trail of decisions.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use oncely_core::identity::IdentityPart;

/// One decision about one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRecord<'a> {
    /// The tenant; empty if the message had no valid one.
    pub tenant: &'a str,
    /// The key; empty if the message had no valid one.
    pub key: &'a str,
    /// The queue of the message.
    pub queue: &'a str,
    /// `completed`, `duplicate`, `retried` or `dead_lettered`.
    pub outcome: &'static str,
    /// Stable reason code; for a duplicate, the layer that recognised it: `mirror`, `postgres` or `batch`.
    pub reason: Option<&'a str>,
    /// SQLSTATE.
    pub error_code: Option<&'a str>,
    /// A description for operators.
    pub detail: Option<&'a str>,
    /// The number of the run, from 1; 0 if nothing ran.
    pub attempt: u32,
    /// Time from the start of the batch to the decision, in microseconds.
    pub duration_us: Option<i64>,
    /// The trace id of the message's `traceparent`.
    pub trace_id: Option<&'a str>,
}

/// Appends records in the caller's transaction. Returns how many rows were written.
pub async fn append(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    worker: &str,
    now: DateTime<Utc>,
    records: &[AuditRecord<'_>],
) -> sqlx::Result<u64> {
    let tenants: Vec<&str> = records.iter().map(|r| r.tenant).collect();
    let keys: Vec<&str> = records.iter().map(|r| r.key).collect();
    let (attempts, attempt) =
        split_column(records.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)));
    let (durations, duration) = split_column(records.iter().map(|r| r.duration_us));
    let (queues, queue) = split_column(records.iter().map(|r| r.queue));
    let (outcomes, outcome) = split_column(records.iter().map(|r| r.outcome));
    let reasons = collect_sparse_column(records.iter().map(|r| r.reason));
    let codes = collect_sparse_column(records.iter().map(|r| r.error_code));
    let details = collect_sparse_column(records.iter().map(|r| r.detail));
    let traces = collect_sparse_column(records.iter().map(|r| r.trace_id));
    let result = sqlx::query_file!(
        "src/audit.sql",
        now,
        consumer.as_str(),
        worker,
        &tenants as &[&str],
        &attempts,
        &durations as &[Option<i64>],
        &keys as &[&str],
        &queues as &[&str],
        &outcomes as &[&str],
        &reasons as &[Option<&str>],
        &codes as &[Option<&str>],
        &details as &[Option<&str>],
        &traces as &[Option<&str>],
        attempt,
        duration.flatten(),
        queue,
        outcome
    )
    .execute(connection)
    .await?;
    Ok(result.rows_affected())
}

/// Splits a column's values: if all are equal, as in nearly every batch, returns an empty array and that value; otherwise the array and
/// `None`.
fn split_column<T: PartialEq>(values: impl Iterator<Item = T> + Clone) -> (Vec<T>, Option<T>) {
    let mut copy = values.clone();
    match copy.next() {
        Some(first) if copy.all(|value| value == first) => (Vec::new(), Some(first)),
        _ => (values.collect(), None),
    }
}

/// Collects a column that nearly always holds only nulls; if so, returns an empty array, which `unnest` fills up with nulls.
fn collect_sparse_column<'a>(values: impl Iterator<Item = Option<&'a str>> + Clone) -> Vec<Option<&'a str>> {
    match values.clone().any(|value| value.is_some()) {
        true => values.collect(),
        false => Vec::new(),
    }
}
