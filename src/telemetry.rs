//! Log lines: on stderr, so that stdout is free for data.

use std::io::IsTerminal as _;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogFormat, LogSettings};
use crate::shown;

/// Starts logging. `RUST_LOG` has the last word. Called twice, the first call counts.
pub fn start(settings: &LogSettings) {
    let filter = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        // lapin logs every lost connection as an error of its own; ours say what follows from it.
        .or_else(|| EnvFilter::try_new(format!("{},lapin=off", settings.level)).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let coloured = settings.format == LogFormat::Text
        && std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Lines { coloured })
        .with_target(false);
    let quiet = filter_fn(|metadata| !tells_secrets(metadata.target(), *metadata.level()));
    let started = match settings.format {
        LogFormat::Text => builder.with_ansi(coloured).finish().with(quiet).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(quiet).try_init(),
    };
    // The only reason is an embedding program that logs already.
    let _ = started;
}

/// The AMQP client's finest lines hold whole frames, the password of the handshake and bodies among them, and its URL: they are not
/// logged, whatever RUST_LOG says.
fn tells_secrets(target: &str, level: Level) -> bool {
    let is_of = |name: &str| target.starts_with(name);
    level > Level::INFO && ["lapin", "amq_protocol"].into_iter().any(is_of)
}

/// stderr, a line at a time, without what a value could do to a terminal.
struct Lines {
    coloured: bool,
}

impl std::io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        std::io::stderr().lock().write_all(shown::log_line(&text, self.coloured).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_never_logged() {
        for target in ["lapin::io_loop", "lapin::channels", "amq_protocol_tcp", "amq_protocol::frame"] {
            assert!(tells_secrets(target, Level::TRACE) && tells_secrets(target, Level::DEBUG), "{target}");
            assert!(!tells_secrets(target, Level::INFO), "{target}");
        }
        assert!(!tells_secrets("oncely::worker", Level::TRACE));
    }
}
