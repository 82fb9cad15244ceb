//! The right to run a request, in one statement with what is known of its key.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::http_answer::{HttpAnswer, StoredAnswer, header_pairs};
use crate::decide::{KeyRecord, KeyStatus};
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::reason::Reason;

/// What became of a request's claim.
#[derive(Clone, Debug)]
pub(crate) enum RequestClaim {
    /// The key is this transaction's.
    Won,
    /// Somebody has it. The answer is what it was answered with, where it took effect.
    Known(KeyRecord, StoredAnswer),
    /// Somebody was faster, or it was collected in between: claim again.
    Unseen,
}

/// Claims a request's key in a transaction of [`begin_request`](super::begin_request), unless it is known. Waits for whoever holds the key in an
/// open transaction, for a moment. Where the key took effect, COMMIT waits until a standby has it.
///
/// # Errors
/// `lock_not_available` ([`is_locked`](super::is_locked)) where somebody holds it for longer.
pub(crate) async fn claim_request(
    connection: &mut PgConnection,
    identity: &Identity,
    fingerprint: Option<Fingerprint>,
    now: DateTime<Utc>,
) -> Result<RequestClaim, sqlx::Error> {
    let row = sqlx::query_file!(
        "src/pg/claim_request.sql",
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
            headers: row.http_headers.as_ref().map(header_pairs).unwrap_or_default(),
            body: row.http_body,
        }),
        response: row.response,
        is_refused: row.reason.is_some(),
    };
    let count = |column: Option<i32>| u32::try_from(column.unwrap_or_default()).unwrap_or(u32::MAX);
    let record = KeyRecord {
        status,
        fingerprint: row.fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes)),
        attempts: count(row.attempts),
        crash_attempts: count(row.crash_attempts),
        reason: row.reason.as_deref().and_then(Reason::from_code),
        last_error: row.last_error,
        error_code: row.error_code,
        not_before: row.not_before,
        is_running: row.is_running.unwrap_or(false),
        is_leased: row.is_leased,
    };
    Ok(RequestClaim::Known(record, answer))
}

/// Claims a request's key that failed before, as a message, unless it is to wait until after `due`. False: somebody else was faster.
///
/// # Errors
/// As [`claim_request`].
pub(crate) async fn retake_request(
    connection: &mut PgConnection,
    identity: &Identity,
    fingerprint: Option<Fingerprint>,
    now: DateTime<Utc>,
    due: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    let row = sqlx::query_file!(
        "src/pg/retake_request.sql",
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
