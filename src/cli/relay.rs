//! `oncely relay`, and the program `relay`: publishes events, mirrors what committed to Redis, and keeps the tables.

use std::path::Path;
use std::process::ExitCode;

use crate::config::Config;
use crate::relay::Relay;
use crate::{shutdown, telemetry};

/// Relays until SIGTERM or Ctrl-C.
///
/// # Errors
/// What is wrong with the configuration, or with what the servers hold.
pub async fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "relay starts");
    let stopped = Relay::new(config).tell_systemd().run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
