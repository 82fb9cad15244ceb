//! What a change would do.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::letter::Letter;
use crate::pg::{self, LetterFilter, Named, Planned};

/// What is done to dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// They run again.
    Requeue,
    /// They are given up.
    Discard,
}

impl Change {
    /// As `oncely.operator_actions` has it.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Discard => "discard",
        }
    }

    /// In which states a letter may be for it.
    pub(crate) fn open(self) -> &'static [&'static str] {
        &["waiting", "requeueing"]
    }
}

/// Letters that nothing is done to, and why.
pub(crate) type Refused = BTreeMap<&'static str, u64>;

/// The letters that a change would be made to, and what there is to say of them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) change: Change,
    pub(crate) filter: LetterFilter,
    /// Oldest first.
    pub(crate) letters: Vec<Planned>,
    pub(crate) refused: Refused,
    pub(crate) notes: Vec<String>,
    /// When it was made, by the database's clock.
    pub(crate) now: DateTime<Utc>,
}

impl Planned {
    pub(crate) fn named(&self) -> Named {
        (self.tenant.clone(), Letter { id: self.id, generation: u32::try_from(self.generation).unwrap_or(0) })
    }
}

impl Plan {
    /// How many letters there are for a change, counted up to the filter's limit.
    ///
    /// # Errors
    /// When the query fails.
    pub(crate) async fn count(
        connection: &mut PgConnection,
        change: Change,
        filter: &LetterFilter,
    ) -> Result<i64, sqlx::Error> {
        let states: Vec<String> = change.open().iter().map(|state| (*state).to_owned()).collect();
        pg::count_letters(connection, filter, &states, filter.limit).await
    }

    /// Finds the letters; those that `refuse` gives a reason for are left out.
    ///
    /// # Errors
    /// When the query fails.
    pub(crate) async fn make(
        connection: &mut PgConnection,
        now: DateTime<Utc>,
        change: Change,
        filter: LetterFilter,
        refuse: impl Fn(&Planned) -> Option<&'static str>,
    ) -> Result<Self, sqlx::Error> {
        let states: Vec<String> = change.open().iter().map(|state| (*state).to_owned()).collect();
        let found = pg::plan_letters(connection, now, &filter, &states, filter.limit).await?;
        let mut plan =
            Self { change, filter, letters: Vec::new(), refused: Refused::new(), notes: Vec::new(), now };
        for letter in found {
            match refuse(&letter) {
                Some(why) => *plan.refused.entry(why).or_default() += 1,
                None => plan.letters.push(letter),
            }
        }
        let under_way = pg::is_requeue_under_way(connection).await?;
        plan.remark(under_way);
        Ok(plan)
    }

    /// What is special about some of them.
    fn remark(&mut self, under_way: bool) {
        let count = |of: fn(&Planned) -> bool| self.letters.iter().filter(|letter| of(letter)).count();
        let unfinished = count(|letter| letter.state == "requeueing");
        let remarks = match self.change {
            Change::Requeue => vec![
                (
                    count(|letter| letter.key_status.as_deref() == Some("COMPLETED")),
                    "took effect meanwhile: nothing is published, and they leave their queue",
                ),
                (
                    unfinished,
                    if under_way {
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
                if under_way {
                    "half requeued, and a requeue is under way: what it has published by then runs"
                } else {
                    "from an earlier requeue that was broken off: a copy that is in its queue already runs"
                },
            )],
        };
        let remarks = remarks.into_iter().filter(|(count, _)| *count > 0);
        self.notes = remarks.map(|(count, text)| format!("{count} {text}")).collect();
    }

    /// How many of each group, the largest first.
    pub(crate) fn groups(&self) -> Vec<(&str, usize)> {
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for letter in &self.letters {
            *groups.entry(&letter.failure_group).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        groups
    }
}
