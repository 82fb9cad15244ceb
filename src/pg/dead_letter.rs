//! The searchable copies of dead letters, as workers write them and maintenance collects them.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::letter_quota::Quota;
use crate::encryption::Stored;
use crate::identity::IdentityPart;
use crate::letter::Letter;

/// A message that is given up, with all that it takes to publish it again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeadLetter {
    /// Empty where the message had no valid one.
    pub(crate) tenant: String,
    pub(crate) id: Uuid,
    /// Empty where the message had no valid one.
    pub(crate) key: String,
    pub(crate) reason: &'static str,
    pub(crate) error_code: Option<String>,
    pub(crate) detail: String,
    pub(crate) attempt: u32,
    pub(crate) queue: String,
    pub(crate) trace_id: Option<String>,
    /// Messages of one batch that are this letter.
    pub(crate) times: i32,
    pub(crate) failure_group: String,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) fingerprint: Option<Vec<u8>>,
    pub(crate) properties: Value,
    pub(crate) headers: Option<Value>,
    /// `None` where the message is not stored whole.
    pub(crate) body: Option<Stored>,
    pub(crate) body_size: usize,
    /// Why it is not stored whole: `max_body`, `headers`, `cipher`.
    pub(crate) omitted: Option<&'static str>,
}

/// Writes letters in the caller's transaction; each must have an id of its own. What does not fit into the quota is kept without body
/// and headers. Returns them with their generations.
pub(crate) async fn keep(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    worker: &str,
    now: DateTime<Utc>,
    quota: Quota,
    letters: &[DeadLetter],
) -> Result<Vec<(String, Letter)>, sqlx::Error> {
    let text =
        |of: fn(&DeadLetter) -> &str| letters.iter().map(|l| of(l).to_owned()).collect::<Vec<String>>();
    let ids: Vec<Uuid> = letters.iter().map(|l| l.id).collect();
    let codes: Vec<Option<String>> = letters.iter().map(|l| l.error_code.clone()).collect();
    let attempts: Vec<i32> = letters.iter().map(|l| i32::try_from(l.attempt).unwrap_or(i32::MAX)).collect();
    let traces: Vec<Option<String>> = letters.iter().map(|l| l.trace_id.clone()).collect();
    let times: Vec<i32> = letters.iter().map(|l| l.times).collect();
    let fingerprints: Vec<Option<Vec<u8>>> = letters.iter().map(|l| l.fingerprint.clone()).collect();
    let properties: Vec<Value> = letters.iter().map(|l| l.properties.clone()).collect();
    let headers: Vec<Option<Value>> = letters.iter().map(|l| l.headers.clone()).collect();
    let stored = letters.iter().map(|l| match l.body.clone().map(Stored::columns) {
        Some((key, bytes)) => (key, Some(bytes)),
        None => (None, None),
    });
    let (keys, bodies): (Vec<Option<String>>, Vec<Option<Vec<u8>>>) = stored.unzip();
    let sizes: Vec<i64> = letters.iter().map(|l| i64::try_from(l.body_size).unwrap_or(i64::MAX)).collect();
    let omitted: Vec<Option<String>> = letters.iter().map(|l| l.omitted.map(str::to_owned)).collect();
    let rows = sqlx::query_file!(
        "src/pg/keep_dead_letters.sql",
        consumer.as_str(),
        worker,
        now,
        &text(|l| &l.tenant),
        &ids,
        &text(|l| &l.key),
        &text(|l| l.reason),
        &codes as &[Option<String>],
        &text(|l| &l.detail),
        &attempts,
        &text(|l| &l.queue),
        &traces as &[Option<String>],
        &times,
        &text(|l| &l.failure_group),
        &text(|l| &l.exchange),
        &text(|l| &l.routing_key),
        &fingerprints as &[Option<Vec<u8>>],
        &properties,
        &headers as &[Option<Value>],
        &bodies as &[Option<Vec<u8>>],
        &sizes,
        &omitted as &[Option<String>],
        quota.letters,
        quota.bytes,
        &keys as &[Option<String>]
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, letter(row.id, row.generation))).collect())
}

pub(super) fn letter(id: Uuid, generation: i32) -> Letter {
    Letter { id, generation: u32::try_from(generation).unwrap_or(0) }
}

/// Deletes one bounded batch of letters that were requeued or discarded before `before` and whose queue has been swept
/// since. Returns how many went.
pub(crate) async fn collect(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query_scalar!(r#"select oncely.collect_dead_letters($1, $2) as "gone!""#, before, limit)
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(gone).unwrap_or(0))
}
