//! The plan of a change, as text and as JSON.

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::confirmation::{BulkChangeOptions, ChangePlan, Confirmation, SAMPLES};
use super::super::output::{age, counted, safe};
use super::{LetterFilterArguments, SCHEMA};
use oncely_ops::letters::LetterChangePlan;
use oncely_postgres::LetterFilter;

/// The options of every change.
#[derive(Debug, Args)]
pub(super) struct LetterChangeArguments {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    which: LetterFilterArguments,
    #[command(flatten)]
    pub(super) options: BulkChangeOptions,
}

impl LetterChangeArguments {
    /// Returns whether letters are selected by id, failure or key, and not only by origin and time.
    pub(super) fn names_letters(&self) -> bool {
        !self.ids.is_empty() || self.which.tells_which()
    }

    /// Returns a filter for one letter more than the maximum, to detect that there are too many.
    pub(super) fn filter(&self) -> LetterFilter {
        let filter = self.which.clone().filter(self.options.max.saturating_add(1));
        LetterFilter { ids: (!self.ids.is_empty()).then(|| self.ids.clone()), ..filter }
    }

    /// Shows the plan and asks for confirmation.
    pub(super) fn agree(&self, plan: &LetterChangePlan) -> anyhow::Result<Confirmation> {
        let named = !self.ids.is_empty() || !self.which.is_any();
        match self.options.require_selection(named, "ids, a group or a filter") {
            Some(code) => Ok(Confirmation::Exit(code)),
            None => self.options.confirm(plan),
        }
    }
}

impl ChangePlan for LetterChangePlan {
    const ROWS: &'static str = "dead letters";
    const SCHEMA: &'static str = SCHEMA;

    fn verb(&self) -> &'static str {
        self.change.verb()
    }

    fn count(&self) -> usize {
        self.letters.len()
    }

    fn describe(&self) -> String {
        let mut lines = Vec::new();
        if let Some(oldest) = self.letters.first() {
            lines.push(format!(
                "{} {}, the oldest {} old",
                self.change.verb(),
                counted(self.letters.len(), "dead letter"),
                age(oldest.dead_lettered_at, self.now)
            ));
        }
        for (group, count) in self.groups() {
            lines.push(format!("  {count:>6}  {group}"));
        }
        for letter in self.letters.iter().take(SAMPLES) {
            lines.push(format!(
                "  e.g. {}  {} · {} · {}  {}",
                letter.id,
                safe(&letter.consumer),
                safe(&letter.tenant),
                safe(&letter.key),
                safe(letter.detail.as_deref().unwrap_or_default())
            ));
        }
        lines.extend(self.notes.iter().map(|note| format!("  ! {note}")));
        lines.extend(self.refused.iter().map(|(why, count)| format!("  ✗ {count} left alone: {why}")));
        lines.join("\n")
    }

    fn as_json(&self) -> Value {
        let samples: Vec<Value> = self
            .letters
            .iter()
            .take(SAMPLES)
            .map(|l| json!({ "id": l.id, "tenant": l.tenant, "consumer": l.consumer, "key": l.key, "reason": l.reason }))
            .collect();
        let groups: Vec<Value> =
            self.groups().iter().map(|(group, count)| json!({ "group": group, "count": count })).collect();
        json!({
            "verb": self.change.verb(), "count": self.letters.len(), "groups": groups, "samples": samples, "notes": self.notes,
            "refused": self.refused,
        })
    }
}
