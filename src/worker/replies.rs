//! Replies: a handler's response for whoever asked for it, in the transaction of the decision.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use uuid::Uuid;

use super::call::Results;
use super::prepare::Candidate;
use super::shared::Shared;
use super::stop::Stop;
use crate::config::{Consumer, LargeResponse};
use crate::failpoint::step;
use crate::fault::{Fault, FaultClass};
use crate::message::HeaderValue;
use crate::outcome::Outcome;
use crate::pg::{self, Reply};

/// Is a reply asked for? Then a duplicate needs PostgreSQL, whoever else knows it: the response is there.
pub(super) fn wants_reply(shared: &Shared, candidate: &Candidate) -> bool {
    let properties = &candidate.delivery.message.properties;
    // No queue has such a name, and PostgreSQL can't hold it.
    let no_nul = |text: &Option<String>| !text.as_ref().is_some_and(|text| text.contains('\0'));
    shared.consumer.replies
        && properties.reply_to.as_ref().is_some_and(|queue| !queue.is_empty())
        && no_nul(&properties.reply_to)
        && no_nul(&properties.correlation_id)
}

/// The same for the same question: whoever repeats it with another `correlation_id` waits for another answer.
fn reply_id(candidate: &Candidate) -> Uuid {
    let mut hasher = blake3::Hasher::new_derive_key("oncely 2026-11-21 reply id v1");
    let (identity, properties) = (&candidate.identity, &candidate.delivery.message.properties);
    for part in [
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        properties.reply_to.as_deref().unwrap_or_default(),
        properties.correlation_id.as_deref().unwrap_or_default(),
    ] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(id).into_uuid()
}

/// Writes a reply for each message that asks for one and was answered, now or before: it took effect, or was refused. `stop` says what an error means here.
pub(super) async fn write_replies(
    shared: &Shared,
    transaction: &mut PgConnection,
    now: DateTime<Utc>,
    stop: fn(sqlx::Error) -> Stop,
    decided: impl Iterator<Item = (&Candidate, &Outcome)>,
) -> Result<(), Stop> {
    let replies: Vec<Reply<'_>> = decided
        .filter(|(candidate, outcome)| {
            (outcome.completes() || matches!(outcome, Outcome::Duplicate(_)))
                && wants_reply(shared, candidate)
        })
        .map(|(candidate, _)| Reply {
            identity: &candidate.identity,
            message_id: reply_id(candidate).to_string(),
            reply_to: candidate.delivery.message.properties.reply_to.as_deref().unwrap_or_default(),
            correlation_id: candidate.delivery.message.properties.correlation_id.as_deref(),
            headers: trace(candidate),
        })
        .collect();
    if replies.is_empty() {
        return Ok(());
    }
    step("worker.reply.before");
    let written = pg::write_replies(transaction, &shared.consumer.name, now, &replies).await.map_err(stop)?;
    if usize::try_from(written) != Ok(replies.len()) {
        let text = format!("{written} replies were written instead of {}", replies.len());
        return Err(Stop::Failed(Fault::new(FaultClass::Transient, None, text)));
    }
    step("worker.reply.after");
    Ok(())
}

/// The W3C trace context of the question goes on with the answer.
fn trace(candidate: &Candidate) -> Option<Value> {
    let headers = &candidate.delivery.message.headers;
    let text = |name: &str| match headers.get(name) {
        Some(HeaderValue::Text(bytes)) => {
            std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).map(Value::from)
        }
        _ => None,
    };
    let parent = text("traceparent")?;
    let mut trace = Map::from_iter([("traceparent".to_owned(), parent)]);
    trace.extend(text("tracestate").map(|state| ("tracestate".to_owned(), state)));
    Some(Value::Object(trace))
}

/// Refuses responses over the consumer's limit: whatever their handlers did is rolled back.
pub(super) fn check_responses(consumer: &Consumer, results: &Results) -> Result<(), Stop> {
    if consumer.on_large_response == LargeResponse::Compress {
        return Ok(());
    }
    let limit = usize::try_from(consumer.response_limit).unwrap_or(usize::MAX);
    for response in results.iter().flatten().flatten() {
        let size = json_size(response);
        if size > limit {
            let text = format!(
                "the response has {size} bytes as JSON; the limit is {limit} (consumers.response_limit, consumers.on_large_response)"
            );
            return Err(Stop::Failed(Fault::new(FaultClass::Rejected, None, text)));
        }
    }
    Ok(())
}

/// Bytes of a value as JSON without white space.
fn json_size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // A writer that never fails, and a value that is JSON already.
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_response_is_as_large_as_its_text() {
        let value = serde_json::json!({ "a": [1, "ü\n", null] });
        assert_eq!(super::json_size(&value), serde_json::to_string(&value).unwrap().len());
    }
}
