//! Readiness of the gateway: without PostgreSQL requests with a key are refused. Also counts the keys that need an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_postgres::{self as pg, PgSettings, Readiness, SessionPool};
use oncely_process::metrics::{GatewayMetrics, Server};
use oncely_process::vitals::Vitals;

/// Interval of the PostgreSQL check.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of checks between two counts of keys.
const CHECKS_PER_COUNT: u32 = 5;

/// Limit of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Checks PostgreSQL until `stop`, and sets the readiness, the metric of its connection and, at every fifth check, of unknown keys.
    pub(super) async fn run(self, stop: CancellationToken) {
        let beat = self.vitals.liveness.watch("readiness");
        let mut check_count: u32 = 0;
        while !stop.is_cancelled() {
            beat.begin_step(
                CHECK_INTERVAL
                    + self.settings.max_connect_time()
                    + self.settings.client_timeout() * 3
                    + CHECK_TIMEOUT,
            );
            let result = self.check_postgres(check_count.is_multiple_of(CHECKS_PER_COUNT)).await;
            // After an outage the keys are counted at once.
            check_count = if result.is_ok() { check_count.wrapping_add(1) } else { 0 };
            self.vitals.metrics.set_connected(Server::Postgres, result.is_ok());
            self.vitals.set_readiness(match result {
                Ok(()) => Readiness::Ready,
                Err(error) => Readiness::Unready(format!("PostgreSQL: {error}")),
            });
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Queries PostgreSQL on a session of the pool; if `is_count_due`, also sets the metric of the unknown keys.
    async fn check_postgres(&self, is_count_due: bool) -> Result<(), pg::NoSession> {
        // If no session is available within the pool's limit, requests don't get one either.
        let mut session = self.sessions.acquire().await?;
        pg::wait_for_answer(CHECK_TIMEOUT, pg::read_backend_pid(session.connection())).await?;
        if is_count_due {
            match pg::wait_for_answer(
                CHECK_TIMEOUT,
                pg::count_unknown_keys(session.connection(), &self.consumer),
            )
            .await
            {
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
        session.give_back();
        Ok(())
    }
}
