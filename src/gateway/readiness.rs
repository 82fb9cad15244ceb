//! Is the gateway ready? Where PostgreSQL does not answer, requests with a key are refused. And how many keys wait for somebody to look?

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::metrics::{GatewayMetrics, Server};
use crate::pg::{self, PgSettings, Readiness, SessionPool};
use crate::vitals::Vitals;

/// How often PostgreSQL is asked.
const INTERVAL: Duration = Duration::from_secs(2);
/// So many times it is asked until keys are counted again.
const COUNT: u32 = 5;

/// Longest wait for its answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Whoever looks.
pub(super) struct Watch {
    pub(super) sessions: SessionPool,
    pub(super) vitals: Arc<Vitals>,
    pub(super) metrics: Arc<GatewayMetrics>,
    /// Of the keys.
    pub(super) consumer: String,
    pub(super) settings: PgSettings,
}

impl Watch {
    /// Looks until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let beat = self.vitals.liveness.watch("readiness");
        let mut asked: u32 = 0;
        while !stop.is_cancelled() {
            beat.expect(
                INTERVAL + self.settings.longest_connect() + self.settings.client_timeout() * 3 + LIMIT,
            );
            let said = self.ask(asked.is_multiple_of(COUNT)).await;
            // After an outage it is counted at once.
            asked = if said.is_ok() { asked.wrapping_add(1) } else { 0 };
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

    async fn ask(&self, counts: bool) -> Result<(), pg::NoSession> {
        // One that is not to be had in time is none for requests either.
        let mut taken = self.sessions.take().await?;
        pg::within(LIMIT, pg::process(taken.connection())).await?;
        if counts {
            match pg::within(LIMIT, pg::unknown_keys(taken.connection(), &self.consumer)).await {
                Ok(count) => {
                    self.metrics.unknown_keys.set(f64::from(i32::try_from(count).unwrap_or(i32::MAX)))
                }
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                // Keys are claimed all the same.
                Err(error) => tracing::warn!(
                    error = pg::describe(&error),
                    "keys of which nobody knows whether they took effect can't be counted"
                ),
            }
        }
        taken.give_back();
        Ok(())
    }
}
