//! SIGTERM and Ctrl-C, and how a process stopped.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// `EX_SOFTWARE` of sysexits.h: work was not finished in time, or something failed that should not.
pub(crate) const SOFTWARE: u8 = 70;

/// A token that the first SIGTERM or SIGINT cancels; the second one ends the process at once (exit code 130), which is
/// safe at any moment: what is not committed is rolled back and comes again.
///
/// # Errors
/// When the process may not listen for signals.
pub fn on_signal() -> std::io::Result<CancellationToken> {
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
                std::process::exit(130);
            }
            first = false;
            tracing::info!("stopping: what has begun is finished first");
            stop.cancel();
        }
    });
    Ok(token)
}

/// How a worker or a relay stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
