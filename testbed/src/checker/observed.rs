//! What an observer saw beside the consumer whose messages it gets copies of, and L13.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{PgConnection, Row as _};

use super::finding::{Findings, Invariant, What, name};
use super::ledger::Key;

/// The observer's name, as the product makes it of the consumer's.
pub const OBSERVED: &str = "charges.observe";

/// Everything that its judgement is made of.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Keys of which a broker has confirmed a message: it has its copy.
    pub confirmed: BTreeSet<Key>,
    /// Keys of which a message may have been sent.
    pub sent: BTreeSet<Key>,
    /// How often each was seen, by what it was taken for.
    pub seen: BTreeMap<Key, BTreeMap<String, usize>>,
    /// What it did besides: dead letters and other entries of the trail.
    pub done: Vec<String>,
}

impl Observed {
    /// Reads the tables.
    pub async fn read(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::query("select judge.note()").execute(&mut *connection).await?;
        let rows = sqlx::query(
            "select tenant, key, reason, count(*) from judge.sightings group by tenant, key, reason",
        )
        .fetch_all(&mut *connection)
        .await?;
        self.seen.clear();
        for row in &rows {
            let count = usize::try_from(row.get::<i64, _>(3))?;
            self.seen.entry((row.get(0), row.get(1))).or_default().insert(row.get(2), count);
        }
        self.done = sqlx::query_scalar(
            "select format('%s/%s: %s', tenant, key, outcome) from oncely.audit where consumer = $1 and outcome <> 'observed'
             union all select format('%s/%s: a letter', tenant, key) from oncely.dead_letters where consumer = $1",
        )
        .bind(OBSERVED)
        .fetch_all(connection)
        .await?;
        Ok(())
    }

    /// How many keys are still to be seen.
    #[must_use]
    pub fn unseen(&self) -> usize {
        self.confirmed.iter().filter(|key| !self.seen.contains_key(key)).count()
    }

    pub(super) fn judge(&self, found: &mut Findings) {
        for key in self.confirmed.iter().filter(|key| !self.seen.contains_key(key)) {
            found.add(Invariant::L13, What::Unseen, name(key));
        }
        for (key, sights) in &self.seen {
            if !self.sent.contains(key) {
                found.add(Invariant::L13, What::Unseen, format!("{}: nobody sent it", name(key)));
            }
            // Each key has one payload.
            let odd = sights.keys().find(|sight| !matches!(sight.as_str(), "first" | "duplicate" | "unsure"));
            let first = sights.get("first").copied().unwrap_or(0);
            if first != 1 || odd.is_some() {
                found.add(Invariant::L13, What::SeenWrong, format!("{}: {sights:?}", name(key)));
            }
        }
        for text in &self.done {
            found.add(Invariant::L13, What::SeenWrong, text);
        }
    }
}
