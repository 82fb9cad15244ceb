//! Publishes at a fixed rate.

use std::time::Duration;

use clap::Args;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Connection, ConnectionProperties, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::payment::{Payments, now};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    #[arg(long)]
    queue: String,
    #[arg(long)]
    messages: u64,
    #[arg(long)]
    seed: u64,
    /// Messages a second
    #[arg(long)]
    rate: u32,
}

/// A message goes out when its time has come, not when the one before is confirmed: a broker that stalls is not spared.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let connection = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let (sender, mut confirms) = mpsc::unbounded_channel::<PublisherConfirm>();
    let confirmed = tokio::spawn(async move {
        while let Some(confirm) = confirms.recv().await {
            anyhow::ensure!(confirm.await?.is_ack(), "the broker refused a message");
        }
        Ok(())
    });
    let mut payments = Payments::new(arguments.seed, 0);
    // One at a time up to 1,000 a second, as independent senders would.
    let mut tick = tokio::time::interval_at(Instant::now(), Duration::from_secs(1) / arguments.rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for _ in 0..arguments.messages {
        tick.tick().await;
        let message = payments.next(now());
        let publishing = channel.basic_publish(
            "".into(),
            arguments.queue.as_str().into(),
            BasicPublishOptions::default(),
            &message.body,
            message.properties,
        );
        sender.send(publishing.await?)?;
    }
    drop(sender);
    confirmed.await??;
    connection.close(200, "done".into()).await?;
    Ok(())
}
