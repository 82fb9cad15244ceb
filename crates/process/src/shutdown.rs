//! SIGTERM and Ctrl-C, and how a process stopped.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// `EX_SOFTWARE` of sysexits.h: work was not finished within `worker.shutdown`, or an internal error occurred.
pub const SOFTWARE_ERROR_CODE: u8 = 70;
/// Exit code after a second signal: 128 and SIGINT's number, as in shells.
const SECOND_SIGNAL_CODE: i32 = 130;

/// Returns a future that completes at the first SIGTERM or SIGINT, polled or not; the second one ends the process at once (exit code 130),
/// which is safe at any moment: uncommitted work is rolled back and redelivered.
///
/// # Errors
/// If signal handlers can't be installed.
pub fn on_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let token = CancellationToken::new();
    let stop = token.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut first = true;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if !first {
                tracing::warn!("second signal; exiting at once");
                std::process::exit(SECOND_SIGNAL_CODE);
            }
            first = false;
            tracing::info!("stopping; finishing work in progress");
            stop.cancel();
        }
    });
    Ok(token.cancelled_owned())
}

/// Spawns a task that cancels a token when `stop` completes or panics. Returns the token, and the handle of the task, which ends it when
/// dropped.
pub fn cancel_when(
    stop: impl Future<Output = ()> + Send + 'static,
) -> (CancellationToken, AbortOnDropHandle<()>) {
    let token = CancellationToken::new();
    // A panic of the future cancels it, too.
    let guard = token.clone().drop_guard();
    let waiting = tokio::spawn(async move {
        stop.await;
        drop(guard);
    });
    (token, AbortOnDropHandle::new(waiting))
}

/// How a worker or a relay stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopOutcome {
    /// All work that has begun is finished and settled.
    Clean,
    /// Some work was not finished within `worker.shutdown`; its messages are redelivered.
    Deadline,
    /// An internal error occurred; its messages are redelivered.
    Failed,
}

impl StopOutcome {
    /// Returns the process's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Deadline | Self::Failed => SOFTWARE_ERROR_CODE,
        }
    }
}
