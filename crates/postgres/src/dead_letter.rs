//! Stored copies of dead letters, as workers write them and the maintenance deletes them.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::letter_quota::Quota;
use super::tenant_groups::group_by_placement;
use super::unit::Unit;
use oncely_core::encryption::StoredValue;
use oncely_core::identity::IdentityPart;
use oncely_core::letter::Letter;

/// A message that was given up, with everything needed to publish it again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeadLetter {
    /// Empty if the message had no valid tenant.
    pub tenant: String,
    pub id: Uuid,
    /// Empty if the message had no valid key.
    pub key: String,
    pub reason: &'static str,
    pub error_code: Option<String>,
    pub detail: String,
    pub attempt: u32,
    pub queue: String,
    pub trace_id: Option<String>,
    /// Number of messages of one batch that are this letter.
    pub times: i32,
    pub failure_group: String,
    pub exchange: String,
    pub routing_key: String,
    pub fingerprint: Option<Vec<u8>>,
    pub properties: Value,
    pub headers: Option<Value>,
    /// `None` if the message is not stored completely.
    pub body: Option<StoredValue>,
    pub body_size: usize,
    /// The reason why it is not stored completely: `max_body`, `headers`, `cipher`.
    pub omitted: Option<&'static str>,
}

/// Writes letters in the caller's transaction; each must have a unique id. Letters that exceed the quota are stored without body and
/// headers. Returns the letters with their generations.
pub async fn store_letters(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    worker: &str,
    now: DateTime<Utc>,
    quota: Quota,
    letters: &[DeadLetter],
) -> sqlx::Result<Vec<(String, Letter)>> {
    let mut stored_letters = Vec::new();
    for group in group_by_placement(connection, letters, |letter| letter.tenant.as_str()).await? {
        let text =
            |of: fn(&DeadLetter) -> &str| group.iter().map(|l| of(l).to_owned()).collect::<Vec<String>>();
        let ids: Vec<Uuid> = group.iter().map(|l| l.id).collect();
        let codes: Vec<Option<String>> = group.iter().map(|l| l.error_code.clone()).collect();
        let attempts: Vec<i32> = group.iter().map(|l| i32::try_from(l.attempt).unwrap_or(i32::MAX)).collect();
        let traces: Vec<Option<String>> = group.iter().map(|l| l.trace_id.clone()).collect();
        let times: Vec<i32> = group.iter().map(|l| l.times).collect();
        let fingerprints: Vec<Option<Vec<u8>>> = group.iter().map(|l| l.fingerprint.clone()).collect();
        let properties: Vec<Value> = group.iter().map(|l| l.properties.clone()).collect();
        let headers: Vec<Option<Value>> = group.iter().map(|l| l.headers.clone()).collect();
        let stored = group.iter().map(|l| match l.body.clone().map(StoredValue::into_columns) {
            Some((key, bytes)) => (key, Some(bytes)),
            None => (None, None),
        });
        let (keys, bodies): (Vec<Option<String>>, Vec<Option<Vec<u8>>>) = stored.unzip();
        let sizes: Vec<i64> = group.iter().map(|l| i64::try_from(l.body_size).unwrap_or(i64::MAX)).collect();
        let omitted: Vec<Option<String>> = group.iter().map(|l| l.omitted.map(str::to_owned)).collect();
        let rows = sqlx::query_file!(
            "src/keep_dead_letters.sql",
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
        .fetch_all(&mut *connection)
        .await?;
        stored_letters.extend(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))));
    }
    Ok(stored_letters)
}

/// Converts the columns of a letter's row.
pub(super) fn to_letter(id: Uuid, generation: i32) -> Letter {
    Letter { id, generation: u32::try_from(generation).unwrap_or(0) }
}

/// Deletes one bounded batch of letters that were requeued or discarded before `before`, after which their queue was swept. Returns the
/// number deleted.
pub async fn collect(
    connection: &mut PgConnection,
    unit: &Unit,
    before: DateTime<Utc>,
    limit: i64,
) -> sqlx::Result<u64> {
    let deleted = sqlx::query_scalar!(
        r#"select oncely.collect_dead_letters($1, $2, $3) as "gone!""#,
        before,
        limit,
        unit.name()
    )
    .fetch_one(connection)
    .await?;
    Ok(u64::try_from(deleted).unwrap_or(0))
}
