//! Time: what is stored gets older by a day at once, and a clock is set back for a while.

use std::time::Duration;

use sqlx::{Connection as _, Row as _};

use super::Arena;

/// Tries: a table may be locked by a fault's aftermath.
const TRIES: u32 = 8;

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
    pub(crate) async fn age(&self, by: &str) -> anyhow::Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            let aged = async {
                let mut connection = self.connect().await?;
                sqlx::query("set lock_timeout = '3s'").execute(&mut connection).await?;
                sqlx::query("select judge.age($1::text::interval)").bind(by).execute(&mut connection).await?;
                connection.close().await?;
                anyhow::Ok(())
            };
            match aged.await {
                Err(_) if tries < TRIES => tokio::time::sleep(Duration::from_millis(200)).await,
                done => return done,
            }
        }
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
