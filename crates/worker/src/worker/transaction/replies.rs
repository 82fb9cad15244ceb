//! Replies: a handler's response for the client that requested it, in the transaction of the decision.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::ConsumerContext;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::message::HeaderValue;
use oncely_core::outcome::Outcome;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, Reply};

/// Returns whether a reply is requested. If so, a duplicate needs PostgreSQL, which has the response, even if the mirror knows its key.
pub(crate) fn wants_reply(shared: &ConsumerContext, candidate: &Candidate) -> bool {
    let properties = &candidate.delivery.message.properties;
    // No queue has such a name, and PostgreSQL can't hold it.
    let no_nul = |text: &Option<String>| !text.as_ref().is_some_and(|text| text.contains('\0'));
    shared.consumer.replies
        && properties.reply_to.as_ref().is_some_and(|queue| !queue.is_empty())
        && no_nul(&properties.reply_to)
        && no_nul(&properties.correlation_id)
}

/// Builds the reply's id: equal for equal requests. A client that repeats one with another `correlation_id` waits for another answer.
fn build_reply_id(candidate: &Candidate) -> Uuid {
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

/// Writes a reply for each message that requests one and was answered, now or before: it took effect, or was refused. `interrupt`
/// classifies errors.
pub(super) async fn write_replies<'a>(
    shared: &ConsumerContext,
    transaction: &mut PgConnection,
    now: DateTime<Utc>,
    interrupt: fn(sqlx::Error) -> Interrupt,
    decisions: impl Iterator<Item = (&'a Candidate, &'a Outcome)>,
) -> Result<(), Interrupt> {
    let replies: Vec<Reply<'_>> = decisions
        .filter(|(candidate, outcome)| {
            (outcome.has_completed_key() || matches!(outcome, Outcome::Duplicate(_)))
                && wants_reply(shared, candidate)
        })
        .map(|(candidate, _)| Reply {
            identity: &candidate.identity,
            message_id: build_reply_id(candidate).to_string(),
            reply_to: candidate.delivery.message.properties.reply_to.as_deref().unwrap_or_default(),
            correlation_id: candidate.delivery.message.properties.correlation_id.as_deref(),
            headers: read_trace_context(candidate),
        })
        .collect();
    if replies.is_empty() {
        return Ok(());
    }
    step("worker.reply.before");
    let written =
        pg::write_replies(transaction, &shared.consumer.name, now, &replies).await.map_err(interrupt)?;
    if usize::try_from(written) != Ok(replies.len()) {
        let text = format!("{written} replies were written instead of {}", replies.len());
        return Err(Interrupt::Failed(Fault::new(FaultClass::Transient, None, text)));
    }
    step("worker.reply.after");
    Ok(())
}

/// Reads the W3C trace context of the request, for its reply; `None` if the request has no valid `traceparent`.
fn read_trace_context(candidate: &Candidate) -> Option<Value> {
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
