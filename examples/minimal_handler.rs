//! The smallest worker of one's own: `cargo run --example minimal_handler`.
//!
//! Needs DATABASE_URL and AMQP_URL, `oncely migrate`, `oncely topology apply --config examples/oncely.toml` and a table
//! `create table seen (tenant text collate "C", key text collate "C")`.

use oncely::handler::handler_fn;
use oncely::{Config, Context, HandlerError, Message, Worker, shutdown, telemetry};

// ANCHOR: worker
// ANCHOR: handler
async fn note(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
    // Commits together with the key of the message, or not at all.
    sqlx::query("insert into seen (tenant, key) values ($1, $2)")
        .bind(message.tenant())
        .bind(message.key())
        .execute(context.connection())
        .await?;
    Ok(())
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::load("examples/oncely.toml".as_ref())?;
    telemetry::init(&config.log);
    let worker = Worker::builder(config).handler("transfers", handler_fn(note)).build()?;
    worker.run(shutdown::on_signal()?).await?;
    Ok(())
}
// ANCHOR_END: worker
