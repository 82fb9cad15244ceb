//! Calling a handler that is a SQL function.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::row::MessageRow;
use super::{JsonPolicy, Message, SqlHandler};
use crate::fault::Fault;
use crate::identity::IdentityPart;
use crate::pg::{LockWait, enter_handler, handler_class_of, told};

/// How messages share subtransactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// None: the first failure of any message fails all.
    All,
    /// Parts of the batch have one each, and the messages of a part that failed.
    Parts,
    /// Each message has its own.
    Each,
}

/// Runs the handler on all messages, in one statement; returns a response or a fault per message, in their order. `wait` counts where
/// they share no subtransactions: else whoever calls has set the limit.
///
/// # Errors
/// All together: the first error of any message. Else: only what ends the whole statement, such as a timeout or a lost
/// connection, or, except where each message is by itself, a body that jsonb refuses. As a decoding error: a batch function
/// that did not return one row per message.
pub(crate) async fn call(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    grouping: Grouping,
    wait: LockWait,
) -> Result<Vec<Result<Option<Value>, Fault>>, sqlx::Error> {
    let function = &handler.function;
    let is_json = |one: &Message<'_>| function.json != JsonPolicy::Off && one.is_json;
    let needs_json = function.json == JsonPolicy::Required;
    let rows: Vec<MessageRow<'_>> = messages
        .iter()
        .enumerate()
        .map(|(index, one)| {
            MessageRow::of(index + 1, consumer, one, grouping != Grouping::Each && is_json(one))
        })
        .collect();
    let rows = rows.as_slice();
    let (name, batch) = (&function.name, function.batch);
    let answers = match grouping {
        Grouping::All => {
            let statement = handler.together(connection).await?;
            enter_handler(connection, wait).await?;
            let row = sqlx::query(statement).bind(rows).fetch_one(connection).await?;
            return Ok(responses(messages.len(), &row)?.into_iter().map(Ok).collect());
        }
        Grouping::Parts => {
            sqlx::query_file_as!(Answer, "src/handler/call_parts.sql", name, batch, rows as _, needs_json)
                .fetch_all(connection)
                .await?
        }
        Grouping::Each => {
            let json: Vec<bool> = messages.iter().map(is_json).collect();
            sqlx::query_file_as!(
                Answer,
                "src/handler/call_each.sql",
                name,
                batch,
                rows as _,
                &json,
                needs_json
            )
            .fetch_all(connection)
            .await?
        }
    };
    in_order(messages.len(), answers.into_iter().map(Answer::read))
}

/// What is written with a batch of [`call_fresh`].
pub(crate) struct Record<'a> {
    /// By message.
    pub(crate) fingerprints: Vec<Option<&'a [u8]>>,
    pub(crate) worker: &'a str,
    pub(crate) now: DateTime<Utc>,
    /// How long the batch has been at work, in microseconds.
    pub(crate) waited: i64,
    /// The tags of the batch, one after another, where there is a mirror.
    pub(crate) tags: Option<Vec<u8>>,
    pub(crate) expires_at: DateTime<Utc>,
    /// The statement is a transaction of its own: what has to be looked at before COMMIT is refused (see [`needs_a_look`]).
    pub(crate) alone: bool,
}

/// Did a batch alone in its transaction do what must be looked at before COMMIT, such as returning a response? Nothing of it
/// is left.
pub(crate) fn needs_a_look(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("ONC06")
}

/// Claims the keys of messages that nobody is expected to have, runs the handler on all of them, and writes the trail and the
/// mirror record, in one statement; returns the responses in the order of the messages.
///
/// # Errors
/// As unique_violation on the table of keys where somebody has one of them; else as [`call`] does all together.
pub(crate) async fn call_fresh(
    connection: &mut PgConnection,
    handler: &SqlHandler,
    consumer: &IdentityPart,
    messages: &[Message<'_>],
    record: &Record<'_>,
) -> Result<Vec<Option<Value>>, sqlx::Error> {
    let is_json = |one: &Message<'_>| handler.function.json != JsonPolicy::Off && one.is_json;
    let rows: Vec<MessageRow<'_>> = messages
        .iter()
        .enumerate()
        .map(|(index, one)| MessageRow::of(index + 1, consumer, one, is_json(one)))
        .collect();
    let statement = handler.fresh(connection).await?;
    let row = sqlx::query(statement)
        .bind(rows.as_slice())
        .bind(record.fingerprints.as_slice())
        .bind(consumer.as_str())
        .bind(record.now)
        .bind(record.worker)
        .bind(record.waited)
        .bind(Uuid::now_v7())
        .bind(record.tags.as_deref())
        .bind(record.expires_at)
        .bind(record.alone)
        // Reads on until the server is ready again: alone, that is when it has committed, and not when the row has come.
        .fetch_one(connection)
        .await?;
    responses(messages.len(), &row)
}

/// A whole batch's answers in the order of the messages. They come as one row: hundreds of rows cost the client more than what is in
/// them. No responses at all where no message has one.
fn responses(count: usize, row: &PgRow) -> Result<Vec<Option<Value>>, sqlx::Error> {
    let seqs: Option<Vec<i32>> = row.try_get(0)?;
    let responses: Option<Vec<Option<Value>>> = row.try_get(1)?;
    let seqs = seqs.unwrap_or_default();
    let responses = responses.unwrap_or_else(|| vec![None; seqs.len()]);
    in_order(count, seqs.into_iter().zip(responses))
}

/// What became of one message inside the server.
struct Answer {
    seq: i32,
    response: Option<Value>,
    error_code: Option<String>,
    error_message: Option<String>,
    error_place: Option<String>,
}

impl Answer {
    fn read(self) -> (i32, Result<Option<Value>, Fault>) {
        let answer = match self.error_code {
            None => Ok(self.response),
            Some(code) => {
                let place = self.error_place.unwrap_or_default();
                let text = told(&code, &place, &self.error_message.unwrap_or_default());
                Err(Fault::new(handler_class_of(&code), Some(code), text))
            }
        };
        (self.seq, answer)
    }
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
