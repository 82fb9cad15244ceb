//! A worker of one's own: a handler in Rust, one INSERT per message.

use std::path::PathBuf;

use clap::Args;
use oncely::config::Config;
use oncely::handler::{Context, Handler, HandlerResult, Incoming};
use oncely::worker::Worker;
use oncely::{shutdown, telemetry};

use crate::payment::Payment;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "ONCELY_CONFIG")]
    config: PathBuf,
}

struct Payments;

impl Handler for Payments {
    async fn handle(&self, context: &mut Context<'_>, message: &Incoming<'_>) -> HandlerResult {
        let payment: Payment = message.json()?;
        sqlx::query(
            "insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
             values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(message.identity.tenant.as_str())
        .bind(message.identity.key.as_str())
        .bind(payment.customer)
        .bind(payment.amount)
        .bind(payment.currency)
        .bind(payment.sent_at)
        .execute(context.connection())
        .await?;
        Ok(None)
    }
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    telemetry::start(&config.log);
    Worker::builder(config).handler("payments", Payments).build()?.run(shutdown::on_signal()?).await?;
    Ok(())
}
