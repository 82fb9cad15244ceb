//! `oncely adopt report`: results of an observing consumer: whether the key is right, and how many duplicates would have been stopped.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use serde_json::json;

use super::super::connection::connect;
use super::super::output::{self, List, Output, Row, Times, escape, format_count};
use super::super::{completions, since};
use oncely_config::OBSERVER_SUFFIX;
use oncely_ops::exit;
use oncely_postgres::{self as pg, ConflictingKey, ObservedCount};

#[derive(Debug, Args)]
pub(crate) struct AdoptReportArguments {
    /// Observed consumer, with or without ".observe"
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: String,
    /// Only from this time on: 15m, 2h, 7d, yesterday, 2026-09-01, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    since: Option<DateTime<Utc>>,
    #[command(flatten)]
    output: Output,
}

/// Keys that are listed by name.
const EXAMPLES: i64 = 10;

/// Messages with the same result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct ObservedGroup {
    /// `first`, `duplicate`, `unsure`, or the reason with which it would have been dead-lettered.
    result: String,
    messages: i64,
    first_at: Option<DateTime<Utc>>,
    last_at: Option<DateTime<Utc>>,
    meaning: &'static str,
}

impl From<ObservedCount> for ObservedGroup {
    fn from(count: ObservedCount) -> Self {
        let result = count.reason.unwrap_or_else(|| FIRST.to_owned());
        let meaning = match result.as_str() {
            FIRST => "a new key: it would have run",
            DUPLICATE => "the same key and payload again: it would have been stopped",
            UNSURE => "redelivered to the observer: a copy, or counted before",
            CONFLICT => "a known key with another payload: it would be a dead letter",
            _ => "no identity: it would be a dead letter",
        };
        Self {
            meaning,
            messages: count.messages,
            first_at: Some(count.first_at),
            last_at: Some(count.last_at),
            result,
        }
    }
}

impl Row for ObservedGroup {
    const SCHEMA: &'static str = "oncely.adopt.sighting/1";
    const HEADS: &'static [&'static str] = &["RESULT", "MESSAGES", "FIRST", "LAST", "MEANING"];

    fn cells(&self, times: Times) -> Vec<String> {
        let show = |at: Option<DateTime<Utc>>| at.map(|at| times.format_time(at)).unwrap_or_default();
        vec![
            self.result.clone(),
            self.messages.to_string(),
            show(self.first_at),
            show(self.last_at),
            self.meaning.to_owned(),
        ]
    }
}

const FIRST: &str = "first";
const DUPLICATE: &str = "duplicate";
const UNSURE: &str = "unsure";
const CONFLICT: &str = "key_conflict";

/// Verdict on the key of an observed consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyVerdict {
    /// Copies came, each with the key and payload of its original.
    Right,
    /// No copy came yet.
    Unproven,
    /// Messages came with a known key and another payload.
    Conflicting,
    /// Messages came without an identity.
    Incomplete,
}

impl KeyVerdict {
    /// Returns the word for the output.
    fn as_str(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Unproven => "unproven",
            Self::Conflicting => "conflicting",
            Self::Incomplete => "incomplete",
        }
    }

    /// Returns whether nothing contradicts the key.
    fn is_success(self) -> bool {
        matches!(self, Self::Right | Self::Unproven)
    }
}

/// Totals of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ObservedTotals {
    messages: i64,
    keys: i64,
    duplicates: i64,
    unsure: i64,
    conflicts: i64,
    unidentified: i64,
}

impl ObservedTotals {
    /// Adds the numbers of messages up by result.
    fn from_rows(rows: &[ObservedGroup]) -> Self {
        let mut totals = Self::default();
        for row in rows {
            totals.messages += row.messages;
            match row.result.as_str() {
                FIRST => totals.keys += row.messages,
                DUPLICATE => totals.duplicates += row.messages,
                UNSURE => totals.unsure += row.messages,
                CONFLICT => totals.conflicts += row.messages,
                _ => totals.unidentified += row.messages,
            }
        }
        totals
    }

