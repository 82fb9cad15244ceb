//! Calls a handler that is a SQL function.

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, Encode, PgConnection, Postgres, Row as _, query_file_as};
use uuid::Uuid;

use super::row::MessageRow;
use super::{JsonPolicy, Message, SqlFunction, SqlHandler};
use oncely_core::fault::Fault;
use oncely_core::identity::IdentityPart;
use oncely_postgres::{LockWait, classify_handler_sqlstate, enter_handler, format_operator_text};

/// Runs the handler on all messages at once; returns their responses in their order, as PostgreSQL writes them: its JSON holds numbers that
/// Rust's does not. `wait` limits its wait for locks.
///
/// # Errors
/// If PostgreSQL or the handler fails for a message: the first error. If a response is over the limit (ONC06), or all of them together are
/// over 4 MiB (ONC25). If a batch function did not return one row per message: a decoding error.
pub async fn call_batch(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    wait: LockWait,
) -> Result<Vec<Result<Option<String>, Fault>>, sqlx::Error> {
    let rows = to_rows(handler, consumer, messages, true);
    let statement = handler.statement_for_batch(connection).await?;
    enter_handler(connection, wait).await?;
    let row = sqlx::query_with(statement, to_arguments(&rows)?)
        .bind(handler.response_limit)
        .fetch_one(connection)
        .await?;
    Ok(read_responses(messages.len(), &row)?.into_iter().map(Ok).collect())
}

/// Extent of a rollback if messages share a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subtransactions {
    /// One for each part of the messages; in a part that fails, one for each message.
    Parts,
    /// One for each message; JSON bodies are sent as jsonb.
    ParsedMessages,
    /// Like [`Self::Parts`], for a batch with a body that jsonb refuses: each body is parsed by itself, and a refused one is null.
    UnparsedParts,
    /// One for each message; each body is parsed by itself, and a refused one is null.
    Messages,
}

