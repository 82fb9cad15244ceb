//! Output of the command line.

mod rows;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

pub(super) use self::rows::{List, Output, Row};
use oncely_core::shown;
pub(super) use oncely_core::units::{Times, format_age, format_bytes, format_count, format_seconds};

/// Prints to stdout. A closed pipe (`| head`) is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write(&shown::escape_lines(text.trim_end_matches('\n')))
}

/// Writes to stdout. All output goes through this function, except a body that was requested byte for byte.
fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints text for a shell or another program unchanged; no part of it may come from outside.
pub(super) fn print_script(text: &str) -> anyhow::Result<()> {
    write(text.trim_end_matches('\n'))
}

/// Prints a note to stderr.
pub(super) fn print_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", shown::escape_lines(text));
}

/// Prints one JSON object with its schema. Numbers beyond 2^53 become texts. Characters that a screen would hide are written as the
/// equivalent `\u….`.
pub(super) fn print_json(schema: &str, mut value: Value) -> anyhow::Result<()> {
    rows::keep_exact(&mut value);
    if let Value::Object(fields) = &mut value {
        fields.insert("schema".to_owned(), Value::from(schema));
    }
    write(&shown::escape_json(&serde_json::to_string_pretty(&value)?))
}

/// Prints one JSON object with its schema on one line. Returns `false` if the pipe is closed.
pub(super) fn print_json_line(schema: &str, mut value: Value) -> anyhow::Result<bool> {
    rows::keep_exact(&mut value);
    if let Value::Object(fields) = &mut value {
        fields.insert("schema".to_owned(), Value::from(schema));
    }
    let line = serde_json::to_string(&value)?;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", shown::escape_json(&line)).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A table without frames, as wide as its content. Escapes its cells, which come from outside.
pub(super) struct Rows(Table);

impl Rows {
    pub(super) fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(|cell| escape(cell.as_ref())));
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Creates a table with these headings.
pub(super) fn new_table(heads: &[&str]) -> Rows {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads);
    Rows(table)
}

/// Escapes a value from outside within a line: a key must not be able to move the cursor, or to begin a line of its own.
pub(super) fn escape(text: &str) -> String {
    shown::escape_value(text).into_owned()
}

/// Counts the occurrences of each key, the most frequent first.
pub(super) fn tally<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<(K, usize)> {
    let mut groups: BTreeMap<K, usize> = BTreeMap::new();
    for key in keys {
        *groups.entry(key).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_move_the_cursor() {
        assert_eq!(escape("a\u{1b}[2Jb\u{202e}"), "a\\u{1b}[2Jb\\u{202e}");
        assert_eq!(escape("Ünï code"), "Ünï code");
    }
}
