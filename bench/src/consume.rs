//! The broker's limit: a consumer that does nothing but acknowledge, many at a time, as a worker does.

use clap::Args;
use futures::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    #[arg(long)]
    queue: String,
    #[arg(long, default_value_t = 2_000)]
    prefetch: u16,
    /// Messages an acknowledgement
    #[arg(long, default_value_t = 500)]
    batch: u64,
}

/// Consumes until it is killed. What is left of the last batch stays unacknowledged.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let broker = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = broker.create_channel().await?;
    channel.basic_qos(arguments.prefetch, BasicQosOptions::default()).await?;
    let mut consumer = channel
        .basic_consume(
            arguments.queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let mut count = 0_u64;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        count += 1;
        if count.is_multiple_of(arguments.batch) {
            delivery.ack(BasicAckOptions { multiple: true }).await?;
        }
    }
    anyhow::bail!("the consumer was cancelled")
}
