//! The plan of a change.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use oncely_postgres::{self as pg, LetterFilter, PlannedLetter};

/// A change of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They run again.
    Requeue,
    /// They are discarded.
    Discard,
}

impl Change {
    /// Returns the verb of the change in `oncely.operator_actions`.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Discard => "discard",
        }
    }

    /// Returns the states of letters that the change applies to.
    pub(crate) fn open_states(self) -> &'static [&'static str] {
        &["waiting", "requeueing"]
    }
}

/// Numbers of letters that are not changed, by reason.
pub(crate) type SkippedLetters = BTreeMap<&'static str, u64>;

/// The letters of a change, with refused ones and notes.
#[derive(Clone, Debug)]
pub struct LetterChangePlan {
    pub change: Change,
    pub filter: LetterFilter,
    /// Oldest first.
    pub letters: Vec<PlannedLetter>,
    pub refused: SkippedLetters,
    pub notes: Vec<String>,
    /// When it was made, by the database's clock.
    pub now: DateTime<Utc>,
}

impl LetterChangePlan {
    /// Counts the letters of a change, up to the filter's limit.
    ///
    /// # Errors
    /// If the query fails.
    pub async fn count(
        connection: &mut PgConnection,
        change: Change,
        filter: &LetterFilter,
    ) -> Result<i64, sqlx::Error> {
        let states: Vec<String> = change.open_states().iter().map(|state| (*state).to_owned()).collect();
        pg::count_letters(connection, filter, &states, filter.limit).await
    }

    /// Makes the plan of a change: finds the letters of the filter, and leaves out those for which `refuse` returns a reason.
    ///
    /// # Errors
    /// If the query fails.
    pub async fn make(
        connection: &mut PgConnection,
        now: DateTime<Utc>,
        change: Change,
        filter: LetterFilter,
        refuse: impl Fn(&PlannedLetter) -> Option<&'static str>,
    ) -> Result<Self, sqlx::Error> {
        let states: Vec<String> = change.open_states().iter().map(|state| (*state).to_owned()).collect();
        let letters = pg::list_planned_letters(connection, now, &filter, &states, filter.limit).await?;
        let mut plan = Self {
            change,
            filter,
            letters: Vec::new(),
            refused: SkippedLetters::new(),
            notes: Vec::new(),
            now,
        };
        for letter in letters {
            match refuse(&letter) {
                Some(why) => *plan.refused.entry(why).or_default() += 1,
                None => plan.letters.push(letter),
            }
        }
        let is_under_way = pg::is_requeue_under_way(connection).await?;
        plan.add_notes(is_under_way);
        Ok(plan)
    }

    /// Sets the notes about letters that took effect meanwhile, are half requeued, or are not stored whole.
    fn add_notes(&mut self, is_under_way: bool) {
        let count = |of: fn(&PlannedLetter) -> bool| self.letters.iter().filter(|letter| of(letter)).count();
        let unfinished = count(|letter| letter.state == "requeueing");
        let remarks = match self.change {
            Change::Requeue => vec![
                (
                    count(|letter| letter.key_status.as_deref() == Some("COMPLETED")),
                    "took effect meanwhile: nothing is published, and they leave their queue",
                ),
                (
                    unfinished,
                    if is_under_way {
                        "half requeued, and a requeue is under way: those that it does not publish are published"
                    } else {
                        "from an earlier requeue that was broken off: published again"
                    },
                ),
                (
                    count(|letter| !letter.whole),
                    "not stored whole: published from the dead-letter queue, by the sweep that follows",
                ),
            ],
            Change::Discard => vec![(
                unfinished,
                if is_under_way {
                    "half requeued, and a requeue is under way: what it has published by then runs"
                } else {
                    "from an earlier requeue that was broken off: a copy that is in its queue already runs"
                },
            )],
        };
        let remarks = remarks.into_iter().filter(|(count, _)| *count > 0);
        self.notes = remarks.map(|(count, text)| format!("{count} {text}")).collect();
    }

    /// Returns the failure groups of the letters with their sizes, the largest first.
    pub fn groups(&self) -> Vec<(&str, usize)> {
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for letter in &self.letters {
            *groups.entry(&letter.failure_group).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        groups
    }
}
