//! Log lines on stderr, so that stdout is free for data.

use std::io::IsTerminal as _;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use oncely_config::{LogFormat, LogSettings};
use oncely_core::shown;

/// Installs the process's log subscriber, which writes to stderr. A valid `RUST_LOG` replaces the configured level. Does nothing if a
/// subscriber is installed.
pub fn init(settings: &LogSettings) {
    let filter = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        // lapin logs every lost connection as an error; Oncely's own lines report the consequences.
        .or_else(|| EnvFilter::try_new(format!("{},lapin=off", settings.level)).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let coloured = settings.format == LogFormat::Text
        && std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || StderrLines { coloured })
        .with_target(false);
    let quiet = filter_fn(|metadata| !may_hold_secrets(metadata.target(), *metadata.level()));
    let started = match settings.format {
        LogFormat::Text => builder.with_ansi(coloured).finish().with(quiet).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(quiet).try_init(),
    };
    // Fails only if an embedding program logs already.
    let _ = started;
}

/// Returns whether lines of this target and level may hold secrets: the AMQP client's debug lines hold whole frames, including the
/// handshake's password and bodies, and its URL; its warnings of returned messages hold those messages. They are never logged, regardless
/// of RUST_LOG.
fn may_hold_secrets(target: &str, level: Level) -> bool {
    let is_of = |name: &str| target.starts_with(name);
    is_of("lapin::returned_messages")
        || level > Level::INFO && ["lapin", "amq_protocol"].into_iter().any(is_of)
}

/// Writes lines to stderr, with terminal control characters escaped.
struct StderrLines {
    coloured: bool,
}

impl std::io::Write for StderrLines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        std::io::stderr().lock().write_all(shown::escape_log_line(&text, self.coloured).as_bytes())?;
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
            assert!(
                may_hold_secrets(target, Level::TRACE) && may_hold_secrets(target, Level::DEBUG),
                "{target}"
            );
            assert!(!may_hold_secrets(target, Level::INFO), "{target}");
        }
        assert!(!may_hold_secrets("oncely::worker", Level::TRACE));
        assert!(may_hold_secrets("lapin::returned_messages", Level::WARN), "its message, as it came");
    }
}
