//! Readiness of the gateway: without PostgreSQL requests with a key are refused. Also counts the keys that need an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_postgres::{self as pg, PgSettings, Readiness, SessionPool};
use oncely_process::metrics::{GatewayMetrics, Server};
use oncely_process::vitals::Vitals;

/// Interval of the PostgreSQL check.
const INTERVAL: Duration = Duration::from_secs(2);
/// Number of checks between two counts of keys.
const COUNT: u32 = 5;

/// Limit of one check.
const LIMIT: Duration = Duration::from_secs(5);

/// The readiness check.
pub(super) struct ReadinessWatch {
    pub(super) sessions: SessionPool,
    pub(super) vitals: Arc<Vitals>,
    pub(super) metrics: Arc<GatewayMetrics>,
    /// Consumer of the keys.
    pub(super) consumer: String,
    pub(super) settings: PgSettings,
}

impl ReadinessWatch {
    /// Checks until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let beat = self.vitals.liveness.watch("readiness");
        let mut asked: u32 = 0;
        while !stop.is_cancelled() {
            beat.expect(
                INTERVAL + self.settings.longest_connect() + self.settings.client_timeout() * 3 + LIMIT,
            );
            let said = self.ask(asked.is_multiple_of(COUNT)).await;
            // After an outage the keys are counted at once.
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
        // If no session is available in time, requests don't get one either.
        let mut taken = self.sessions.acquire().await?;
        pg::within(LIMIT, pg::process(taken.connection())).await?;
        if counts {
            match pg::within(LIMIT, pg::unknown_keys(taken.connection(), &self.consumer)).await {
                Ok(count) => {
                    self.metrics.unknown_keys.set(f64::from(i32::try_from(count).unwrap_or(i32::MAX)))
                }
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                // Keys can be claimed nevertheless.
                Err(error) => tracing::warn!(
                    error = pg::describe(&error),
                    "cannot count the keys with an unknown outcome"
                ),
            }
        }
        taken.give_back();
        Ok(())
    }
}
