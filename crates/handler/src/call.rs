//! Calls a handler that is a SQL function.

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, Encode, PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::row::MessageRow;
use super::{JsonPolicy, Message, SqlFunction, SqlHandler};
use oncely_core::fault::Fault;
use oncely_core::identity::IdentityPart;
use oncely_postgres::{LockWait, enter_handler, handler_class_of, operator_text};

/// Runs the handler on all messages at once; returns their responses in their order, as PostgreSQL writes them: its JSON holds numbers that
/// Rust's does not. `wait` limits its wait for locks.
///
/// # Errors
/// The first error of any message; ONC06 if a response is over the limit, ONC25 if all of them together are over 4 MiB. As a decoding error:
/// a batch function that did not return one row per message.
pub async fn call_together(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    wait: LockWait,
) -> Result<Vec<Result<Option<String>, Fault>>, sqlx::Error> {
    let rows = rows(handler, consumer, messages, true);
    let statement = handler.together(connection).await?;
    enter_handler(connection, wait).await?;
    let row = sqlx::query_with(statement, arguments(&rows)?)
        .bind(handler.response_limit)
        .fetch_one(connection)
        .await?;
    Ok(responses(messages.len(), &row)?.into_iter().map(Ok).collect())
}

/// Extent of a rollback if messages share a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subtransactions {
    /// One for each part of the messages; in a part that fails, one for each message.
    Parts,
    /// One for each message; JSON bodies are sent as jsonb.
    ParsedMessages,
    /// The same as parts if jsonb refuses a body: each is parsed by itself, and one that is refused is null.
    UnparsedParts,
    /// One for each message.
    Messages,
}

/// Runs the handler on the messages in subtransactions, in one statement; returns a response or a fault per message, in their order. The
/// caller has limited the wait for locks.
///
/// # Errors
/// An error that ends the whole statement, such as a timeout, a lost connection, a deadlock or an unavailable lock, or, if bodies are sent
/// as jsonb, one that jsonb refuses; ONC06 and ONC25 as [`call_together`]. As a decoding error: a batch function that did not return one row per message.
pub async fn call_apart(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    subtransactions: Subtransactions,
) -> Result<Vec<Result<Option<String>, Fault>>, sqlx::Error> {
    let rows = rows(
        handler,
        consumer,
        messages,
        matches!(subtransactions, Subtransactions::Parts | Subtransactions::ParsedMessages),
    );
    let rows = rows.as_slice();
    let SqlFunction { name, batch, json } = &handler.function;
    let needs_json = *json == JsonPolicy::Required;
    let is_json = json_of(handler, messages);
    let limit = handler.response_limit;
    let answers = match subtransactions {
        Subtransactions::Parts => {
            sqlx::query_file_as!(
                HandlerResults,
                "src/call_parts.sql",
                name,
                batch,
                rows as _,
                needs_json,
                limit
            )
            .fetch_one(connection)
            .await?
        }
        Subtransactions::ParsedMessages => {
            sqlx::query_file_as!(
                HandlerResults,
                "src/call_messages.sql",
                name,
                batch,
                rows as _,
                needs_json,
                limit
            )
            .fetch_one(connection)
            .await?
        }
        Subtransactions::UnparsedParts => {
            sqlx::query_file_as!(
                HandlerResults,
                "src/call_parts_unparsed.sql",
                name,
                batch,
                rows as _,
                &is_json,
                needs_json,
                limit
            )
            .fetch_one(connection)
            .await?
        }
        Subtransactions::Messages => {
            sqlx::query_file_as!(
                HandlerResults,
                "src/call_each.sql",
                name,
                batch,
                rows as _,
                &is_json,
                needs_json,
                limit
            )
            .fetch_one(connection)
            .await?
        }
    };
    in_order(messages.len(), answers.read())
}

/// Returns which bodies are to be jsonb.
fn json_of(handler: &SqlHandler, messages: &[Message<'_>]) -> Vec<bool> {
    messages.iter().map(|one| handler.function.json != JsonPolicy::Off && one.is_json).collect()
}

/// Returns the messages as the functions take them; if `parsed`, with JSON bodies as jsonb.
fn rows<'a>(
    handler: &SqlHandler,
    consumer: &'a IdentityPart,
    messages: &'a [Message<'a>],
    parsed: bool,
) -> Vec<MessageRow<'a>> {
    let is_json = |one: &Message<'_>| parsed && handler.function.json != JsonPolicy::Off && one.is_json;
    let numbered = messages.iter().enumerate();
    numbered.map(|(index, one)| MessageRow::new(index + 1, consumer, one, is_json(one))).collect()
}

