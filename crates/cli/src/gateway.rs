//! `oncely gateway`: the idempotency layer in front of an existing HTTP service.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use oncely_config::load_gateway;
use oncely_gateway::Gateway;
use oncely_process::shutdown;
use oncely_process::telemetry;

#[derive(Debug, Args)]
#[command(
    after_help = "One request of a key at a time is sent on, and final answers are replayed. If the gateway dies, or an answer is torn, nobody \
                  knows whether the request took effect: gateway.unknown says whether a retry gets 409 until somebody has looked, or is sent on \
                  with the same key. The login needs the role oncely_worker. Stops on SIGTERM or Ctrl-C: answers what it has begun, then exits 0."
)]
pub(super) struct GatewayArguments {
    /// URL of the service, instead of gateway.upstream: scheme, host and port
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Listen on this address instead of gateway.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

pub(super) async fn run(file: &Path, arguments: GatewayArguments) -> anyhow::Result<ExitCode> {
    let config = load_gateway(file, arguments.upstream.as_deref(), arguments.listen)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), gateway = config.worker.name, "gateway starts");
    let stopped = Gateway(config).run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
