//! What the demo found.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sqlx::Row as _;
use testbed::Arena;
use testbed::checker::What;

use crate::judgement::{self, Judgement};

/// The figures.
#[derive(Debug)]
pub(crate) struct Report {
    published: u64,
    distinct: u64,
    effects: u64,
    judgement: Judgement,
    by_cache: i64,
    by_database: i64,
    in_batch: i64,
    dead_lettered: u64,
    left: u64,
    seconds: f64,
    killed: Vec<String>,
}

impl Report {
    pub(crate) async fn collect(
        arena: &mut Arena,
        seconds: f64,
        killed: Vec<String>,
    ) -> anyhow::Result<Self> {
        let judgement = Judgement::of(arena).await?;
        let row = sqlx::query(
            "select count(*) filter (where reason = 'mirror'), count(*) filter (where reason = 'postgres'),
                count(*) filter (where reason = 'batch')
             from oncely.audit where outcome = 'duplicate'",
        )
        .fetch_one(&mut arena.connect().await?)
        .await?;
        let (sent, evidence) = (arena.sent(), &arena.evidence);
        Ok(Self {
            published: sent.messages,
            distinct: sent.distinct() as u64,
            effects: sent.keys().filter(|(key, _)| evidence.effects.get(*key) == Some(&1)).count() as u64,
            judgement,
            by_cache: row.get(0),
            by_database: row.get(1),
            in_batch: row.get(2),
            dead_lettered: evidence.dead.len() as u64,
            left: evidence.queued.len() as u64,
            seconds,
            killed,
        })
    }

    /// Nothing lost, nothing doubled, nothing left over, everybody ended in order.
    pub(crate) fn is_good(&self) -> bool {
        self.effects == self.distinct
            && [self.dead_lettered, self.left] == [0; 2]
            && self.judgement.is_good(&[])
            && self.judgement.is_orderly()
    }

    fn rate(&self) -> f64 {
        self.published as f64 / self.seconds
    }

    fn table(&self) -> String {
        let found = |what| self.judgement.count(&[what]).to_string();
        let rows = [
            ("published", self.published.to_string()),
            ("distinct payments", self.distinct.to_string()),
            ("payments with exactly one effect", self.effects.to_string()),
            ("lost", found(What::Lost)),
            ("doubled", found(What::Doubled)),
            ("effects that nobody sent", self.judgement.orphans().to_string()),
            ("sums that do not match their entries", found(What::Books)),
            ("dead-lettered", self.dead_lettered.to_string()),
            ("left in the queue", self.left.to_string()),
            ("duplicates known to Redis", self.by_cache.to_string()),
            ("duplicates known to PostgreSQL", self.by_database.to_string()),
            ("duplicates within one batch", self.in_batch.to_string()),
            ("messages a second", format!("{:.0}", self.rate())),
        ];
        let table = judgement::table(rows.map(|(what, figure)| (what.to_owned(), figure)));
        let killed: String = self.killed.iter().map(|line| format!("\n  {line}")).collect();
        table + &killed + &self.judgement.lines()
    }

    fn json(&self) -> BTreeMap<&'static str, Value> {
        let found = |what| json!(self.judgement.count(&[what]));
        let figures = [
            ("published", json!(self.published)),
            ("distinct", json!(self.distinct)),
            ("effects", json!(self.effects)),
            ("lost", found(What::Lost)),
            ("doubled", found(What::Doubled)),
            ("orphans", json!(self.judgement.orphans())),
            ("wrong_sums", found(What::Books)),
            ("suppressed_by_cache", json!(self.by_cache)),
            ("suppressed_by_database", json!(self.by_database)),
            ("suppressed_in_batch", json!(self.in_batch)),
            ("dead_lettered", json!(self.dead_lettered)),
            ("left_in_queue", json!(self.left)),
            ("seconds", json!((self.seconds * 1_000.0).round() / 1_000.0)),
            ("messages_per_second", json!(self.rate().round())),
        ];
        figures.into_iter().chain(self.judgement.json()).collect()
    }

    pub(crate) fn print(&self, json: bool, keep: bool) -> anyhow::Result<()> {
        if json {
            return judgement::print(&self.table(), Some(&self.json()));
        }
        let hint = match keep {
            true => "Try on the audit trail:",
            false => "With --keep the servers stay up, to try on the audit trail:",
        };
        let text = format!(
            "{}\n\n{hint}\n  \
             select * from oncely.processed_keys where tenant = 'tenant-07' limit 5;\n  \
             select outcome, reason, count(*) from oncely.audit group by 1, 2 order by 3 desc;\n  \
             oncely explain payment-00000007",
            self.table()
        );
        judgement::print(&text, None)
    }
}
