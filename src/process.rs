//! The start of a process: worker, relay and gateway begin the same way.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;
use crate::config::{LogSettings, Problems, WorkerSettings};
use crate::pg::{Readiness, tell_server_texts};
use crate::shutdown::{self, Stopped};
use crate::vitals::{Program, Vitals};
use crate::watchdog::{self, Watchdog};

/// Holds a process that has started. Its watchdog, and the task that waits for the order to stop, end when this is dropped.
pub(crate) struct Lifecycle {
    /// Cancelled when the process is told to stop.
    pub(crate) stop: CancellationToken,
    pub(crate) vitals: Arc<Vitals>,
    _waiting: AbortOnDropHandle<()>,
    _watchdog: Watchdog,
}

/// Tells whether an attempt to start found all that it needs.
pub(crate) enum Attempt<T> {
    Ready(T),
    /// Names the servers and states that it waits for.
    Waits(String),
}

impl Lifecycle {
    /// Starts the watchdog and the listener for metrics and health. Breaks where `stop` is over before the address is free, or the
    /// address stays taken.
    ///
    /// # Errors
    /// When a thread can't be started, or the process can't listen.
    pub(crate) async fn start(
        program: Program<'_>,
        settings: &WorkerSettings,
        log: &LogSettings,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<ControlFlow<Stopped, Self>, Problems> {
        let (stop, waiting) = shutdown::when(stop);
        tell_server_texts(log.server_errors);
        let watchdog = watchdog::watch(settings.watchdog)?;
        let Some(vitals) = Vitals::start(program, &stop).await? else {
            // Not as a process whose configuration is refused: started again, it may well find the address free.
            let stopped = if stop.is_cancelled() { Stopped::Clean } else { Stopped::Failed };
            return Ok(ControlFlow::Break(stopped));
        };
        Ok(ControlFlow::Continue(Self { stop, vitals, _waiting: waiting, _watchdog: watchdog }))
    }

    /// Repeats an attempt to start until it is ready. Returns `None` when the process is told to stop before.
    ///
    /// # Errors
    /// The attempt's, at once.
    pub(crate) async fn until_ready<T, E, F>(&self, mut attempt: impl FnMut() -> F) -> Result<Option<T>, E>
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
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}
