//! Stores the HTTP response of a request with its key.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use oncely_core::identity::Identity;

/// The stored part of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Name and value, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// `None` if the body was too large to be stored.
    pub body: Option<Vec<u8>>,
}

/// The stored answer of a completed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// `None` if the key was completed by a message.
    pub http: Option<HttpAnswer>,
    /// JSON, as PostgreSQL writes it.
    pub response: Option<String>,
    /// Whether the handler refused.
    pub is_refused: bool,
}

/// Values stored beside an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerTrace<'a> {
    /// Whether its body is also the response for copies that come as messages.
    pub is_response: bool,
    /// Whether the handler refused: its writes were rolled back.
    pub is_refused: bool,
    pub duration: Duration,
    pub worker: &'a str,
    pub trace_id: Option<&'a str>,
}

/// Stores an answer with the key that this transaction has claimed at `claimed_at`; then resets the transaction to the handler's settings
/// for COMMIT. Returns false if it has not claimed the key: it must not be committed.
pub async fn store_http_answer(
    connection: &mut PgConnection,
    identity: &Identity,
    claimed_at: DateTime<Utc>,
    answer: &HttpAnswer,
    trace: AnswerTrace<'_>,
    now: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let row = sqlx::query_file!(
        "src/http_store.sql",
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        claimed_at,
        i16::try_from(answer.status).unwrap_or(i16::MAX),
        to_headers_json(&answer.headers),
        answer.body.as_deref(),
        trace.is_response,
        trace.is_refused,
        now,
        i64::try_from(trace.duration.as_micros()).unwrap_or(i64::MAX),
        trace.worker,
        trace.trace_id
    )
    .fetch_one(connection)
    .await?;
    Ok(row.rows == 1)
}

/// Converts headers to the stored form: one character per byte, because a header's value need not be UTF-8.
pub fn to_headers_json(headers: &[(String, Vec<u8>)]) -> Value {
    let pair = |(name, value): &(String, Vec<u8>)| {
        let value: String = value.iter().map(|&byte| char::from(byte)).collect();
        Value::from(vec![name.clone(), value])
    };
    headers.iter().map(pair).collect()
}

/// Parses stored headers; skips malformed ones.
pub fn parse_headers(headers: &Value) -> Vec<(String, Vec<u8>)> {
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
        assert_eq!(parse_headers(&stored), [link(b"a"), link(b"b"), ("x".to_owned(), vec![0xfc, 0xff])]);
        assert_eq!(
            parse_headers(&serde_json::json!([["x"], 7, ["x", "\u{100}"]])),
            [],
            "no program wrote these"
        );
    }
}
