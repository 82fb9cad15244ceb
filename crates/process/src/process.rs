//! Start of a process, common to workers, relays and gateways.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::shutdown::{self, StopOutcome};
use crate::vitals::{Program, Vitals};
use crate::watchdog::{self, Watchdog};
use oncely_config::{LogSettings, Problems, WorkerSettings};
use oncely_core::backoff::Backoff;
use oncely_postgres::{Readiness, set_server_texts_shown};

/// A process that has started. Its watchdog, and the task that waits for `stop`, end when this is dropped.
pub struct Lifecycle {
    /// Cancelled when the process must stop.
    pub stop: CancellationToken,
    pub vitals: Arc<Vitals>,
    _waiting: AbortOnDropHandle<()>,
    _watchdog: Watchdog,
}

/// Result of an attempt to start.
pub enum Attempt<T> {
    Ready(T),
    /// Servers and states that it waits for.
    Waits(String),
}

impl Lifecycle {
    /// Starts a process: its watchdog, and its listener for metrics and health. Breaks if `stop` completes before the address is free, or
    /// the address stays in use.
    ///
    /// # Errors
    /// If a thread can't be started, or the process can't listen.
    pub async fn start(
        program: Program<'_>,
        settings: &WorkerSettings,
        log: &LogSettings,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<ControlFlow<StopOutcome, Self>, Problems> {
        let (stop, waiting) = shutdown::cancel_when(stop);
        set_server_texts_shown(log.server_errors);
        let watchdog = watchdog::start_or_report(settings.watchdog)?;
        let Some(vitals) = Vitals::start(program, &stop).await? else {
            // Not treated as a refused configuration: after a restart the address may be free.
            let stopped = if stop.is_cancelled() { StopOutcome::Clean } else { StopOutcome::Failed };
            return Ok(ControlFlow::Break(stopped));
        };
        Ok(ControlFlow::Continue(Self { stop, vitals, _waiting: waiting, _watchdog: watchdog }))
    }

    /// Retries an attempt to start, with growing pauses, until it is ready; sets the readiness to the reason of each wait. Returns `None`
    /// if the process must stop before.
    ///
    /// # Errors
    /// If an attempt fails, with its error: it is not retried.
    pub async fn wait_until_ready<T, E, F>(&self, mut attempt: impl FnMut() -> F) -> Result<Option<T>, E>
    where
        F: Future<Output = Result<Attempt<T>, E>>,
    {
        let mut backoff = Backoff::default();
        loop {
            match attempt().await? {
                Attempt::Ready(ready) => return Ok(Some(ready)),
                Attempt::Waits(reason) => self.vitals.set_readiness(Readiness::Starting(reason)),
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
    }
}
