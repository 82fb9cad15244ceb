//! What the demo found.

use std::io::Write as _;
use std::process::ExitStatus;

use comfy_table::{Table, presets};
use serde_json::json;
use sqlx::Row as _;
use testbed::{Broker, Ledger, Verdict};

use super::chaos::Chaos;
use super::stage::Stage;

/// The figures.
#[derive(Debug)]
pub(crate) struct Report {
    published: u64,
    distinct: u64,
    verdict: Verdict,
    by_cache: i64,
    by_database: i64,
    in_batch: i64,
    dead_lettered: u64,
    left: u64,
    seconds: f64,
    killed: Vec<String>,
    unclean: Vec<String>,
}

impl Report {
    pub(crate) async fn collect(
        stage: &Stage,
        ledger: &Ledger,
        published: u64,
        seconds: f64,
        chaos: &Chaos,
        ends: Vec<(String, ExitStatus)>,
    ) -> anyhow::Result<Self> {
        let mut connection = stage.database.connect().await?;
        let verdict = ledger.judge(&mut connection).await?;
        let row = sqlx::query(
            "select count(*) filter (where reason = 'mirror'), count(*) filter (where reason = 'postgres'),
                count(*) filter (where reason = 'batch')
             from oncely.audit where outcome = 'duplicate'",
        )
        .fetch_one(&mut connection)
        .await?;
        let broker = Broker::connect(&stage.amqp_url()).await?;
        Ok(Self {
            published,
            distinct: ledger.expected() as u64,
            verdict,
            by_cache: row.get(0),
            by_database: row.get(1),
            in_batch: row.get(2),
            dead_lettered: u64::from(broker.ready(&format!("{}.dead", stage.queue)).await?),
            left: u64::from(broker.ready(&stage.queue).await?),
            seconds,
            killed: chaos.done.clone(),
            unclean: ends
                .into_iter()
                .filter(|(_, status)| !status.success())
                .map(|(name, status)| format!("{name}: {status}"))
                .collect(),
        })
    }

    /// Nothing lost, nothing doubled, nothing left over, everybody ended in order.
    pub(crate) fn is_good(&self) -> bool {
        let Verdict { effects, lost, doubled, orphans, wrong_balances } = self.verdict;
        effects == self.distinct
            && [lost, doubled, orphans, wrong_balances, self.dead_lettered, self.left] == [0; 6]
            && self.unclean.is_empty()
    }

    fn rate(&self) -> f64 {
        self.published as f64 / self.seconds
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let verdict = self.verdict;
        for (what, count) in [
            ("published", self.published),
            ("distinct payments", self.distinct),
            ("payments with exactly one effect", verdict.effects),
            ("lost", verdict.lost),
            ("doubled", verdict.doubled),
            ("effects that nobody sent", verdict.orphans),
            ("balances that do not match their entries", verdict.wrong_balances),
            ("dead-lettered", self.dead_lettered),
            ("left in the queue", self.left),
        ] {
            table.add_row([what.to_owned(), count.to_string()]);
        }
        for (what, count) in [
            ("duplicates known to Redis", self.by_cache),
            ("duplicates known to PostgreSQL", self.by_database),
            ("duplicates within one batch", self.in_batch),
        ] {
            table.add_row([what.to_owned(), count.to_string()]);
        }
        table.add_row(["messages a second".to_owned(), format!("{:.0}", self.rate())]);
        let mut text = table.to_string();
        for line in self.killed.iter().chain(&self.unclean) {
            text.push_str(&format!("\n  {line}"));
        }
        text
    }

    pub(crate) fn print(&self, keep: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}\n\n{}\n  \
             select * from oncely.processed_keys where tenant = 'tenant-07' limit 5;\n  \
             select outcome, reason, count(*) from oncely.audit group by 1, 2 order by 3 desc;\n  \
             oncely explain payment-00000007",
            self.table(),
            if keep {
                "Try on the audit trail:"
            } else {
                "With --keep the servers stay up, to try on the audit trail:"
            }
        )?;
        Ok(())
    }

    pub(crate) fn print_json(&self) -> anyhow::Result<()> {
        let verdict = self.verdict;
        let object = json!({
            "published": self.published, "distinct": self.distinct, "effects": verdict.effects, "lost": verdict.lost,
            "doubled": verdict.doubled, "orphans": verdict.orphans, "wrong_balances": verdict.wrong_balances,
            "suppressed_by_cache": self.by_cache, "suppressed_by_database": self.by_database,
            "suppressed_in_batch": self.in_batch, "dead_lettered": self.dead_lettered, "left_in_queue": self.left,
            "seconds": (self.seconds * 1_000.0).round() / 1_000.0, "messages_per_second": self.rate().round(),
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{object}")?;
        Ok(())
    }
}
