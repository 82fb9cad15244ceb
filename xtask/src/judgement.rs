//! What the judge said of a run, for the reports.

use std::collections::BTreeMap;
use std::io::Write as _;

use comfy_table::{Table, presets};
use serde_json::{Value, json};
use testbed::Arena;
use testbed::checker::{Violation, What, count};

/// Broken invariants, and processes that did not end as they were told.
#[derive(Debug)]
pub(crate) struct Judgement {
    violations: Vec<Violation>,
    exits: Vec<String>,
}

impl Judgement {
    /// Reads the evidence and judges.
    pub(crate) async fn of(arena: &mut Arena) -> anyhow::Result<Self> {
        Ok(Self { violations: arena.check().await?, exits: arena.exits.clone() })
    }

    /// Is no invariant broken, but for those that are only told?
    pub(crate) fn is_good(&self, tolerated: &[String]) -> bool {
        self.violations.iter().all(|violation| tolerated.iter().any(|name| name == violation.what.name()))
    }

    /// Have all processes ended as they were told?
    pub(crate) fn is_orderly(&self) -> bool {
        self.exits.is_empty()
    }

    /// How often any of these was found.
    pub(crate) fn count(&self, what: &[What]) -> u64 {
        count(&self.violations, what)
    }

    /// Effects, keys and audit rows that nobody has asked for.
    pub(crate) fn orphans(&self) -> u64 {
        self.count(&[What::OrphanEffect, What::OrphanKey, What::OrphanAudit])
    }

    /// A line for each exit and each violation, each behind a line break.
    pub(crate) fn lines(&self) -> String {
        let exits = self.exits.iter().map(|exit| format!("\n  ended: {exit}"));
        exits.chain(self.violations.iter().map(|violation| format!("\nVIOLATION {violation}"))).collect()
    }

    /// The same as fields of a JSON object.
    pub(crate) fn json(&self) -> [(&'static str, Value); 2] {
        let mut violations: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
        for violation in &self.violations {
            let of = violations.entry(format!("{:?}", violation.invariant)).or_default();
            of.insert(violation.what.name(), violation.count);
        }
        [("unexpected_exits", json!(self.exits)), ("violations", json!(violations))]
    }
}

/// A table of figures.
pub(crate) fn table(rows: impl IntoIterator<Item = (String, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    for (what, figure) in rows {
        table.add_row([what, figure]);
    }
    table.to_string()
}

/// Prints the table; with `--json` on stderr, and the object on stdout.
pub(crate) fn print(table: &str, json: Option<&BTreeMap<&str, Value>>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match json {
        None => writeln!(out, "{table}")?,
        Some(object) => {
            eprintln!("{table}");
            writeln!(out, "{}", json!(object))?;
        }
    }
    Ok(())
}
