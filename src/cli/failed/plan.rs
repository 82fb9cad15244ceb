//! What a change would do.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::consent::{self, Agreement, Consent, Proposal, SAMPLES, one_tenant, tally};
use super::super::output::{self, age, safe};
use super::{SCHEMA, Which};
use crate::letter::Letter;
use crate::pg::{self, LetterFilter, Named, Planned, Session};

/// What every change takes.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    pub(super) agreement: Agreement,
}

impl Change {
    /// The letters are chosen by what they are, and not only by where they came from and when.
    pub(super) fn names_letters(&self) -> bool {
        !self.ids.is_empty() || self.which.tells_which()
    }
}

/// Letters that nothing is done to, and why.
pub(super) type Refused = BTreeMap<&'static str, u64>;

/// A plan.
pub(super) struct Plan {
    pub(super) verb: &'static str,
    pub(super) filter: LetterFilter,
    pub(super) letters: Vec<Planned>,
    refused: Refused,
    notes: Vec<String>,
    now: DateTime<Utc>,
}

impl Planned {
    pub(super) fn named(&self) -> Named {
        (self.tenant.clone(), Letter { id: self.id, generation: u32::try_from(self.generation).unwrap_or(0) })
    }
}

impl Plan {
    /// Finds the letters in one of `states`; those that `refuse` gives a reason for are left out.
    pub(super) async fn make(
        session: &mut Session,
        change: &Change,
        verb: &'static str,
        states: &[&str],
        refuse: impl Fn(&Planned) -> Option<&'static str>,
    ) -> anyhow::Result<Self> {
        let mut filter = change.which.clone().filter(change.agreement.max.saturating_add(1));
        filter.ids = (!change.ids.is_empty()).then(|| change.ids.clone());
        let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
        let now = session.clock.now();
        let found = pg::plan_letters(&mut session.connection, now, &filter, &states, filter.limit).await?;
        let mut plan =
            Self { verb, filter, letters: Vec::new(), refused: Refused::new(), notes: Vec::new(), now };
        for letter in found {
            match refuse(&letter) {
                Some(why) => *plan.refused.entry(why).or_default() += 1,
                None => plan.letters.push(letter),
            }
        }
        Ok(plan)
    }

    pub(super) fn note(&mut self, count: usize, text: &str) {
        if count > 0 {
            self.notes.push(format!("{count} {text}"));
        }
    }

    pub(super) fn names(&self) -> Vec<Named> {
        self.letters.iter().map(Planned::named).collect()
    }

    /// The queues that the letters came from.
    pub(super) fn queues(&self) -> Vec<String> {
        let mut queues: Vec<String> = self.letters.iter().map(|letter| letter.queue.clone()).collect();
        queues.sort();
        queues.dedup();
        queues
    }

    fn groups(&self) -> Vec<(&str, usize)> {
        tally(self.letters.iter().map(|letter| letter.failure_group.as_str()))
    }

    /// The plan for programs; `more` says what was done.
    pub(super) fn print_json(&self, dry_run: bool, more: Value) -> anyhow::Result<()> {
        let samples: Vec<Value> = self
            .letters
            .iter()
            .take(SAMPLES)
            .map(|l| json!({ "id": l.id, "tenant": l.tenant, "consumer": l.consumer, "key": l.key, "reason": l.reason }))
            .collect();
        let groups: Vec<Value> =
            self.groups().iter().map(|(group, count)| json!({ "group": group, "count": count })).collect();
        let mut object = json!({
            "verb": self.verb, "dry_run": dry_run, "count": self.letters.len(), "groups": groups, "samples": samples,
            "notes": self.notes, "refused": self.refused,
        });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        output::print_json(SCHEMA, object)
    }

    /// Shows the plan and asks.
    pub(super) fn agree(&self, change: &Change) -> anyhow::Result<Consent> {
        let named = !change.ids.is_empty() || !change.which.is_any();
        match change.agreement.must_name(named, "ids, a group or a filter") {
            Some(code) => Ok(Consent::Over(code)),
            None => change.agreement.seek(self),
        }
    }

    /// Records the action, in the caller's transaction.
    pub(super) async fn record(
        &self,
        connection: &mut sqlx::PgConnection,
        done: &[Named],
        note: Option<&str>,
    ) -> anyhow::Result<()> {
        let tenant = one_tenant(done.iter().map(|(tenant, _)| tenant.as_str()));
        let user = consent::user();
        let count = i64::try_from(done.len()).unwrap_or(i64::MAX);
        let filter = serde_json::to_value(&self.filter)?;
        let action =
            pg::Action { tenant, verb: self.verb, user: &user, filter: &filter, count, reason: note };
        Ok(pg::record_action(connection, &action).await?)
    }
}

impl Proposal for Plan {
    const ROWS: &'static str = "dead letters";

    fn verb(&self) -> &'static str {
        self.verb
    }

    fn count(&self) -> usize {
        self.letters.len()
    }

    fn describe(&self) -> String {
        let mut lines = Vec::new();
        if let Some(oldest) = self.letters.first() {
            lines.push(format!(
                "{} {} dead letter(s), the oldest {} old",
                self.verb,
                self.letters.len(),
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

    fn print_dry_run(&self) -> anyhow::Result<()> {
        self.print_json(true, json!({}))
    }
}
