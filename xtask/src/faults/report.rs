//! What the trial found.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::json;
use testbed::Arena;
use testbed::checker::{RECOVERY_LIMIT, Sent, Violation, What};

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) faults: BTreeMap<String, u64>,
    /// Waited for a moment that did not come.
    pub(crate) missed: u64,
    sent: Sent,
    violations: Vec<Violation>,
    recoveries: Vec<(String, Option<Duration>)>,
    exits: Vec<String>,
    dead_letters: usize,
    mirrored: u64,
    effects: usize,
    memory: u64,
    events: EventFigures,
    days: i64,
    changes: Vec<String>,
    missing: usize,
}

/// How many events.
#[derive(Debug)]
struct EventFigures {
    committed: u64,
    /// By the applications, on purpose.
    rolled_back: u64,
    /// Different ones that arrived.
    published: u64,
    /// Arrived again.
    repeats: u64,
}

impl Report {
    pub(crate) async fn collect(
        arena: &mut Arena,
        seed: u64,
        seconds: f64,
        faults: BTreeMap<String, u64>,
        missed: u64,
        changes: Vec<String>,
    ) -> anyhow::Result<Self> {
        let violations = arena.check().await?;
        let evidence = &arena.evidence;
        Ok(Self {
            seed,
            seconds,
            faults,
            missed,
            sent: arena.sent(),
            violations,
            recoveries: evidence.recoveries.clone(),
            exits: arena.exits.clone(),
            dead_letters: evidence.dead.len(),
            mirrored: evidence.mirrored,
            effects: evidence.effects.len(),
            events: EventFigures {
                committed: evidence.events.committed.len() as u64,
                rolled_back: arena.rolled_back,
                published: evidence.events.published(),
                repeats: evidence.events.repeats(),
            },
            days: evidence.days,
            changes,
            missing: evidence.meanwhile.missing.len(),
            memory: evidence.memory.as_ref().map_or(0, |(_, bytes)| *bytes),
        })
    }

    /// Is no invariant broken, but for those that are only told?
    pub(crate) fn is_good(&self, tolerated: &[String]) -> bool {
        self.violations.iter().all(|violation| tolerated.iter().any(|name| name == violation.what.name()))
    }

    fn count(&self, what: &[What]) -> u64 {
        self.violations.iter().filter(|v| what.contains(&v.what)).map(|v| v.count).sum()
    }

    /// The headline figures, by name.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("messages", self.sent.messages),
            ("distinct", self.sent.distinct() as u64),
            ("faults", self.faults.values().sum()),
            ("kinds", self.faults.len() as u64),
            ("lost", self.count(&[What::Lost])),
            ("doubled", self.count(&[What::Doubled])),
            ("orphans", self.count(&[What::OrphanEffect, What::OrphanKey, What::OrphanAudit])),
            ("stale_mirror", self.count(&[What::StaleMirror])),
            ("unexplained_dead_letters", self.count(&[What::UnexplainedDeadLetter])),
            ("starved", self.count(&[What::Starved])),
            ("unjustified_dead_letters", self.count(&[What::UnjustifiedDeadLetter])),
            ("trespasses", self.count(&[What::Trespass])),
            ("days_simulated", u64::try_from(self.days).unwrap_or(0)),
            ("config_changes", self.changes.len() as u64),
            ("tenants_broken", self.missing as u64),
            ("events_committed", self.events.committed),
            ("events_published", self.events.published),
            ("events_lost", self.count(&[What::EventLost])),
            ("events_unowed", self.count(&[What::EventUnowed])),
            ("order_violations", self.count(&[What::EventOrder])),
            ("event_repeats", self.events.repeats),
            ("events_rolled_back", self.events.rolled_back),
        ]
    }

    /// The time within which 95 of 100 faults were recovered from.
    fn recovery(&self) -> f64 {
        let mut all: Vec<Duration> =
            self.recoveries.iter().map(|(_, took)| took.unwrap_or(RECOVERY_LIMIT * 2)).collect();
        all.sort();
        let at = (all.len() * 95).div_ceil(100).saturating_sub(1);
        all.get(at).map_or(0.0, |took| round(took.as_secs_f64()))
    }

    fn slowest(&self) -> Vec<String> {
        let mut all = self.recoveries.clone();
        all.sort_by_key(|(_, took)| std::cmp::Reverse(took.unwrap_or(Duration::MAX)));
        all.iter()
            .take(5)
            .map(|(fault, took)| match took {
                Some(took) => format!("{:.1} s after {fault}", took.as_secs_f64()),
                None => format!("never after {fault}"),
            })
            .collect()
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        for (what, count) in self.figures() {
            table.add_row([what.replace('_', " "), count.to_string()]);
        }
        for (what, count) in [
            ("keys with an effect", self.effects as u64),
            ("dead letters, explained or not", self.dead_letters as u64),
            ("mirror entries looked at", self.mirrored),
            ("unknown confirms", self.sent.unknown),
            ("faults that waited in vain", self.missed),
            ("most memory of a process (MiB)", self.memory >> 20),
        ] {
            table.add_row([what.to_owned(), count.to_string()]);
        }
        table.add_row(["recovery, 95th percentile (s)".to_owned(), self.recovery().to_string()]);
        table.add_row(["seed".to_owned(), self.seed.to_string()]);
        table.add_row(["seconds".to_owned(), format!("{:.0}", self.seconds)]);
        let mut text = table.to_string();
        for slow in self.slowest() {
            text.push_str(&format!("\n  {slow}"));
        }
        for exit in &self.exits {
            text.push_str(&format!("\n  ended: {exit}"));
        }
        for violation in &self.violations {
            text.push_str(&format!("\nVIOLATION {violation}"));
        }
        text
    }

    pub(crate) fn print_json(&self) -> anyhow::Result<()> {
        let mut violations: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
        for violation in &self.violations {
            let of = violations.entry(format!("{:?}", violation.invariant)).or_default();
            of.insert(violation.what.name(), violation.count);
        }
        let mut object: BTreeMap<&str, serde_json::Value> =
            self.figures().into_iter().map(|(name, count)| (name, json!(count))).collect();
        object.extend([
            ("recovery_p95_seconds", json!(self.recovery())),
            ("recovery_slowest", json!(self.slowest())),
            ("seed", json!(self.seed)),
            ("seconds", json!(round(self.seconds))),
            ("unknown_confirms", json!(self.sent.unknown)),
            ("refused_confirms", json!(self.sent.refused)),
            ("dead_letters", json!(self.dead_letters)),
            ("effects", json!(self.effects)),
            ("mirror_entries", json!(self.mirrored)),
            ("missed", json!(self.missed)),
            ("unexpected_exits", json!(self.exits)),
            ("changes", json!(self.changes)),
            ("violations", json!(violations)),
            ("faults_by_kind", json!(self.faults)),
        ]);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", json!(object))?;
        Ok(())
    }

    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", self.table())?;
        Ok(())
    }
}

fn round(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
