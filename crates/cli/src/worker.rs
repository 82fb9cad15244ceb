//! `oncely worker`, and the program `worker`: consumes the queues of the configuration and runs their SQL functions.

use std::path::Path;
use std::process::ExitCode;

use oncely_config::Config;
use oncely_process::shutdown;
use oncely_process::telemetry;
use oncely_worker::worker::Worker;

/// Works until SIGTERM or Ctrl-C, on a runtime with `worker.threads` threads.
///
/// # Errors
/// If the configuration is invalid, or does not match the state of the servers.
pub fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::init(&config.log);
    crate::runtime::with_threads(usize::try_from(config.worker.threads)?)?.block_on(run_worker(config))
}

async fn run_worker(config: Config) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), worker = config.worker.name, "worker starts");
    let stopped = Worker::builder(config).tell_systemd().build()?.run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
