//! Is the gateway ready? Where PostgreSQL does not answer, requests with a key are refused.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::metrics::Server;
use crate::pg::{self, PgSettings, Readiness, SessionPool};
use crate::vitals::Vitals;

/// How often PostgreSQL is asked.
const INTERVAL: Duration = Duration::from_secs(2);

/// Longest wait for its answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Whoever looks.
pub(super) struct Watch {
    pub(super) sessions: SessionPool,
    pub(super) vitals: Arc<Vitals>,
    pub(super) settings: PgSettings,
}

impl Watch {
    /// Looks until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let beat = self.vitals.liveness.watch("readiness");
        while !stop.is_cancelled() {
            beat.expect(INTERVAL + self.settings.longest_connect() + self.settings.client_timeout() * 3);
            let said = self.ask().await;
            self.vitals.metrics.set_connected(Server::Postgres, said.is_ok());
            self.vitals.set_readiness(match said {
                Ok(()) => Readiness::Ready,
                Err(error) => Readiness::Unready(format!("PostgreSQL: {error}")),
            });
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    async fn ask(&self) -> Result<(), pg::NoSession> {
        // One that is not to be had in time is none for requests either.
        let mut taken = self.sessions.take().await?;
        pg::within(LIMIT, pg::process(taken.connection())).await?;
        taken.give_back();
        Ok(())
    }
}
