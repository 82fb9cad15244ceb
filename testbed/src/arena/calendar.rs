//! Time: what is stored gets older by a day at once, and a clock is set back for a while.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::{PgConnection, Row as _};

use super::Arena;

/// Longest wait for the end of what holds a table: longer than any process stands still, and than a fault's aftermath.
const PATIENCE: Duration = Duration::from_secs(60);
/// Days by which some keys are older than others: with the days in which their copies come they stay within their retention.
const APART: i32 = 5;
/// From one try to the next: what has queued behind a try runs meanwhile.
const PAUSE: Duration = Duration::from_millis(300);
/// The sessions that hold what a try waited for.
const HOLDERS: &str = "select coalesce(string_agg(format('%s: %s for %s, %s', application_name, state, now() - xact_start, left(query, 80)), '; '), '')
    from pg_stat_activity where datname = current_database() and xact_start < now() - interval '1 second' and pid <> pg_backend_pid()";

impl Arena {
    /// Lets days go by: everything that PostgreSQL has stored is older at once, and the mirror, whose entries live for an hour, is
    /// empty. What waits in a retry queue comes back soon all the same.
    pub async fn let_days_pass(&mut self, days: u32) -> anyhow::Result<()> {
        self.sample_mirror().await?;
        self.note_interruption(true);
        self.age(&format!("{days} days")).await?;
        // What was mirrored just now may be written again by a relay: it is as old as its record.
        let client = redis::Client::open(self.servers.urls().redis.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        self.evidence.days += i64::from(days);
        Ok(())
    }

    /// Moves all stored times into the past by a PostgreSQL interval; into the future by a negative one.
    pub(crate) async fn age(&mut self, by: &str) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            // A process that stands still holds what it has locked until it is let go on.
            self.supervise_charging()?;
            self.supervise_doors()?;
            self.supervise_gateways()?;
            self.supervise_observer()?;
            let mut connection = self.connect().await?;
            let Err(error) = age(&mut connection, by).await else {
                return Ok(());
            };
            if since.elapsed() > PATIENCE {
                let holders: String = sqlx::query_scalar(HOLDERS).fetch_one(&mut connection).await?;
                return Err(error).with_context(|| format!("tables are held by {holders}"));
            }
            // It is older, or is not: an answer that is lost would age it twice.
            anyhow::ensure!(error.as_database_error().is_some(), error);
            drop(connection);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Makes some of what has ended older than the rest, after days have passed: keys are forgotten one by one, and not all that came
    /// together.
    pub async fn age_apart(&self, days: u32) -> anyhow::Result<()> {
        let eighth = i32::try_from((self.evidence.days / i64::from(days.max(1))).wrapping_sub(1) % 8)?;
        let mut connection = self.connect().await?;
        sqlx::query("select judge.age_apart($1, $2)")
            .bind(eighth)
            .bind(APART)
            .execute(&mut connection)
            .await?;
        Ok(())
    }

    /// Days that went by at once, by the database's books; an error while PostgreSQL does not answer.
    pub async fn today(&self) -> anyhow::Result<i64> {
        let mut connection = self.connect().await?;
        Ok(sqlx::query("select judge.today()::bigint").fetch_one(&mut connection).await?.get(0))
    }

    /// Now, as the trail's times are written down: in seconds since 1970, with the days that went by at once.
    pub(crate) fn moment(&self) -> f64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        #[allow(clippy::cast_precision_loss)] // Days.
        let days = self.evidence.days as f64;
        now.as_secs_f64() + days * 86_400.0
    }

    /// Nothing older than this may be remembered, nothing younger forgotten: the judge's measure, in days.
    pub fn expect_retention(&mut self, kept: i64, forgotten: i64) {
        self.evidence.retention = Some((kept, forgotten));
    }
}

async fn age(connection: &mut PgConnection, by: &str) -> Result<(), sqlx::Error> {
    sqlx::query("set lock_timeout = '1s'").execute(&mut *connection).await?;
    sqlx::query("select judge.age($1::text::interval)").bind(by).execute(connection).await.map(drop)
}
