//! A worker of one's own: a handler in Rust, with one INSERT per message or one per batch.

use std::path::PathBuf;

use clap::Args;
use oncely::{BatchHandler, Config, Context, Handler, HandlerError, Message, Worker, shutdown, telemetry};

use crate::payment::Payment;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "ONCELY_CONFIG")]
    config: PathBuf,
    /// One INSERT per batch
    #[arg(long)]
    batch: bool,
}

struct Payments;

impl Handler for Payments {
    type Response = ();

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
        let payment: Payment = message.json()?;
        sqlx::query(
            "insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
             values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(message.tenant())
        .bind(message.key())
        .bind(payment.customer)
        .bind(payment.amount)
        .bind(payment.currency)
        .bind(payment.sent_at)
        .execute(context.connection())
        .await?;
        Ok(())
    }
}

impl BatchHandler for Payments {
    type Responses = ();

    async fn handle_batch(
        &self,
        mut context: Context<'_>,
        messages: &[Message<'_>],
    ) -> Result<(), HandlerError> {
        let payments = messages.iter().map(|message| message.json::<Payment>());
        let payments = payments.collect::<Result<Vec<_>, _>>()?;
        let tenants: Vec<&str> = messages.iter().map(|message| message.tenant()).collect();
        let keys: Vec<&str> = messages.iter().map(|message| message.key()).collect();
        sqlx::query(
            "insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
             select p.tenant, p.key, p.customer, p.amount, p.currency, p.sent_at
             from unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::bigint[])
                as p (tenant, key, customer, amount, currency, sent_at)",
        )
        .bind(tenants)
        .bind(keys)
        .bind(payments.iter().map(|payment| payment.customer).collect::<Vec<_>>())
        .bind(payments.iter().map(|payment| payment.amount).collect::<Vec<_>>())
        .bind(payments.iter().map(|payment| payment.currency.as_str()).collect::<Vec<_>>())
        .bind(payments.iter().map(|payment| payment.sent_at).collect::<Vec<_>>())
        .execute(context.connection())
        .await?;
        Ok(())
    }
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    telemetry::init(&config.log);
    let worker = Worker::builder(config);
    let worker = match arguments.batch {
        true => worker.batch_handler("payments", Payments),
        false => worker.handler("payments", Payments),
    };
    worker.build()?.run(shutdown::on_signal()?).await?;
    Ok(())
}
