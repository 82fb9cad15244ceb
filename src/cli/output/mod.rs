//! How things are shown.

mod rows;

use std::io::{ErrorKind, Write as _};

use chrono::{DateTime, Local, Utc};
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

pub(super) use self::rows::{List, Output, Row};
use crate::shown;

/// Prints to stdout. A reader that went away (`| head`) is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write(&shown::lines(text.trim_end_matches('\n')))
}

/// All that goes to stdout goes this way, but for a body that was asked for byte for byte.
fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints what is for a shell or another program, and none of whose parts comes from outside: as it is.
pub(super) fn print_script(text: &str) -> anyhow::Result<()> {
    write(text.trim_end_matches('\n'))
}

/// Prints a note to stderr.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", shown::lines(text));
}

/// Prints one JSON object with its schema. Numbers beyond 2^53 are texts. What would be hidden on a screen is written as `\u….`, which means the same.
pub(super) fn print_json(schema: &str, mut value: Value) -> anyhow::Result<()> {
    rows::keep_exact(&mut value);
    if let Value::Object(fields) = &mut value {
        fields.insert("schema".to_owned(), Value::from(schema));
    }
    write(&shown::json(&serde_json::to_string_pretty(&value)?))
}

/// Prints one JSON object with its schema on one line. `false` where nobody reads any more.
#[cfg(feature = "top")]
pub(super) fn print_json_line(schema: &str, mut value: Value) -> anyhow::Result<bool> {
    rows::keep_exact(&mut value);
    if let Value::Object(fields) = &mut value {
        fields.insert("schema".to_owned(), Value::from(schema));
    }
    let line = serde_json::to_string(&value)?;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", shown::json(&line)).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A table without frames, as wide as it needs. Its cells are values from outside.
pub(super) struct Rows(Table);

impl Rows {
    pub(super) fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(|cell| safe(cell.as_ref())));
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

pub(super) fn table(heads: &[&str]) -> Rows {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads);
    Rows(table)
}

/// Where and how times are shown: local with their offset, or UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) utc: bool,
}

impl Times {
    /// The time of the day.
    #[cfg(feature = "top")]
    pub(super) fn clock(self, time: DateTime<Utc>) -> String {
        if self.utc {
            time.format("%H:%M:%SZ").to_string()
        } else {
            time.with_timezone(&Local).format("%H:%M:%S").to_string()
        }
    }

    pub(super) fn show(self, time: DateTime<Utc>) -> String {
        if self.utc {
            time.format("%Y-%m-%d %H:%M:%S%.3fZ").to_string()
        } else {
            time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S%.3f %:z").to_string()
        }
    }
}

/// A value from outside, within a line: a key must not be able to move the cursor, or to begin a line of its own.
pub(super) fn safe(text: &str) -> String {
    shown::value(text).into_owned()
}

/// 1,234,567 bytes as `1.2 MB`.
pub(super) fn bytes(count: i64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let mut amount = count as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if amount < 1_000.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{amount:.1} {unit}") };
        }
        amount /= 1_000.0;
    }
    format!("{amount:.1} TB")
}

/// Seconds, as short as a column wants them: `0.4 ms`, `31 ms`, `2.5 s`, `75 s`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 0.001 => format!("{:.1} ms", short * 1_000.0),
        short if short < 1.0 => format!("{:.0} ms", short * 1_000.0),
        short if short < 10.0 => format!("{short:.1} s"),
        long => format!("{long:.0} s"),
    }
}

/// An age in its two largest units: `41s`, `6m 12s`, `3days 4h`.
pub(super) fn age(from: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = u64::try_from((now - from).num_seconds()).unwrap_or(0);
    let text = humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_move_the_cursor() {
        assert_eq!(safe("a\u{1b}[2Jb\u{202e}"), "a\\u{1b}[2Jb\\u{202e}");
        assert_eq!(safe("Ünï code"), "Ünï code");
    }

    #[test]
    fn sizes_and_ages_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_250_000), "1.2 MB");
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        assert_eq!(age(at(0), at(372)), "6m 12s");
        assert_eq!(age(at(10), at(0)), "0s");
        assert_eq!([0.0004, 0.0312, 2.51, 75.0].map(seconds), ["0.4 ms", "31 ms", "2.5 s", "75 s"]);
    }
}
