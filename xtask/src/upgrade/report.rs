//! What an upgrade cost.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row as _;
use testbed::Arena;
use testbed::checker::What;

use crate::judgement::{self, Judgement};

/// A part of the upgrade.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// When it began: microseconds since 1970, by the database's clock.
    pub(crate) from: i64,
    /// How long what was done in it took.
    pub(crate) took: Duration,
}

#[derive(Debug)]
pub(crate) struct Report {
    steps: Vec<Step>,
    /// Of each step the longest time in which no message was decided.
    pauses: Vec<f64>,
    messages: u64,
    effects: usize,
    events: usize,
    judgement: Judgement,
}

/// The database's clock.
pub(crate) async fn database_time(arena: &Arena) -> anyhow::Result<i64> {
    let mut connection = arena.connect().await?;
    let row = sqlx::query("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
        .fetch_one(&mut connection)
        .await?;
    Ok(row.get(0))
}

impl Report {
    pub(crate) async fn collect(arena: &mut Arena, steps: Vec<Step>) -> anyhow::Result<Self> {
        let mut connection = arena.connect().await?;
        let mut pauses = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let until = steps.get(number + 1).map_or(i64::MAX, |next| next.from);
            let row = sqlx::query(
                "select coalesce(max(at - before), 0)::double precision / 1000000
                 from (
                     select at, lag(at) over (order by at) as before
                     from (select (extract(epoch from occurred_at) * 1000000)::bigint as at from oncely.audit) as a
                 ) as a
                 where before >= $1 and before < $2",
            )
            .bind(step.from)
            .bind(until)
            .fetch_one(&mut connection)
            .await?;
            pauses.push(row.get(0));
        }
        let judgement = Judgement::of(arena).await?;
        Ok(Self {
            steps,
            pauses,
            messages: arena.sent().messages,
            effects: arena.evidence.effects.len(),
            events: arena.evidence.events.committed.len(),
            judgement,
        })
    }

    /// Is no invariant broken, and has every process ended as it was told?
    pub(crate) fn is_good(&self) -> bool {
        self.judgement.is_good(&[]) && self.judgement.is_orderly()
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let found = |what| self.judgement.count(&[what]);
        vec![
            ("messages", self.messages),
            ("effects", self.effects as u64),
            ("lost", found(What::Lost)),
            ("doubled", found(What::Doubled)),
            ("orphans", self.judgement.orphans()),
            ("events_committed", self.events as u64),
            ("events_lost", found(What::EventLost)),
            ("order_violations", found(What::EventOrder)),
        ]
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let pauses = self.steps.iter().zip(&self.pauses);
        let steps = pauses.clone().map(|(step, pause)| {
            (step.name.to_owned(), format!("{:.1} s; longest pause {pause:.2} s", step.took.as_secs_f64()))
        });
        let figures = self.figures();
        let rows =
            figures.iter().map(|(what, count)| (what.replace('_', " "), count.to_string())).chain(steps);
        let table = judgement::table(rows) + &self.judgement.lines();
        let steps: Vec<Value> = pauses
            .map(|(step, pause)| {
                json!({ "step": step.name, "seconds": step.took.as_secs_f64(), "longest_pause_seconds": pause })
            })
            .collect();
        let object = figures
            .into_iter()
            .map(|(name, count)| (name, json!(count)))
            .chain([("steps", json!(steps))])
            .chain(self.judgement.json())
            .collect();
        judgement::print(&table, json.then_some(&object))
    }
}
