//! Calling a handler that is a SQL function.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use super::{Incoming, JsonPolicy, SqlFunction};
use crate::fault::Fault;
use crate::identity::IdentityPart;
use crate::pg::class_of;

/// The messages of a batch as arrays for `unnest`.
#[derive(Default)]
struct Columns {
    seqs: Vec<i32>,
    attempts: Vec<i32>,
    redelivered: Vec<bool>,
    published: Vec<Option<DateTime<Utc>>>,
    tenants: Vec<String>,
    keys: Vec<String>,
    is_json: Vec<bool>,
    bodies: Vec<Vec<u8>>,
    content_types: Vec<Option<String>>,
    headers: Vec<Value>,
    exchanges: Vec<String>,
    routing_keys: Vec<String>,
    queues: Vec<String>,
    message_ids: Vec<Option<String>>,
    correlation_ids: Vec<Option<String>>,
    reply_tos: Vec<Option<String>>,
    kinds: Vec<Option<String>>,
    user_ids: Vec<Option<String>>,
    app_ids: Vec<Option<String>>,
    trace_ids: Vec<Option<String>>,
}

impl Columns {
    fn of(function: &SqlFunction, messages: &[Incoming<'_>]) -> Self {
        let mut columns = Self::default();
        for (index, incoming) in messages.iter().enumerate() {
            let message = incoming.message;
            let properties = message.properties.clone();
            columns.seqs.push(i32::try_from(index + 1).unwrap_or(i32::MAX));
            columns.attempts.push(i32::try_from(incoming.attempt).unwrap_or(i32::MAX));
            columns.redelivered.push(message.redelivered);
            columns.published.push(properties.timestamp);
            columns.tenants.push(incoming.identity.tenant.as_str().to_owned());
            columns.keys.push(incoming.identity.key.as_str().to_owned());
            columns.is_json.push(function.json != JsonPolicy::Off && incoming.is_json);
            columns.bodies.push(message.body.to_vec());
            columns.content_types.push(without_nul(properties.content_type));
            columns.headers.push(message.headers_json());
            columns.exchanges.push(message.exchange.replace('\0', "\u{fffd}"));
            columns.routing_keys.push(message.routing_key.replace('\0', "\u{fffd}"));
            columns.queues.push(message.queue.clone());
            columns.message_ids.push(without_nul(properties.message_id));
            columns.correlation_ids.push(without_nul(properties.correlation_id));
            columns.reply_tos.push(without_nul(properties.reply_to));
            columns.kinds.push(without_nul(properties.kind));
            columns.user_ids.push(without_nul(properties.user_id));
            columns.app_ids.push(without_nul(properties.app_id));
            columns.trace_ids.push(message.trace_id().map(str::to_owned));
        }
        columns
    }
}

/// PostgreSQL's text holds no NUL; a property that is only passed on must not fail the message.
fn without_nul(text: Option<String>) -> Option<String> {
    text.map(|text| text.replace('\0', "\u{fffd}"))
}

/// Runs the handler on all messages, in one statement; returns a response or a fault per message, in their order.
///
/// # Errors
/// Together: the first error of any message. Each alone: only what ends the whole statement, such as a timeout or a lost
/// connection. As a decoding error: a batch function that did not return one row per message.
pub(crate) async fn call(
    connection: &mut PgConnection,
    function: &SqlFunction,
    consumer: &IdentityPart,
    messages: &[Incoming<'_>],
    each_alone: bool,
) -> Result<Vec<Result<Option<Value>, EachFault>>, sqlx::Error> {
    let c = Columns::of(function, messages);
    let rows = sqlx::query_file!(
        "src/handler/call.sql",
        function.name,
        function.batch,
        consumer.as_str(),
        &c.seqs,
        &c.attempts,
        &c.redelivered,
        &c.published as &[Option<DateTime<Utc>>],
        &c.tenants,
        &c.keys,
        &c.is_json,
        &c.bodies,
        &c.content_types as &[Option<String>],
        &c.headers,
        &c.exchanges,
        &c.routing_keys,
        &c.queues,
        &c.message_ids as &[Option<String>],
        &c.correlation_ids as &[Option<String>],
        &c.reply_tos as &[Option<String>],
        &c.kinds as &[Option<String>],
        &c.user_ids as &[Option<String>],
        &c.app_ids as &[Option<String>],
        &c.trace_ids as &[Option<String>],
        each_alone,
        function.json == JsonPolicy::Required
    )
    .fetch_all(connection)
    .await?;
    let answers = rows.into_iter().map(|row| {
        let answer = match row.error_code {
            None => Ok(row.response),
            Some(code) => Err(match class_of(&code) {
                Some(class) => {
                    EachFault::Fault(Fault::new(class, Some(code), row.error_message.unwrap_or_default()))
                }
                // Raised inside a live session, so not the session's end: what the handler called was away.
                None => EachFault::Outage(code),
            }),
        };
        (row.seq, answer)
    });
    in_order(messages.len(), answers)
}

/// Why one message of a batch failed inside the server.
pub(crate) enum EachFault {
    /// The message's own failure.
    Fault(Fault),
    /// An outage's SQLSTATE: what the handler called (a foreign server, say) was away.
    Outage(String),
}

/// Puts answers in the order of the messages; each message must have exactly one.
fn in_order<T>(count: usize, answers: impl Iterator<Item = (i32, T)>) -> Result<Vec<T>, sqlx::Error> {
    let mut slots: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let wrong = |what: String| sqlx::Error::Decode(what.into());
    for (seq, answer) in answers {
        let slot = usize::try_from(seq)
            .ok()
            .and_then(|seq| slots.get_mut(seq.checked_sub(1)?))
            .ok_or_else(|| wrong(format!("the batch handler returned a row for message {seq} of {count}")))?;
        if slot.replace(answer).is_some() {
            return Err(wrong(format!("the batch handler returned message {seq} twice")));
        }
    }
    slots
        .into_iter()
        .enumerate()
        .map(|(index, slot)| {
            slot.ok_or_else(|| wrong(format!("the batch handler returned no row for message {}", index + 1)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn each_message_must_have_exactly_one_answer() {
        assert_eq!(in_order(2, [(2, 'b'), (1, 'a')].into_iter()).unwrap(), ['a', 'b']);
        for bad in
            [vec![(1, 'a')], vec![(1, 'a'), (1, 'a')], vec![(1, 'a'), (3, 'c')], vec![(0, 'x'), (1, 'a')]]
        {
            assert!(in_order(2, bad.into_iter()).is_err());
        }
    }
}