/// Returns the messages as a statement's first argument, in memory that is allocated once.
fn arguments(rows: &[MessageRow<'_>]) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    // The hint leaves out types and lengths of fields.
    let bytes: usize = rows.iter().map(|row| Encode::<Postgres>::size_hint(row) + ROW).sum();
    arguments.reserve(1, bytes + ROW);
    arguments.add(rows).map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}

/// Most bytes of the types and lengths of a row's fields, with some more for an array.
const ROW: usize = 256;

/// Records that are written with a batch of [`commit_fresh`].
pub struct BatchRecord<'a> {
    /// By message.
    #[doc(hidden)]
    pub fingerprints: Vec<Option<&'a [u8]>>,
    #[doc(hidden)]
    pub worker: &'a str,
    #[doc(hidden)]
    pub now: DateTime<Utc>,
    /// Time since the batch began, in microseconds.
    #[doc(hidden)]
    pub waited: i64,
    /// Tags of the batch, one after another, if there is a mirror.
    #[doc(hidden)]
    pub tags: Option<Vec<u8>>,
    #[doc(hidden)]
    pub expires_at: DateTime<Utc>,
    /// Its locks are taken in the same order as those of others.
    #[doc(hidden)]
    pub in_lock_order: bool,
}

/// Claims the keys of messages that are expected to be new, runs the handler on all of them, writes the responses, the trail and the mirror
/// record, and commits, in one statement. Outside of a transaction.
///
/// # Errors
/// Nothing is left of it then, or the reply is lost. As unique_violation on the table of keys if one of them is known; as ONC06 if a
/// response is over the limit; else as [`call_together`].
pub async fn commit_fresh(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    record: &BatchRecord<'_>,
) -> Result<(), sqlx::Error> {
    let rows = rows(handler, consumer, messages, true);
    let statement = handler.fresh(connection).await?;
    sqlx::query_with(statement, arguments(&rows)?)
        .bind(record.fingerprints.as_slice())
        .bind(consumer.as_str())
        .bind(record.now)
        .bind(record.worker)
        .bind(record.waited)
        .bind(Uuid::now_v7())
        .bind(record.tags.as_deref())
        .bind(record.expires_at)
        .bind(handler.response_limit)
        .bind(record.in_lock_order)
        // Reads on until the server is ready again: only then has it committed, not when the row has come.
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Returns a whole batch's answers in the order of the messages. They come as one row: hundreds of rows cost the client more than their
/// content. The responses are null if no message has one.
fn responses(count: usize, row: &PgRow) -> Result<Vec<Option<String>>, sqlx::Error> {
    let seqs: Option<Vec<i32>> = row.try_get(0)?;
    let responses: Option<Vec<Option<String>>> = row.try_get(1)?;
    let seqs = seqs.unwrap_or_default();
    let responses = responses.unwrap_or_else(|| vec![None; seqs.len()]);
    in_order(count, seqs.into_iter().zip(responses))
}

/// Results of messages inside the server: arrays of the same length, one element per message. The responses are null if no message has one.
struct HandlerResults {
    seqs: Vec<i32>,
    responses: Option<Vec<Option<String>>>,
    error_codes: Vec<Option<String>>,
    error_messages: Vec<Option<String>>,
    error_places: Vec<Option<String>>,
}

impl HandlerResults {
    /// Returns the results with the numbers of their messages.
    fn read(self) -> impl Iterator<Item = (i32, Result<Option<String>, Fault>)> {
        let responses = self.responses.unwrap_or_else(|| vec![None; self.seqs.len()]);
        let errors = self.error_codes.into_iter().zip(self.error_messages).zip(self.error_places);
        let answers = responses.into_iter().zip(errors).map(|(response, ((code, text), place))| {
            let Some(code) = code else { return Ok(response) };
            let text = operator_text(&code, &place.unwrap_or_default(), &text.unwrap_or_default());
            Err(Fault::new(handler_class_of(&code), Some(code), text))
        });
        self.seqs.into_iter().zip(answers)
    }
}

/// Returns answers in the order of the messages; each message must have exactly one.
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
