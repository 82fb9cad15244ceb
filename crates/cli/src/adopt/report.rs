//! `oncely adopt report`: results of an observing consumer: whether the key is right, and how many duplicates would have been stopped.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use serde_json::json;

use super::super::connection::connect;
use super::super::output::{self, List, Output, Row, Times, counted, safe};
use super::super::{completions, since};
use oncely_config::OBSERVER;
use oncely_ops::exit;
use oncely_postgres::{self as pg, ConflictingKey, ObservedCount};

#[derive(Debug, Args)]
pub(crate) struct AdoptReportArguments {
    /// Observed consumer, with or without ".observe"
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
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
        let show = |at: Option<DateTime<Utc>>| at.map(|at| times.show(at)).unwrap_or_default();
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
    fn from_rows(rows: &[ObservedGroup]) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.messages += row.messages;
            match row.result.as_str() {
                FIRST => sums.keys += row.messages,
                DUPLICATE => sums.duplicates += row.messages,
                UNSURE => sums.unsure += row.messages,
                CONFLICT => sums.conflicts += row.messages,
                _ => sums.unidentified += row.messages,
            }
        }
        sums
    }

    /// Returns the verdict about the key in one word, and its consequence.
    fn verdict(&self) -> (&'static str, String) {
        if self.unidentified > 0 {
            let what = counted(self.unidentified, "message");
            return (
                "incomplete",
                format!(
                    "{what} would be dead letters without having run: mend tenant and key, or their producers"
                ),
            );
        }
        if self.conflicts > 0 {
            let what = counted(self.conflicts, "message");
            return (
                "conflicting",
                format!(
                    "{what} came with a known key and another payload: either producers use a key twice (choose another), or they change the \
                     body when they repeat themselves (choose another fingerprint)"
                ),
            );
        }
        if self.duplicates == 0 {
            let said = "no copy came yet: nothing contradicts the key, and nothing shows that a producer repeats it; observe longer, or \
                        have a producer try again";
            return ("unproven", said.to_owned());
        }
        ("right", "each copy had its original's key and payload, and no two messages shared a key".to_owned())
    }
}

pub(super) async fn run(file: &Path, arguments: AdoptReportArguments, times: Times) -> crate::VerbResult {
    let name = match arguments.consumer.ends_with(OBSERVER) {
        true => arguments.consumer.clone(),
        false => format!("{}{OBSERVER}", arguments.consumer),
    };
    let mut connection = connect(file, "oncely adopt report").await?;
    let since = arguments.since.unwrap_or(DateTime::UNIX_EPOCH);
    let counts = pg::observed_counts(&mut connection, &name, since).await?;
    let conflicting: Vec<ConflictingKey> =
        pg::conflicting_keys(&mut connection, &name, since, EXAMPLES).await?;
    let rows: Vec<ObservedGroup> = counts.into_iter().map(ObservedGroup::from).collect();
    let sums = ObservedTotals::from_rows(&rows);
    let (verdict, advice) = sums.verdict();
    let none = match arguments.since {
        Some(since) => format!("{} has observed nothing since {}", safe(&name), times.show(since)),
        None => format!("{} has observed nothing", safe(&name)),
    };
    let list = List { schema: "oncely.adopt.report/1", field: "results", rows: &rows, none: &none };
    let code = list.print_with(
        arguments.output,
        times,
        json!({
            "consumer": name, "since": arguments.since, "messages": sums.messages, "keys": sums.keys, "doubles_stopped": sums.duplicates,
            "unsure": sums.unsure, "conflicts": sums.conflicts, "unidentified": sums.unidentified,
            "verdict": (sums.messages > 0).then_some(verdict), "conflicting_keys": conflicting,
        }),
    )?;
    if rows.is_empty() {
        return Ok(code);
    }
    if !arguments.output.is_for_programs() {
        output::note(&format!("key: {verdict}: {advice}"));
        output::note(&format!(
            "of {} with {}, {} would have been stopped ({} more may be copies)",
            counted(sums.messages, "message"),
            counted(sums.keys, "key"),
            counted(sums.duplicates, "double"),
            sums.unsure
        ));
        for ConflictingKey { tenant, key, messages } in &conflicting {
            let (tenant, key) = (safe(tenant), safe(key));
            output::note(&format!("  tenant {tenant} key {key}: another payload {messages} times"));
        }
    }
    Ok(if ["right", "unproven"].contains(&verdict) { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_the_worst_that_was_seen() {
        let right = ObservedTotals { messages: 3, keys: 2, duplicates: 1, ..ObservedTotals::default() };
        assert_eq!(right.verdict().0, "right");
        assert_eq!(ObservedTotals { duplicates: 0, ..right }.verdict().0, "unproven");
        assert_eq!(ObservedTotals { conflicts: 1, ..right }.verdict().0, "conflicting");
        assert_eq!(ObservedTotals { conflicts: 1, unidentified: 1, ..right }.verdict().0, "incomplete");
    }
}
