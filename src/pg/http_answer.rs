//! What a request was answered with, kept with its key.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use crate::identity::Identity;

/// An answer over HTTP, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Pairs in their order.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    /// `None`: there was one, and it was too large to be stored.
    pub(crate) body: Option<Vec<u8>>,
}

/// What a key that took effect was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredAnswer {
    /// `None` where it came as a message.
    pub(crate) http: Option<HttpAnswer>,
    /// JSON, as PostgreSQL writes it.
    pub(crate) response: Option<String>,
    /// The answer was no.
    pub(crate) is_refused: bool,
}

/// What is stored beside an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTrace<'a> {
    /// Its body is also the response that copies of it as messages have.
    pub(crate) is_response: bool,
    /// The answer is no: what the handler wrote was taken back.
    pub(crate) is_refused: bool,
    pub(crate) took: Duration,
    pub(crate) worker: &'a str,
    pub(crate) trace_id: Option<&'a str>,
}

/// Stores an answer with the key that this transaction has claimed at `claimed_at`; then the transaction is as its handler's for COMMIT. False:
/// it has not claimed the key, and must not be committed.
pub(crate) async fn store_http_answer(
    connection: &mut PgConnection,
    identity: &Identity,
    claimed_at: DateTime<Utc>,
    answer: &HttpAnswer,
    trace: AnswerTrace<'_>,
    now: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    let row = sqlx::query_file!(
        "src/pg/http_store.sql",
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        claimed_at,
        i16::try_from(answer.status).unwrap_or(i16::MAX),
        headers_json(&answer.headers),
        answer.body.as_deref(),
        trace.is_response,
        trace.is_refused,
        now,
        i64::try_from(trace.took.as_micros()).unwrap_or(i64::MAX),
        trace.worker,
        trace.trace_id
    )
    .fetch_one(connection)
    .await?;
    Ok(row.rows == 1)
}

/// Headers as they are stored: one character a byte, because a header's value need not be UTF-8.
pub(crate) fn headers_json(headers: &[(String, Vec<u8>)]) -> Value {
    let pair = |(name, value): &(String, Vec<u8>)| {
        let value: String = value.iter().map(|&byte| char::from(byte)).collect();
        Value::from(vec![name.clone(), value])
    };
    headers.iter().map(pair).collect()
}

/// Headers that were stored so.
pub(crate) fn header_pairs(headers: &Value) -> Vec<(String, Vec<u8>)> {
    let pairs = headers.as_array().map(Vec::as_slice).unwrap_or_default();
    let pair = |pair: &Value| {
        let value = pair.get(1)?.as_str()?.chars().map(u8::try_from).collect::<Result<_, _>>().ok()?;
        Some((pair.get(0)?.as_str()?.to_owned(), value))
    };
    pairs.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_every_byte_and_their_order() {
        let stored = serde_json::json!([["link", "a"], ["link", "b"], ["x", "\u{fc}\u{ff}"]]);
        let link = |value: &[u8]| ("link".to_owned(), value.to_vec());
        assert_eq!(header_pairs(&stored), [link(b"a"), link(b"b"), ("x".to_owned(), vec![0xfc, 0xff])]);
        assert_eq!(
            header_pairs(&serde_json::json!([["x"], 7, ["x", "\u{100}"]])),
            [],
            "no program wrote these"
        );
    }
}
