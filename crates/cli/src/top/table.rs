//! The table of consumers, with as many columns as fit.

use chrono::{DateTime, Utc};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};

use super::super::output::{escape, format_age};
use super::numbers::{
    UNKNOWN_VALUE, draw_sparkline, format_duration, format_number, format_percent, format_rate,
};
use super::view::ConsumerRow;
use oncely_ops::overview::ConsumerState;

/// A column. Columns are ordered by importance: the rightmost are dropped first.
struct TableColumn {
    head: &'static str,
    /// Numbers are aligned to the right.
    is_number: bool,
    cell: fn(&ConsumerRow, DateTime<Utc>) -> String,
}

const COLUMNS: [TableColumn; 13] = [
    TableColumn {
        head: "CONSUMER",
        is_number: false,
        cell: |row, _| shorten(&escape(&row.overview.consumer), 24),
    },
    TableColumn { head: "STATE", is_number: false, cell: |row, _| row.overview.state.label().to_owned() },
    TableColumn { head: "READY", is_number: true, cell: |row, _| format_optional_count(row.ready) },
    TableColumn { head: "INFLIGHT", is_number: true, cell: |row, _| format_in_flight(row) },
    TableColumn { head: "IN/s", is_number: true, cell: |row, _| format_rate(row.overview.delivered) },
    TableColumn { head: "DONE/s", is_number: true, cell: |row, _| format_rate(row.overview.done) },
    TableColumn {
        head: "DUP%",
        is_number: true,
        cell: |row, _| format_percent(row.overview.duplicates, row.overview.delivered),
    },
    TableColumn { head: "P50", is_number: true, cell: |row, _| format_duration(row.overview.p50) },
    TableColumn { head: "P99", is_number: true, cell: |row, _| format_duration(row.overview.p99) },
    TableColumn { head: "DEAD", is_number: true, cell: |row, _| row.letters.to_string() },
    TableColumn { head: HELD_HEADING, is_number: true, cell: |row, _| format_held(row) },
    TableColumn { head: "LAST DONE", is_number: true, cell: |row, now| format_last_done(row, now) },
    TableColumn {
        head: "LAST 60 s",
        is_number: false,
        cell: |row, _| draw_sparkline(&row.overview.done_by_span),
    },
];

/// Shown if any key is held by a lease.
const HELD_HEADING: &str = "HELD";

/// Formats the number of held keys, and of those with an expired lease.
fn format_held(row: &ConsumerRow) -> String {
    match row.overview.held_over {
        0 => row.overview.held.to_string(),
        over => format!("{} ({over} over)", row.overview.held),
    }
}

/// Formats a count that may be unknown.
fn format_optional_count(count: Option<u64>) -> String {
    count.map_or_else(|| UNKNOWN_VALUE.to_owned(), format_number)
}

/// Formats the unacknowledged deliveries, with their limit if the consumer is configured here.
fn format_in_flight(row: &ConsumerRow) -> String {
    let in_flight = format_number(row.overview.inflight);
    match row.prefetch {
        None => in_flight,
        Some(limit) => format!("{in_flight}/{}", format_number(limit)),
    }
}

/// Formats the time since the last success.
fn format_last_done(row: &ConsumerRow, now: DateTime<Utc>) -> String {
    row.overview.completed_at.map_or_else(|| UNKNOWN_VALUE.to_owned(), |at| format_age(at, now))
}

/// Shortens a text to at most this number of columns.
pub(super) fn shorten(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for character in text.chars() {
        shown.push(character);
        if Span::raw(shown.as_str()).width() >= width {
            shown.pop();
            break;
        }
    }
    shown + "…"
}

/// The table as lines.
pub(super) struct Table {
    pub(super) heads: Line<'static>,
    /// A line for each row, and a further one with the reason below each that does not run, or had a failed message recently.
    pub(super) lines: Vec<Line<'static>>,
    /// Index of the selected row among the lines.
    pub(super) selected: usize,
}

