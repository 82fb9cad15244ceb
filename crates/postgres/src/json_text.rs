//! JSON in PostgreSQL's text form, and its size limit for a lease's step or response.

use std::io;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::Formatter;

/// Maximum number of bytes of a step's result, or of a response under a lease, as PostgreSQL writes it and before encryption.
pub const MAX_JSON_BYTES: usize = 65_536;

/// Writes white space like PostgreSQL, so that a response has the same length in every client.
struct PostgresFormatter;

impl Formatter for PostgresFormatter {
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

/// Converts a value to text as PostgreSQL writes it, except for the order of its keys and numbers that it writes with all of their digits.
pub fn to_json_text(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PostgresFormatter);
    // The writer never fails, and the value is JSON already.
    match value.serialize(&mut serializer).map(|()| String::from_utf8(bytes)) {
        Ok(Ok(text)) => text,
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_response_looks_as_in_postgresql() {
        let value = serde_json::json!({ "a": [1, "\u{fc}\n", null, {}, []], "b": { "c": 1.5, "d": true } });
        let text = r#"{"a": [1, "\u{fc}\n", null, {}, []], "b": {"c": 1.5, "d": true}}"#;
        assert_eq!(super::to_json_text(&value), text.replace("\\u{fc}", "\u{fc}"));
    }
}
