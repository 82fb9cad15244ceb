//! The trail of decisions.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::identity::IdentityPart;

/// One decision about one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRecord<'a> {
    /// Empty where the message had no valid one.
    pub tenant: &'a str,
    /// Empty where the message had no valid one.
    pub key: &'a str,
    /// The queue it came from.
    pub queue: &'a str,
    /// `completed`, `duplicate`, `retried` or `dead_lettered`.
    pub outcome: &'static str,
    /// Stable reason code; for a duplicate who knew it.
    pub reason: Option<&'a str>,
    /// SQLSTATE.
    pub error_code: Option<&'a str>,
    /// For people.
    pub detail: Option<&'a str>,
    /// Which run, from 1; 0 where nothing ran.
    pub attempt: u32,
    /// From the start of the batch to the decision, in microseconds.
    pub duration_us: Option<i64>,
    /// From the message's `traceparent`.
    pub trace_id: Option<&'a str>,
}

/// Appends records in the caller's transaction. Returns how many rows were written.
pub(crate) async fn append(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    worker: &str,
    now: DateTime<Utc>,
    records: &[AuditRecord<'_>],
) -> Result<u64, sqlx::Error> {
    let tenants: Vec<&str> = records.iter().map(|r| r.tenant).collect();
    let keys: Vec<&str> = records.iter().map(|r| r.key).collect();
    let (attempts, attempt) = apart(records.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)));
    let (durations, duration) = apart(records.iter().map(|r| r.duration_us));
    let (queues, queue) = apart(records.iter().map(|r| r.queue));
    let (outcomes, outcome) = apart(records.iter().map(|r| r.outcome));
    let reasons = sparse(records.iter().map(|r| r.reason));
    let codes = sparse(records.iter().map(|r| r.error_code));
    let details = sparse(records.iter().map(|r| r.detail));
    let traces = sparse(records.iter().map(|r| r.trace_id));
    let done = sqlx::query_file!(
        "src/pg/audit.sql",
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
    Ok(done.rows_affected())
}

/// A column's values; or, where all are the same, as in nearly every batch, no array at all and that value.
fn apart<T: PartialEq>(values: impl Iterator<Item = T> + Clone) -> (Vec<T>, Option<T>) {
    let mut some = values.clone();
    match some.next() {
        Some(first) if some.all(|value| value == first) => (Vec::new(), Some(first)),
        _ => (values.collect(), None),
    }
}

/// A column that nearly always holds nothing: no array at all then, and `unnest` fills it up with nulls.
fn sparse<'a>(values: impl Iterator<Item = Option<&'a str>> + Clone) -> Vec<Option<&'a str>> {
    match values.clone().any(|value| value.is_some()) {
        true => values.collect(),
        false => Vec::new(),
    }
}
