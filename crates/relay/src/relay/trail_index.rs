//! Keeps the trail's index on time up to date, a part in each round: without it a query of the last seconds would read all rows since the
//! last vacuum.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use oncely_postgres as pg;

/// Time for which one round makes summaries again: the observer has other work.
const ROUND: Duration = Duration::from_secs(1);

/// Progress of bringing it up to date.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TrailIndex {
    /// Number of the newest ranges whose summaries were made again; `None` when all were. Summaries may be broken: a process that made some may have
    /// crashed meanwhile, which makes the index worthless from there on.
    anew: Option<i32>,
}

impl Default for TrailIndex {
    /// Assumes nothing about earlier processes.
    fn default() -> Self {
        Self { anew: Some(0) }
    }
}

impl TrailIndex {
    /// Continues for a moment; each call to the server within `limit`.
    ///
    /// # Errors
    /// When the server is away. Other errors are logged: they only make queries of the trail more expensive.
    pub(super) async fn bring_up_to_date(
        &mut self,
        connection: &mut PgConnection,
        limit: Duration,
    ) -> Result<(), sqlx::Error> {
        match self.round(connection, limit).await {
            Err(error) => {
                *self = Self::default();
                if pg::is_outage(&error) {
                    return Err(error);
                }
                tracing::debug!(error = pg::describe(&error), "the trail's index was not brought up to date");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn round(&mut self, connection: &mut PgConnection, limit: Duration) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        if self.anew != Some(0) {
            pg::within(limit, pg::summarize_trail(connection, false, 0)).await?;
        }
        while let Some(done) = self.anew
            && began.elapsed() < ROUND
        {
            self.anew = pg::within(limit, pg::summarize_trail(connection, true, done)).await?;
            if self.anew == Some(done) {
                // A vacuum is at work there.
                break;
            }
        }
        Ok(())
    }
}
