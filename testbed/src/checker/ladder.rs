//! Retries and verdicts as they were: the ladders that were configured, the rows of the trail, and what verdicts may rest on.

use std::collections::BTreeMap;
use std::fmt;

use sqlx::{PgConnection, Row as _};

use super::ledger::Key;

/// After how long a failed run may come again, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    /// Seconds after the first, second, … failed run; the last one repeats.
    pub delays: Vec<f64>,
    /// Runs.
    pub attempts: i32,
    /// Deaths after which a message is taken for their cause.
    pub crashes: usize,
}

impl Default for Ladder {
    fn default() -> Self {
        Self { delays: vec![0.2, 1.0], attempts: 5, crashes: 3 }
    }
}

impl Ladder {
    pub(super) fn after(&self, attempt: i32) -> f64 {
        let rung = usize::try_from(attempt.saturating_sub(1)).unwrap_or(0);
        self.delays.get(rung.min(self.delays.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

/// A row of the trail.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `retried` or `dead_lettered`.
    pub outcome: String,
    /// Which run.
    pub attempt: i32,
    /// Why.
    pub reason: String,
    /// SQLSTATE, where there was one.
    pub code: String,
    /// Seconds since 1970 by the clock of that moment, the days that went by at once included.
    pub at: f64,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {:.3}", self.outcome, self.attempt, self.at)
    }
}

/// What happened meanwhile that a verdict may rest on; times as in [`Step::at`].
#[derive(Clone, Debug, Default)]
pub struct Meanwhile {
    /// The ladders that were configured.
    pub ladders: Vec<Ladder>,
    /// When a worker's process died.
    pub deaths: Vec<f64>,
    /// From when to when a tenant's schema was missing.
    pub missing: Vec<(String, f64, f64)>,
    /// From when to when what every handler needs was missing.
    pub breaks: Vec<(f64, f64)>,
    /// From when to when the clock was set back.
    pub jumps: Vec<(f64, f64)>,
}

/// Reads the trail.
pub(super) async fn read_trail(
    connection: &mut PgConnection,
) -> Result<BTreeMap<Key, Vec<Step>>, sqlx::Error> {
    let rows = sqlx::query(
        "select tenant, key, outcome, attempt, coalesce(reason, ''), coalesce(error_code, ''), at::double precision
         from judge.trail order by place",
    )
    .fetch_all(connection)
    .await?;
    let mut trail: BTreeMap<Key, Vec<Step>> = BTreeMap::new();
    for row in rows {
        let (outcome, attempt, reason) = (row.get(2), row.get(3), row.get(4));
        let step = Step { outcome, attempt, reason, code: row.get(5), at: row.get(6) };
        trail.entry((row.get(0), row.get(1))).or_default().push(step);
    }
    Ok(trail)
}