    /// Returns the verdict on the key: the worst that the results show. Unidentified messages are worse than conflicts.
    fn verdict(&self) -> KeyVerdict {
        if self.unidentified > 0 {
            KeyVerdict::Incomplete
        } else if self.conflicts > 0 {
            KeyVerdict::Conflicting
        } else if self.duplicates == 0 {
            KeyVerdict::Unproven
        } else {
            KeyVerdict::Right
        }
    }

    /// Explains the verdict to the operator, with the advice.
    fn explain(&self, verdict: KeyVerdict) -> String {
        match verdict {
            KeyVerdict::Right => {
                "each copy had its original's key and payload, and no two messages shared a key".to_owned()
            }
            KeyVerdict::Unproven => {
                "no copy came yet: nothing contradicts the key, and nothing shows that a producer repeats \
                 it; observe longer, or have a producer try again"
                    .to_owned()
            }
            KeyVerdict::Conflicting => {
                let messages = format_count(self.conflicts, "message");
                format!(
                    "{messages} came with a known key and another payload: either producers use a key twice \
                     (choose another), or they change the body when they repeat themselves (choose another \
                     fingerprint)"
                )
            }
            KeyVerdict::Incomplete => {
                let messages = format_count(self.unidentified, "message");
                format!(
                    "{messages} would be dead letters without having run: mend tenant and key, or their \
                     producers"
                )
            }
        }
    }
}

pub(super) async fn run(file: &Path, arguments: AdoptReportArguments, times: Times) -> crate::VerbResult {
    let name = match arguments.consumer.ends_with(OBSERVER_SUFFIX) {
        true => arguments.consumer.clone(),
        false => format!("{}{OBSERVER_SUFFIX}", arguments.consumer),
    };
    let mut connection = connect(file, "oncely adopt report").await?;
    let since = arguments.since.unwrap_or(DateTime::UNIX_EPOCH);
    let counts = pg::count_observed(&mut connection, &name, since).await?;
    let conflicting: Vec<ConflictingKey> =
        pg::list_conflicting_keys(&mut connection, &name, since, EXAMPLES).await?;
    let rows: Vec<ObservedGroup> = counts.into_iter().map(ObservedGroup::from).collect();
    let totals = ObservedTotals::from_rows(&rows);
    let verdict = totals.verdict();
    let none = match arguments.since {
        Some(since) => format!("{} has observed nothing since {}", escape(&name), times.format_time(since)),
        None => format!("{} has observed nothing", escape(&name)),
    };
    let list = List { schema: "oncely.adopt.report/1", field: "results", rows: &rows, none: &none };
    let code = list.print_with(
        arguments.output,
        times,
        json!({
            "consumer": name, "since": arguments.since, "messages": totals.messages, "keys": totals.keys,
            "doubles_stopped": totals.duplicates, "unsure": totals.unsure, "conflicts": totals.conflicts,
            "unidentified": totals.unidentified,
            "verdict": (totals.messages > 0).then_some(verdict.as_str()), "conflicting_keys": conflicting,
        }),
    )?;
    if rows.is_empty() {
        return Ok(code);
    }
    if !arguments.output.is_for_programs() {
        output::print_note(&format!("key: {}: {}", verdict.as_str(), totals.explain(verdict)));
        output::print_note(&format!(
            "of {} with {}, {} would have been stopped ({} more may be copies)",
            format_count(totals.messages, "message"),
            format_count(totals.keys, "key"),
            format_count(totals.duplicates, "double"),
            totals.unsure
        ));
        for ConflictingKey { tenant, key, messages } in &conflicting {
            let (tenant, key) = (escape(tenant), escape(key));
            output::print_note(&format!("  tenant {tenant} key {key}: another payload {messages} times"));
        }
    }
    Ok(if verdict.is_success() { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_the_worst_that_was_seen() {
        let right = ObservedTotals { messages: 3, keys: 2, duplicates: 1, ..ObservedTotals::default() };
        assert_eq!(right.verdict(), KeyVerdict::Right);
        assert_eq!(ObservedTotals { duplicates: 0, ..right }.verdict(), KeyVerdict::Unproven);
        assert_eq!(ObservedTotals { conflicts: 1, ..right }.verdict(), KeyVerdict::Conflicting);
        let incomplete = ObservedTotals { conflicts: 1, unidentified: 1, ..right };
        assert_eq!(incomplete.verdict(), KeyVerdict::Incomplete);
    }
}