/// Runs the handler on the messages in subtransactions, in one statement; returns a response or a fault per message, in their order. The
/// caller has limited the wait for locks.
///
/// # Errors
/// If an error ends the whole statement: a timeout, a lost connection, a deadlock, an unavailable lock, or a body that is sent as jsonb and
/// that jsonb refuses. If responses are too large, or a batch function did not return one row per message: as [`call_batch`].
pub async fn call_in_subtransactions(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    subtransactions: Subtransactions,
) -> Result<Vec<Result<Option<String>, Fault>>, sqlx::Error> {
    let rows = to_rows(
        handler,
        consumer,
        messages,
        matches!(subtransactions, Subtransactions::Parts | Subtransactions::ParsedMessages),
    );
    let rows = rows.as_slice();
    let SqlFunction { name, batch, json } = &handler.function;
    let needs_json = *json == JsonPolicy::Required;
    let is_json = json_flags(handler, messages);
    let limit = handler.response_limit;
    let results = match subtransactions {
        Subtransactions::Parts => {
            query_file_as!(HandlerResults, "src/call_parts.sql", name, batch, rows as _, needs_json, limit)
                .fetch_one(connection)
                .await?
        }
        Subtransactions::ParsedMessages => {
            query_file_as!(HandlerResults, "src/call_messages.sql", name, batch, rows as _, needs_json, limit)
                .fetch_one(connection)
                .await?
        }
        Subtransactions::UnparsedParts => {
            query_file_as!(
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
            query_file_as!(
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
    order_by_message(messages.len(), results.into_results())
}

/// Returns for each message whether its body is sent as jsonb.
fn json_flags(handler: &SqlHandler, messages: &[Message<'_>]) -> Vec<bool> {
    messages.iter().map(|message| handler.function.json != JsonPolicy::Off && message.is_json).collect()
}

/// Converts the messages to rows, as the functions take them; if `is_parsed`, with JSON bodies as jsonb.
fn to_rows<'a>(
    handler: &SqlHandler,
    consumer: &'a IdentityPart,
    messages: &'a [Message<'a>],
    is_parsed: bool,
) -> Vec<MessageRow<'a>> {
    let is_json =
        |message: &Message<'_>| is_parsed && handler.function.json != JsonPolicy::Off && message.is_json;
    let numbered = messages.iter().enumerate();
    numbered.map(|(index, message)| MessageRow::new(index + 1, consumer, message, is_json(message))).collect()
}

/// Encodes the messages as a statement's first argument, in memory that is allocated once.
fn to_arguments(rows: &[MessageRow<'_>]) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    // The hint leaves out types and lengths of fields.
    let bytes: usize = rows.iter().map(|row| Encode::<Postgres>::size_hint(row) + ROW_OVERHEAD).sum();
    arguments.reserve(1, bytes + ROW_OVERHEAD);
    arguments.add(rows).map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}

/// Maximum size in bytes of the types and lengths of a row's fields, with a margin for an array.
const ROW_OVERHEAD: usize = 256;

/// Records that are written with the batch of [`commit_fresh_batch`].
pub struct BatchRecord<'a> {
    /// Fingerprints of the messages, in their order.
    #[doc(hidden)]
    pub fingerprints: Vec<Option<&'a [u8]>>,
    #[doc(hidden)]
    pub worker: &'a str,
    #[doc(hidden)]
    pub now: DateTime<Utc>,
    /// Time since the beginning of the batch, in microseconds.
    #[doc(hidden)]
    pub elapsed_micros: i64,
    /// Tags of the batch, one after another; `None` without a mirror.
    #[doc(hidden)]
    pub tags: Option<Vec<u8>>,
    #[doc(hidden)]
    pub expires_at: DateTime<Utc>,
    /// Whether it takes its locks in the same order as other batches.
    #[doc(hidden)]
    pub is_in_lock_order: bool,
}

/// Claims the keys of messages that are expected to be new, runs the handler on all of them, writes the responses, the trail and the mirror
/// record, and commits, in one statement. Outside of a transaction.
///
/// # Errors
/// If one of the keys is known (unique_violation on the table of keys), a response is over the limit (ONC06), or [`call_batch`] would fail:
/// nothing is left of the batch then. If the reply is lost: the batch may have been committed.
pub async fn commit_fresh_batch(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    record: &BatchRecord<'_>,
) -> Result<(), sqlx::Error> {
    let rows = to_rows(handler, consumer, messages, true);
    let statement = handler.statement_for_fresh(connection).await?;
    sqlx::query_with(statement, to_arguments(&rows)?)
        .bind(record.fingerprints.as_slice())
        .bind(consumer.as_str())
        .bind(record.now)
        .bind(record.worker)
        .bind(record.elapsed_micros)
        .bind(Uuid::now_v7())
        .bind(record.tags.as_deref())
        .bind(record.expires_at)
        .bind(handler.response_limit)
        .bind(record.is_in_lock_order)
        // Reads on until the server is ready again: only then has it committed, not when the row has come.
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Reads a whole batch's responses, in the order of the messages. They come as one row: hundreds of rows cost the client more than their
/// content. The responses are null if no message has one.
fn read_responses(count: usize, row: &PgRow) -> Result<Vec<Option<String>>, sqlx::Error> {
    let seqs: Option<Vec<i32>> = row.try_get(0)?;
    let responses: Option<Vec<Option<String>>> = row.try_get(1)?;
    let seqs = seqs.unwrap_or_default();
    let responses = responses.unwrap_or_else(|| vec![None; seqs.len()]);
    order_by_message(count, seqs.into_iter().zip(responses))
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
    /// Converts the arrays to results with the numbers of their messages.
    fn into_results(self) -> impl Iterator<Item = (i32, Result<Option<String>, Fault>)> {
        let responses = self.responses.unwrap_or_else(|| vec![None; self.seqs.len()]);
        let errors = self.error_codes.into_iter().zip(self.error_messages).zip(self.error_places);
        let results = responses.into_iter().zip(errors).map(|(response, ((code, text), place))| {
            let Some(code) = code else { return Ok(response) };
            let text = format_operator_text(&code, &place.unwrap_or_default(), &text.unwrap_or_default());
            Err(Fault::new(classify_handler_sqlstate(&code), Some(code), text))
        });
        self.seqs.into_iter().zip(results)
    }
}

/// Puts results in the order of the messages. Fails unless each message has exactly one.
fn order_by_message<T>(count: usize, results: impl Iterator<Item = (i32, T)>) -> Result<Vec<T>, sqlx::Error> {
    let mut slots: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let to_error = |text: String| sqlx::Error::Decode(text.into());
    for (seq, result) in results {
        let slot = usize::try_from(seq).ok().and_then(|seq| slots.get_mut(seq.checked_sub(1)?)).ok_or_else(
            || to_error(format!("the batch handler returned a row for message {seq} of {count}")),
        )?;
        if slot.replace(result).is_some() {
            return Err(to_error(format!("the batch handler returned message {seq} twice")));
        }
    }
    slots
        .into_iter()
        .enumerate()
        .map(|(index, slot)| {
            slot.ok_or_else(|| {
                to_error(format!("the batch handler returned no row for message {}", index + 1))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::order_by_message;

    #[test]
    fn each_message_must_have_exactly_one_answer() {
        assert_eq!(order_by_message(2, [(2, 'b'), (1, 'a')].into_iter()).unwrap(), ['a', 'b']);
        for bad in
            [vec![(1, 'a')], vec![(1, 'a'), (1, 'a')], vec![(1, 'a'), (3, 'c')], vec![(0, 'x'), (1, 'a')]]
        {
            assert!(order_by_message(2, bad.into_iter()).is_err());
        }
    }
}
