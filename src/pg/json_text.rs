//! JSON as PostgreSQL writes it, and how much of it a lease's step or response may be.

use std::io;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::Formatter;

/// Most bytes of a step's result, or of a response that is given under a lease, as PostgreSQL writes it and before it is encrypted.
pub(crate) const LARGEST_JSON: usize = 65_536;

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

/// A value as PostgreSQL writes it, but for the order of its keys and for numbers that it writes with all of their digits.
pub(crate) fn json_text(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, AsInPostgres);
    // A writer that never fails, and a value that is JSON already.
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
        assert_eq!(super::json_text(&value), text.replace("\\u{fc}", "\u{fc}"));
    }
}
