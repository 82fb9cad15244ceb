//! Log lines: on stderr, so that stdout is free for data.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSettings};

/// Starts logging. `RUST_LOG` has the last word. Called twice, the first call counts.
pub fn start(settings: &LogSettings) {
    let filter = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        // lapin logs every lost connection as an error of its own; ours say what follows from it.
        .or_else(|| EnvFilter::try_new(format!("{},lapin=off", settings.level)).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let started = match settings.format {
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    // The only reason is an embedding program that logs already.
    let _ = started;
}
