//! The table of consumers: as many columns as there is room for.

use chrono::{DateTime, Utc};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};

use super::super::output::{age, safe};
use super::numbers::{NOTHING, duration, grouped, per_second, percent, sparkline};
use super::view::Row;
use crate::overview::ConsumerState;

/// A column. What is more important stands further left: from the right they are left out.
struct Column {
    head: &'static str,
    /// Numbers end at the same place.
    is_number: bool,
    cell: fn(&Row, DateTime<Utc>) -> String,
}

const COLUMNS: [Column; 13] = [
    Column {
        head: "CONSUMER",
        is_number: false,
        cell: |row, _| shortened(&safe(&row.overview.consumer), 24),
    },
    Column { head: "STATE", is_number: false, cell: |row, _| row.overview.state.shown().to_owned() },
    Column { head: "READY", is_number: true, cell: |row, _| known(row.ready) },
    Column { head: "INFLIGHT", is_number: true, cell: |row, _| inflight(row) },
    Column { head: "IN/s", is_number: true, cell: |row, _| per_second(row.overview.delivered) },
    Column { head: "DONE/s", is_number: true, cell: |row, _| per_second(row.overview.done) },
    Column {
        head: "DUP%",
        is_number: true,
        cell: |row, _| percent(row.overview.duplicates, row.overview.delivered),
    },
    Column { head: "P50", is_number: true, cell: |row, _| duration(row.overview.p50) },
    Column { head: "P99", is_number: true, cell: |row, _| duration(row.overview.p99) },
    Column { head: "DEAD", is_number: true, cell: |row, _| row.letters.to_string() },
    Column { head: HELD, is_number: true, cell: |row, _| held(row) },
    Column { head: "LAST DONE", is_number: true, cell: |row, now| last_done(row, now) },
    Column { head: "LAST 60 s", is_number: false, cell: |row, _| sparkline(&row.overview.done_by_span) },
];

/// Shown where somebody holds a key by a lease.
const HELD: &str = "HELD";

fn held(row: &Row) -> String {
    match row.overview.held_over {
        0 => row.overview.held.to_string(),
        over => format!("{} ({over} over)", row.overview.held),
    }
}

fn known(count: Option<u64>) -> String {
    count.map_or_else(|| NOTHING.to_owned(), grouped)
}

fn inflight(row: &Row) -> String {
    match row.prefetch {
        0 => grouped(row.overview.inflight),
        most => format!("{}/{most}", row.overview.inflight),
    }
}

fn last_done(row: &Row, now: DateTime<Utc>) -> String {
    row.overview.completed_at.map_or_else(|| NOTHING.to_owned(), |at| age(at, now))
}

/// A text in so many columns at most.
pub(super) fn shortened(text: &str, width: usize) -> String {
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
    /// A line for each row, and one more below each that does not run, or where a message failed lately: why.
    pub(super) lines: Vec<Line<'static>>,
    /// Where the selected row is among them.
    pub(super) selected: usize,
}

impl Table {
    /// Of this width at most, but for the first column.
    pub(super) fn of(rows: &[Row], selected: Option<usize>, now: DateTime<Utc>, width: usize) -> Self {
        let mut columns: Vec<(Vec<String>, usize, bool)> = Vec::new();
        let mut used = 0;
        let is_held = rows.iter().any(|row| row.overview.held > 0);
        for column in COLUMNS.iter().filter(|column| is_held || column.head != HELD) {
            let mut cells = vec![column.head.to_owned()];
            cells.extend(rows.iter().map(|row| (column.cell)(row, now)));
            let wide = cells.iter().map(|cell| Span::raw(cell.as_str()).width()).max().unwrap_or(0);
            let gap = if columns.is_empty() { 0 } else { 2 };
            if used + gap + wide > width && !columns.is_empty() {
                break;
            }
            used += gap + wide;
            columns.push((cells, wide, column.is_number));
        }
        let line = |index: usize| {
            let cells = columns.iter().enumerate().map(|(at, (cells, wide, is_number))| {
                let cell = &cells[index];
                let room = " ".repeat(wide.saturating_sub(Span::raw(cell.as_str()).width()));
                let gap = if at == 0 { "" } else { "  " };
                if *is_number { format!("{gap}{room}{cell}") } else { format!("{gap}{cell}{room}") }
            });
            cells.collect::<Vec<String>>()
        };
        let mut table = Self { heads: Line::from(line(0).concat()).bold(), lines: Vec::new(), selected: 0 };
        for (index, row) in rows.iter().enumerate() {
            let mut spans: Vec<Span<'static>> = line(index + 1).into_iter().map(Span::raw).collect();
            if let Some(state) = spans.get_mut(1) {
                *state = std::mem::take(state).style(style(row.overview.state));
            }
            let shown = Line::from(spans);
            let is_selected = selected == Some(index);
            if is_selected {
                table.selected = table.lines.len();
            }
            table.lines.push(if is_selected { shown.reversed() } else { shown });
            let why = why(row, now).map(|text| Line::from(shortened(&text, width)));
            table.lines.extend(why.map(|line| line.style(style(row.overview.state))));
        }
        table
    }
}

/// Colour says nothing that the word does not.
fn style(state: ConsumerState) -> Style {
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

/// Why a consumer does not run, or what failed while it does.
fn why(row: &Row, now: DateTime<Utc>) -> Option<String> {
    let one = &row.overview;
    let since = one.since.map(|since| format!(" for {}", age(since, now))).unwrap_or_default();
    let reason = safe(one.reason.as_deref().unwrap_or_default());
    match one.state {
        ConsumerState::Running => one.failed.as_ref().map(|failed| {
            let whose = match (&failed.tenant, &failed.key) {
                (Some(tenant), Some(key)) => format!("tenant {} · key {}", safe(tenant), safe(key)),
                _ => "a message without a key".to_owned(),
            };
            format!("  {whose} failed {} ago: {}", age(failed.since, now), safe(&failed.text))
        }),
        ConsumerState::Contended => Some(format!("  contended{since}: {reason}")),
        ConsumerState::NoQueue | ConsumerState::Unattended => Some(format!("  {reason}")),
        ConsumerState::Failing => Some(format!("  every message fails{since}: {reason}")),
        ConsumerState::NoWorker if one.configured == Some(false) => {
            Some("  no worker; not in this configuration".to_owned())
        }
        ConsumerState::NoWorker => Some("  no worker has it: nobody takes its messages".to_owned()),
        ConsumerState::Stalled => Some(format!("  no success{since}: {reason}")),
        ConsumerState::Paused => {
            let by = safe(one.paused_by.as_deref().unwrap_or_default());
            let left = one.until.map(|until| format!(", goes on in {}", age(now, until))).unwrap_or_default();
            Some(format!("  by {by}{since}: {reason}{left}"))
        }
    }
}
