//! What the losses cost.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::Arena;
use testbed::checker::What;

use super::loss::Loss;
use crate::judgement::{self, Judgement};

/// What came of a loss.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) loss: Loss,
    /// The longest time without a new effect, from the loss until all was whole again.
    pub(crate) pause: Duration,
    /// How long after the load's end all was done that was sent; `None`: not within the limit.
    pub(crate) even: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Longest pause that is tolerated, in seconds.
    most: f64,
    figures: Vec<(&'static str, u64)>,
    judgement: Judgement,
}

impl Report {
    /// `held_back`: messages that are in retry queues, where the judge can't see them.
    pub(crate) async fn collect(
        arena: &mut Arena,
        rows: Vec<Row>,
        held_back: u64,
        most: f64,
    ) -> anyhow::Result<Self> {
        let judgement = Judgement::of(arena).await?;
        let found = |what| judgement.count(&[what]);
        let figures = vec![
            ("messages", arena.sent().messages),
            ("unconfirmed", arena.sent().unknown),
            ("effects", arena.evidence.effects.len() as u64),
            ("lost", found(What::Lost)),
            ("held_back_by_retry_queues", held_back),
            ("doubled", found(What::Doubled)),
            ("orphans", judgement.orphans()),
            ("events_committed", arena.evidence.events.committed.len() as u64),
            ("events_lost", found(What::EventLost)),
            ("order_violations", found(What::EventOrder)),
            ("mirror_entries_looked_at", arena.evidence.mirrored),
            ("stale_mirror", found(What::StaleMirror)),
            ("processes_that_ended", arena.exits.len() as u64),
        ];
        Ok(Self { rows, most, figures, judgement })
    }

    /// Is no invariant broken, has no process ended, and was no pause too long?
    pub(crate) fn is_good(&self) -> bool {
        self.judgement.is_good(&[])
            && self.judgement.is_orderly()
            && self.rows.iter().all(|row| row.pause.as_secs_f64() <= self.most && row.even.is_some())
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let losses = self.rows.iter().map(|row| {
            let even = row.even.map_or_else(|| "never".to_owned(), |even| format!("after {even:.1?}"));
            (row.loss.name().to_owned(), format!("longest pause {:.1?}; all done {even}", row.pause))
        });
        let figures = self.figures.iter().map(|(what, count)| (what.replace('_', " "), count.to_string()));
        let table = judgement::table(figures.chain(losses)) + &self.judgement.lines();
        let losses: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "loss": row.loss.name(), "longest_pause_seconds": row.pause.as_secs_f64(),
                    "done_after_seconds": row.even.map(|even| even.as_secs_f64()),
                })
            })
            .collect();
        let object = self
            .figures
            .iter()
            .map(|(name, count)| (*name, json!(count)))
            .chain([("losses", json!(losses))])
            .chain(self.judgement.json())
            .collect();
        judgement::print(&table, json.then_some(&object))
    }
}
