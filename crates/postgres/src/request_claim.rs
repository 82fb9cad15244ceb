//! Claims a request's key and reads its state, in one statement.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::http_answer::{HttpAnswer, StoredAnswer, parse_headers};
use oncely_core::decide::{KeyRecord, KeyStatus};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;

/// The result of a request's claim.
#[derive(Clone, Debug)]
pub enum RequestClaim {
    /// This transaction has claimed the key.
    Won,
    /// The key is known. The second value is its stored answer, if it took effect.
    Known(KeyRecord, StoredAnswer),
    /// Another transaction was faster, or the key was collected in between: claim again.
    Unseen,
}

/// Claims a request's key in a transaction of [`begin_request`](super::begin_request), unless it is known. Waits a moment for an open
/// transaction that holds the key. If the key took effect, COMMIT waits until a standby has it.
///
/// # Errors
/// If another transaction holds the key for longer: `lock_not_available` ([`is_locked`](super::is_locked)).
pub async fn claim_request(
    connection: &mut PgConnection,
    identity: &Identity,
    fingerprint: Option<Fingerprint>,
    now: DateTime<Utc>,
) -> sqlx::Result<RequestClaim> {
    let row = sqlx::query_file!(
        "src/claim_request.sql",
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        now,
        fingerprint.as_ref().map(|print| &print.0[..])
    )
    .fetch_one(connection)
    .await?;
    if row.is_claimed {
        return Ok(RequestClaim::Won);
    }
    let Some(status) = row.status else { return Ok(RequestClaim::Unseen) };
    let status = KeyStatus::from_column(&status)
        .ok_or_else(|| sqlx::Error::Decode(format!("unknown status {status:?}").into()))?;
    let answer = StoredAnswer {
        http: row.http_status.map(|status| HttpAnswer {
            status: u16::try_from(status).unwrap_or(500),
            headers: row.http_headers.as_ref().map(parse_headers).unwrap_or_default(),
            body: row.http_body,
        }),
        response: row.response,
        is_refused: row.reason.is_some(),
    };
    let count = |column: Option<i32>| u32::try_from(column.unwrap_or_default()).unwrap_or(u32::MAX);
    let record = KeyRecord {
        status,
        fingerprint: row.known_fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes)),
        attempts: count(row.attempts),
        crash_attempts: count(row.crash_attempts),
        reason: row.reason.as_deref().and_then(Reason::from_code),
        last_error: row.last_error,
        error_code: row.error_code,
        not_before: row.not_before,
        is_running: row.is_running.unwrap_or(false),
        is_leased: row.is_leased.unwrap_or(false),
    };
    Ok(RequestClaim::Known(record, answer))
}

/// Claims a request's key that failed before, as a message, unless it has to wait until after `due`. Returns false if another transaction
/// was faster.
///
/// # Errors
/// If another transaction holds the key for longer than a moment, as for [`claim_request`].
pub async fn retake_request(
    connection: &mut PgConnection,
    identity: &Identity,
    fingerprint: Option<Fingerprint>,
    now: DateTime<Utc>,
    due: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let row = sqlx::query!(
        r#"select oncely.retake_request($1, $2, $3, $4, $5, $6) as "is_claimed!""#,
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        now,
        fingerprint.as_ref().map(|print| &print.0[..]),
        due
    )
    .fetch_one(connection)
    .await?;
    Ok(row.is_claimed)
}
