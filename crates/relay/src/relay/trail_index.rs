//! Keeps the trail's index on time up to date, a part in each round: without it a query of the last seconds would read all rows since the
//! last vacuum.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use oncely_postgres as pg;

/// Time for which one round makes summaries again: the observer has other work.
const ROUND_TIME: Duration = Duration::from_secs(1);

/// Progress of bringing the trail's index up to date.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TrailIndex {
    /// Number of the newest ranges whose summaries were made again; `None` when all were. Summaries may be broken: a process that made some
    /// may have crashed meanwhile, which makes the index worthless from there on.
    renewed_ranges: Option<i32>,
}

impl Default for TrailIndex {
    /// Assumes nothing about earlier processes.
    fn default() -> Self {
        Self { renewed_ranges: Some(0) }
    }
}

impl TrailIndex {
    /// Brings the index up to date for up to [`ROUND_TIME`]; after a failure the next round starts from the beginning. `limit`: time limit
    /// of each call to the server.
    ///
    /// # Errors
    /// If the server is away. Other errors are logged: they only make queries of the trail more expensive.
    pub(super) async fn bring_up_to_date(
        &mut self,
        connection: &mut PgConnection,
        limit: Duration,
    ) -> Result<(), sqlx::Error> {
        match self.run_round(connection, limit).await {
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

    /// Makes summaries of the trail for up to [`ROUND_TIME`]. `limit`: time limit of each call to the server.
    async fn run_round(&mut self, connection: &mut PgConnection, limit: Duration) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        if self.renewed_ranges != Some(0) {
            pg::wait_for_answer(limit, pg::summarize_trail(connection, false, 0)).await?;
        }
        while let Some(done) = self.renewed_ranges
            && began.elapsed() < ROUND_TIME
        {
            self.renewed_ranges =
                pg::wait_for_answer(limit, pg::summarize_trail(connection, true, done)).await?;
            if self.renewed_ranges == Some(done) {
                // A vacuum is at work there.
                break;
            }
        }
        Ok(())
    }
}