impl Table {
    /// Builds the table with at most this width, except that the first column is always shown.
    pub(super) fn from_rows(
        rows: &[ConsumerRow],
        selected: Option<usize>,
        now: DateTime<Utc>,
        width: usize,
    ) -> Self {
        let mut columns: Vec<(Vec<String>, usize, bool)> = Vec::new();
        let mut used_width = 0;
        let is_held = rows.iter().any(|row| row.overview.held > 0);
        for column in COLUMNS.iter().filter(|column| is_held || column.head != HELD_HEADING) {
            let mut cells = vec![column.head.to_owned()];
            cells.extend(rows.iter().map(|row| (column.cell)(row, now)));
            let column_width = cells.iter().map(|cell| Span::raw(cell.as_str()).width()).max().unwrap_or(0);
            let gap = if columns.is_empty() { 0 } else { 2 };
            if used_width + gap + column_width > width && !columns.is_empty() {
                break;
            }
            used_width += gap + column_width;
            columns.push((cells, column_width, column.is_number));
        }
        let line = |index: usize| {
            let cells = columns.iter().enumerate().map(|(at, (cells, column_width, is_number))| {
                let cell = &cells[index];
                let room = " ".repeat(column_width.saturating_sub(Span::raw(cell.as_str()).width()));
                let gap = if at == 0 { "" } else { "  " };
                if *is_number { format!("{gap}{room}{cell}") } else { format!("{gap}{cell}{room}") }
            });
            cells.collect::<Vec<String>>()
        };
        let mut table = Self { heads: Line::from(line(0).concat()).bold(), lines: Vec::new(), selected: 0 };
        for (index, row) in rows.iter().enumerate() {
            let mut spans: Vec<Span<'static>> = line(index + 1).into_iter().map(Span::raw).collect();
            if let Some(state) = spans.get_mut(1) {
                *state = std::mem::take(state).style(state_style(row.overview.state));
            }
            let shown = Line::from(spans);
            let is_selected = selected == Some(index);
            if is_selected {
                table.selected = table.lines.len();
            }
            table.lines.push(if is_selected { shown.reversed() } else { shown });
            let reason_line = describe_state(row, now).map(|text| Line::from(shorten(&text, width)));
            table.lines.extend(reason_line.map(|line| line.style(state_style(row.overview.state))));
        }
        table
    }
}

/// Returns the style of a state. The colour only repeats the state's word.
fn state_style(state: ConsumerState) -> Style {
    match state {
        ConsumerState::Running => Style::new(),
        ConsumerState::Paused | ConsumerState::Contended => Style::new().fg(Color::Yellow),
        ConsumerState::Stalled
        | ConsumerState::NoQueue
        | ConsumerState::Failing
        | ConsumerState::Unattended
        | ConsumerState::NoWorker => Style::new().fg(Color::Red),
    }
}

/// Describes the cause of a consumer's state, or its recent failure while it runs; `None` if it runs without one.
fn describe_state(row: &ConsumerRow, now: DateTime<Utc>) -> Option<String> {
    let one = &row.overview;
    let since = one.since.map(|since| format!(" for {}", format_age(since, now))).unwrap_or_default();
    let reason = escape(one.reason.as_deref().unwrap_or_default());
    match one.state {
        ConsumerState::Running => one.failed.as_ref().map(|failed| {
            let whose = match (&failed.tenant, &failed.key) {
                (Some(tenant), Some(key)) => format!("tenant {} · key {}", escape(tenant), escape(key)),
                _ => "a message without a key".to_owned(),
            };
            format!("  {whose} failed {} ago: {}", format_age(failed.since, now), escape(&failed.text))
        }),
        ConsumerState::Contended => Some(format!("  contended{since}: {reason}")),
        ConsumerState::NoQueue | ConsumerState::Unattended => Some(format!("  {reason}")),
        ConsumerState::Failing => Some(format!("  every message fails{since}: {reason}")),
        ConsumerState::NoWorker if one.configured == Some(false) => {
            Some("  no worker; not in this configuration".to_owned())
        }
        ConsumerState::NoWorker => Some("  no worker has it: its messages are not taken".to_owned()),
        ConsumerState::Stalled => Some(format!("  no success{since}: {reason}")),
        ConsumerState::Paused => {
            let by = escape(one.paused_by.as_deref().unwrap_or_default());
            let left =
                one.until.map(|until| format!(", goes on in {}", format_age(now, until))).unwrap_or_default();
            Some(format!("  by {by}{since}: {reason}{left}"))
        }
    }
}
