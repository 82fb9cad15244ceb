//! `oncely relay`, and the program `relay`: publishes events, mirrors committed keys to Redis, and maintains the tables.

use std::path::Path;
use std::process::ExitCode;

use oncely_config::Config;
use oncely_process::shutdown;
use oncely_process::telemetry;
use oncely_relay::relay::Relay;

/// Relays until SIGTERM or Ctrl-C.
///
/// # Errors
/// If the configuration is invalid, or does not match the state of the servers.
pub async fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "relay starts");
    let stopped = Relay::new(config).tell_systemd().run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
