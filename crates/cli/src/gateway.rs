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
    after_help = "Forwards one request of a key at a time, and replays final answers. If the gateway crashes, or an \
                  answer is cut off, it is unknown whether the request took effect: gateway.unknown sets whether a \
                  retry gets 409 until the key is settled, or is forwarded with the same key. The login needs the \
                  role oncely_worker. Stops on SIGTERM or Ctrl-C: answers open requests, then exits 0."
)]
pub(super) struct GatewayArguments {
    /// URL of the service, instead of gateway.upstream: scheme, host and port
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Listen on this address instead of gateway.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

pub(super) async fn run(file: &Path, arguments: GatewayArguments) -> crate::VerbResult {
    let config = load_gateway(file, arguments.upstream.as_deref(), arguments.listen)?;
    telemetry::init(&config.log);
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), gateway = config.worker.name, "gateway starts");
    let stopped = Gateway(config).run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
