//! The trail of decisions.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::identity::IdentityPart;

/// One decision about one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRecord {
    /// Empty where the message had no valid one.
    pub tenant: String,
    /// Empty where the message had no valid one.
    pub key: String,
    /// The queue it came from.
    pub queue: String,
    /// `completed`, `duplicate`, `retried` or `dead_lettered`.
    pub outcome: &'static str,
    /// Stable reason code; for a duplicate who knew it.
    pub reason: Option<String>,
    /// SQLSTATE.
    pub error_code: Option<String>,
    /// For people.
    pub detail: Option<String>,
    /// Which run, from 1; 0 where nothing ran.
    pub attempt: u32,
    /// From the start of the batch to the decision, in microseconds.
    pub duration_us: Option<i64>,
    /// From the message's `traceparent`.
    pub trace_id: Option<String>,
}

/// Appends records in the caller's transaction. Returns how many rows were written.
pub(crate) async fn append(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    worker: &str,
    now: DateTime<Utc>,
    records: &[AuditRecord],
) -> Result<u64, sqlx::Error> {
    let text =
        |of: fn(&AuditRecord) -> &str| records.iter().map(|r| of(r).to_owned()).collect::<Vec<String>>();
    let optional =
        |of: fn(&AuditRecord) -> &Option<String>| records.iter().map(|r| of(r).clone()).collect::<Vec<_>>();
    let tenants = text(|r| &r.tenant);
    let ids: Vec<Uuid> = records.iter().map(|_| Uuid::now_v7()).collect();
    let attempts: Vec<i32> = records.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)).collect();
    let durations: Vec<Option<i64>> = records.iter().map(|r| r.duration_us).collect();
    let keys = text(|r| &r.key);
    let queues = text(|r| &r.queue);
    let outcomes = text(|r| r.outcome);
    let reasons = optional(|r| &r.reason);
    let codes = optional(|r| &r.error_code);
    let details = optional(|r| &r.detail);
    let traces = optional(|r| &r.trace_id);
    let done = sqlx::query_file!(
        "src/pg/audit.sql",
        now,
        consumer.as_str(),
        worker,
        &tenants,
        &ids,
        &attempts,
        &durations as &[Option<i64>],
        &keys,
        &queues,
        &outcomes,
        &reasons as &[Option<String>],
        &codes as &[Option<String>],
        &details as &[Option<String>],
        &traces as &[Option<String>]
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
