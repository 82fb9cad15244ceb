//! A worker of one's own whose handler runs under leases: it does nothing, for a while.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::{Config, HandlerError, Message, Worker, shutdown, telemetry};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "ONCELY_CONFIG")]
    config: PathBuf,
    /// How long each run takes, in milliseconds: a call to somebody else
    #[arg(long, default_value_t = 0)]
    call: u64,
}

struct Calls(Duration);

impl LeasedHandler for Calls {
    async fn handle(&self, _: &Lease, _: Message<'_>) -> Result<Finish, HandlerError> {
        if !self.0.is_zero() {
            tokio::time::sleep(self.0).await;
        }
        Ok(Finish::done())
    }
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    telemetry::init(&config.log);
    let worker = Worker::builder(config);
    let worker = worker.leased_handler("payments", Calls(Duration::from_millis(arguments.call))).build()?;
    worker.run(shutdown::on_signal()?).await?;
    Ok(())
}
