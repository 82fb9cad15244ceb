//! `oncely worker`, and the program `worker`: consumes the queues of the configuration and runs their SQL functions.

use std::path::Path;
use std::process::ExitCode;

use crate::config::Config;
use crate::worker::Worker;
use crate::{shutdown, telemetry};

/// Works until SIGTERM or Ctrl-C, on a runtime with as many threads as `worker.threads` says.
///
/// # Errors
/// What is wrong with the configuration, or with what the servers hold.
pub fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::start(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::try_from(config.worker.threads)?)
        .enable_all()
        .build()?;
    runtime.block_on(work(config))
}

async fn work(config: Config) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), worker = config.worker.name, "worker starts");
    let stopped = Worker::builder(config).tell_systemd().build()?.run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
