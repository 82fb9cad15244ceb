//! `bench-outbox`: the relay of outbox-core and outbox-postgres, as their README sets it up, publishing to RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use clap::Parser;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outbox_core::prelude::*;
use outbox_postgres::PostgresOutbox;
use serde_json::value::RawValue;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    #[arg(long)]
    exchange: String,
    /// Ten times the crate's default: its best
    #[arg(long, default_value_t = 1_000)]
    batch: u32,
}

/// The payload goes through as it is: nothing is parsed.
type Body = Box<RawValue>;

struct Rabbit {
    channel: Channel,
    exchange: ShortString,
}

#[async_trait]
impl Transport<Body> for Rabbit {
    /// `Ok` means that the event is sent, so this waits for the confirm.
    async fn publish(&self, event: Event<Body>) -> Result<(), OutboxError> {
        let broker = |error: lapin::Error| OutboxError::BrokerError(error.to_string());
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(event.id.as_uuid().to_string().into())
            .with_content_type("application/json".into());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = event.payload.as_value().get().as_bytes();
        let key = event.event_type.as_str().into();
        let publishing = self.channel.basic_publish(self.exchange.clone(), key, options, body, properties);
        let confirmation = publishing.await.map_err(broker)?.await.map_err(broker)?;
        match confirmation.is_ack() && confirmation.take_message().is_none() {
            true => Ok(()),
            false => Err(OutboxError::BrokerError("refused or returned".to_owned())),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let connection = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut config = OutboxConfig::<Body>::default();
    config.batch_size = arguments.batch;
    let config = Arc::new(config);
    let pool = sqlx::PgPool::connect(&arguments.database).await?;
    let (_running, stop) = tokio::sync::watch::channel(false);
    let manager = OutboxManagerBuilder::new()
        .storage(Arc::new(PostgresOutbox::new(pool, config.clone())))
        .publisher(Arc::new(Rabbit { channel, exchange: arguments.exchange.as_str().into() }))
        .config(config)
        .shutdown_rx(stop)
        .build()?;
    Ok(manager.run().await?)
}
