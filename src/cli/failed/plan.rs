//! What a change would do, and whether somebody agrees to it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::consent;
use super::super::output::{self, age, safe};
use super::{SCHEMA, Which};
use crate::exit;
use crate::letter::Letter;
use crate::pg::{self, LetterFilter, Named, Planned, Session};

/// What every change takes.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    which: Which,
    /// All that wait
    #[arg(long)]
    all: bool,
    /// Only show the plan
    #[arg(long)]
    dry_run: bool,
    /// Agree to the plan without being asked
    #[arg(long)]
    yes: bool,
    /// Refuse to change more than this
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    max: i64,
    /// Why, for the record
    #[arg(long)]
    pub(super) note: Option<String>,
    /// One JSON object
    #[arg(long)]
    pub(super) json: bool,
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
}

/// What follows from a plan.
pub(super) enum Consent {
    Given,
    /// Nothing to do, or nobody agreed; what there was to say is said.
    Over(ExitCode),
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
        let mut filter = change.which.clone().filter(change.max.saturating_add(1));
        filter.ids = (!change.ids.is_empty()).then(|| change.ids.clone());
        let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
        let found = pg::plan_letters(&mut session.connection, &filter, &states, filter.limit).await?;
        let mut plan = Self { verb, filter, letters: Vec::new(), refused: Refused::new(), notes: Vec::new() };
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
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for letter in &self.letters {
            *groups.entry(letter.failure_group.as_str()).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        groups
    }

    fn tell(&self, now: DateTime<Utc>) -> String {
        let mut lines = Vec::new();
        if let Some(oldest) = self.letters.first() {
            lines.push(format!(
                "{} {} dead letter(s), the oldest {} old",
                self.verb,
                self.letters.len(),
                age(oldest.dead_lettered_at, now)
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
    pub(super) fn agree(&self, change: &Change, now: DateTime<Utc>) -> anyhow::Result<Consent> {
        let over = |code: u8| Ok(Consent::Over(ExitCode::from(code)));
        if change.ids.is_empty() && change.which.is_any() && !change.all {
            output::note("which ones? Name ids, a group or a filter, or say --all");
            return over(2);
        }
        let count = self.letters.len();
        if i64::try_from(count).unwrap_or(i64::MAX) > change.max {
            let max = change.max;
            output::note(&format!("more than {max} dead letters match: narrow it down, or raise --max"));
            return over(exit::REFUSED);
        }
        if change.json && (change.dry_run || count == 0) {
            self.print_json(true, json!({}))?;
        } else if !change.json || !change.yes {
            output::note(&self.tell(now));
        }
        if count == 0 {
            output::note(&format!("nothing to {}", self.verb));
            return over(exit::NO);
        }
        if change.dry_run {
            output::note("dry run: nothing was changed");
            return Ok(Consent::Over(ExitCode::SUCCESS));
        }
        if change.yes {
            return Ok(Consent::Given);
        }
        match consent::ask(count)? {
            true => Ok(Consent::Given),
            false => over(exit::REFUSED),
        }
    }

    /// Records the action, in the caller's transaction.
    pub(super) async fn record(
        &self,
        connection: &mut sqlx::PgConnection,
        now: DateTime<Utc>,
        done: &[Named],
        note: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut tenants: Vec<&str> = done.iter().map(|(tenant, _)| tenant.as_str()).collect();
        tenants.dedup();
        let tenant = if tenants.len() == 1 { tenants[0] } else { "" };
        let user = consent::user();
        let count = i64::try_from(done.len()).unwrap_or(i64::MAX);
        let filter = serde_json::to_value(&self.filter)?;
        let action =
            pg::Action { tenant, verb: self.verb, user: &user, filter: &filter, count, reason: note };
        Ok(pg::record_action(connection, now, &action).await?)
    }
}

/// How many letters a plan shows.
const SAMPLES: usize = 5;
