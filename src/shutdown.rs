//! SIGTERM and Ctrl-C, and how a process stopped.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// `EX_SOFTWARE` of sysexits.h: work was not finished in time, or something failed that should not.
pub(crate) const SOFTWARE: u8 = 70;
/// A second signal ended the process: 128 and SIGINT's number, as shells count.
const SECOND_SIGNAL: i32 = 130;

/// Is over with the first SIGTERM or SIGINT, awaited or not; the second one ends the process at once (exit code 130), which is
/// safe at any moment: what is not committed is rolled back and comes again.
///
/// # Errors
/// When the process may not listen for signals.
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
                tracing::warn!("second signal: stopping at once");
                std::process::exit(SECOND_SIGNAL);
            }
            first = false;
            tracing::info!("stopping: what has begun is finished first");
            stop.cancel();
        }
    });
    Ok(token.cancelled_owned())
}

/// Cancels a token when `stop` is over, for as long as the handle lives.
pub(crate) fn when(
    stop: impl Future<Output = ()> + Send + 'static,
) -> (CancellationToken, AbortOnDropHandle<()>) {
    let token = CancellationToken::new();
    // A future that panics stops, too.
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
pub enum Stopped {
    /// All work that was begun is finished and settled.
    Clean,
    /// Some work was not finished within `worker.shutdown`; its messages come again.
    Deadline,
    /// A part of it failed that never should; its messages come again.
    Failed,
}

impl Stopped {
    /// The process's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Deadline | Self::Failed => SOFTWARE,
        }
    }
}
