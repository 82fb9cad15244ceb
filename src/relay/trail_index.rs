//! Keeps the trail's index on time up to date, a part in each round: whoever looks at the last seconds would else read all that came since
//! the last vacuum.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::pg;

/// For how long one round goes on making summaries anew: the observer has other things to do.
const ROUND: Duration = Duration::from_secs(1);

/// How far it is up to date.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TrailIndex {
    /// Summaries may be broken: whoever made some may have died meanwhile, and that makes the index worthless from there on. So many of
    /// the newest ranges were made anew; `None` when all were.
    anew: Option<i32>,
}

impl Default for TrailIndex {
    /// Nothing is known of who was at work before.
    fn default() -> Self {
        Self { anew: Some(0) }
    }
}

impl TrailIndex {
    /// Goes on for a moment; each call to the server within `limit`.
    ///
    /// # Errors
    /// When the server is away. What else fails is logged: looking at the trail costs more then, and nothing else.
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
