//! Responses as texts, and how large they may be.

use std::io;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::Formatter;

use crate::config::{Consumer, LargeResponse};
use crate::fault::{Fault, FaultClass};
use crate::worker::interrupt::Interrupt;

/// White space where PostgreSQL has it, so that a response has one length whoever wrote it.
struct AsInPostgres;

impl Formatter for AsInPostgres {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A value as PostgreSQL writes it, but for the order of its keys.
pub(super) fn text_of(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, AsInPostgres);
    // A writer that never fails, and a value that is JSON already.
    match value.serialize(&mut serializer).map(|()| String::from_utf8(bytes)) {
        Ok(Ok(text)) => text,
        _ => value.to_string(),
    }
}

/// Refuses responses over the consumer's limit: whatever their handlers did is rolled back.
pub(super) fn check_responses<'a>(
    consumer: &Consumer,
    responses: impl Iterator<Item = &'a String>,
) -> Result<(), Interrupt> {
    if consumer.on_large_response == LargeResponse::Compress {
        return Ok(());
    }
    let limit = usize::try_from(consumer.response_limit).unwrap_or(usize::MAX);
    for response in responses {
        let size = response.len();
        if size > limit {
            let text = format!(
                "the response has {size} bytes as JSON; the limit is {limit} (consumers.response_limit, consumers.on_large_response)"
            );
            return Err(Interrupt::Failed(Fault::new(FaultClass::Rejected, None, text)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_response_looks_as_in_postgresql() {
        let value = serde_json::json!({ "a": [1, "\u{fc}\n", null, {}, []], "b": { "c": 1.5, "d": true } });
        let text = r#"{"a": [1, "\u{fc}\n", null, {}, []], "b": {"c": 1.5, "d": true}}"#;
        assert_eq!(super::text_of(&value), text.replace("\\u{fc}", "\u{fc}"));
    }
}
