//! `oncely relay`, and the program `relay`: publishes events, mirrors committed keys to Redis, and maintains the tables.

use std::path::Path;
use std::process::ExitCode;

use oncely_config::Config;
use oncely_process::shutdown;
use oncely_process::telemetry;
use oncely_relay::relay::Relay;

/// Threads of a relay, which mostly waits for servers: the memory allocator keeps up to 32 MiB of large events for each.
const RELAY_THREADS: usize = 2;

/// Relays until SIGTERM or Ctrl-C.
///
/// # Errors
/// If the configuration is invalid, or does not match the state of the servers.
pub fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::init(&config.log);
    crate::runtime::with_threads(RELAY_THREADS)?.block_on(run_relay(config))
}

async fn run_relay(config: Config) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "relay starts");
    let stopped = Relay::new(config).tell_systemd().run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
