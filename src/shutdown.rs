//! SIGTERM and Ctrl-C.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

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
