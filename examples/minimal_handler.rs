//! The smallest worker of one's own: `cargo run --example minimal_handler`.
//!
//! Needs DATABASE_URL and AMQP_URL, `oncely migrate`, `oncely topology apply --config examples/oncely.toml` and a table
//! `create table seen (tenant text collate "C", key text)`.

use oncely::config::Config;
use oncely::handler::handler_fn;
use oncely::worker::Worker;
use oncely::{shutdown, telemetry};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::load("examples/oncely.toml".as_ref())?;
    telemetry::start(&config.log);
    let handler = handler_fn(|context, message| {
        Box::pin(async move {
            // Commits together with the key of the message, or not at all.
            sqlx::query("insert into seen (tenant, key) values ($1, $2)")
                .bind(message.identity.tenant.as_str())
                .bind(message.identity.key.as_str())
                .execute(context.connection())
                .await?;
            Ok(None)
        })
    });
    Worker::builder(config).handler("transfers", handler).build()?.run(shutdown::on_signal()?).await?;
    Ok(())
}
