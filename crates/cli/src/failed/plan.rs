//! The plan of a change, as text and as JSON.

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::confirmation::{BulkChangeOptions, ChangePlan, Confirmation, MAX_SAMPLES};
use super::super::output::{escape, format_age, format_count};
use super::{LetterFilterArguments, SCHEMA};
use oncely_ops::letters::LetterChangePlan;
use oncely_postgres::LetterFilter;

/// The options of every change.
#[derive(Debug, Args)]
pub(super) struct LetterChangeArguments {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    selection: LetterFilterArguments,
    #[command(flatten)]
    pub(super) options: BulkChangeOptions,
}

impl LetterChangeArguments {
    /// Returns whether letters are selected by id, failure or key, and not only by origin and time.
    pub(super) fn names_letters(&self) -> bool {
        !self.ids.is_empty() || self.selection.names_letters()
    }

    /// Returns a filter for one letter more than the maximum, to detect that there are too many.
    pub(super) fn to_filter(&self) -> LetterFilter {
        let filter = self.selection.clone().into_filter(self.options.max.saturating_add(1));
        LetterFilter { ids: (!self.ids.is_empty()).then(|| self.ids.clone()), ..filter }
    }

    /// Shows the plan and asks for confirmation.
    pub(super) fn confirm(&self, plan: &LetterChangePlan) -> anyhow::Result<Confirmation> {
        let is_selected = !self.ids.is_empty() || !self.selection.is_unfiltered();
        match self.options.require_selection(is_selected, "ids, a group or a filter") {
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
                format_count(self.letters.len(), "dead letter"),
                format_age(oldest.dead_lettered_at, self.now)
            ));
        }
        for (group, count) in self.groups() {
            lines.push(format!("  {count:>6}  {group}"));
        }
        for letter in self.letters.iter().take(MAX_SAMPLES) {
            lines.push(format!(
                "  e.g. {}  {} · {} · {}  {}",
                letter.id,
                escape(&letter.consumer),
                escape(&letter.tenant),
                escape(&letter.key),
                escape(letter.detail.as_deref().unwrap_or_default())
            ));
        }
        lines.extend(self.notes.iter().map(|note| format!("  ! {note}")));
        lines.extend(self.refused.iter().map(|(why, count)| format!("  ✗ {count} left alone: {why}")));
        lines.join("\n")
    }

    fn to_json(&self) -> Value {
        let samples: Vec<Value> = self
            .letters
            .iter()
            .take(MAX_SAMPLES)
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
