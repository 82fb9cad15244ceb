//! Fills a queue; with an exchange, as the relay would.

use std::collections::VecDeque;

use clap::Args;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Connection, ConnectionProperties, PublisherConfirm};

use crate::payment::Payments;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    /// The queue; with an exchange, the routing key
    #[arg(long)]
    queue: String,
    /// Publish there, with the properties of an event, and stay until killed, so that the CPU time can still be read
    #[arg(long, default_value = "")]
    exchange: String,
    #[arg(long)]
    messages: u64,
    /// The same seed gives the same messages
    #[arg(long)]
    seed: u64,
    /// Each so many-th message is one that the handler rejects
    #[arg(long, default_value_t = 0)]
    poison_every: u64,
    /// Of ten messages, how many the handler refuses
    #[arg(long, default_value_t = 0)]
    refused_of_ten: u64,
}

/// Unconfirmed at once.
const WINDOW: usize = 1_000;

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let connection = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut payments =
        Payments::new(arguments.seed, arguments.poison_every).with_negative(arguments.refused_of_ten);
    let mut waiting: VecDeque<PublisherConfirm> = VecDeque::with_capacity(WINDOW);
    for number in 0..=arguments.messages {
        let last = number == arguments.messages;
        while waiting.len() >= WINDOW || (last && !waiting.is_empty()) {
            let Some(confirm) = waiting.pop_front() else { break };
            let confirmation = confirm.await?;
            anyhow::ensure!(confirmation.is_ack(), "the broker refused a message");
            anyhow::ensure!(confirmation.take_message().is_none(), "a message found no queue");
        }
        if !last {
            let message = match arguments.exchange.is_empty() {
                true => payments.next(0),
                false => payments.next(0).into_event(),
            };
            let publishing = channel.basic_publish(
                arguments.exchange.as_str().into(),
                arguments.queue.as_str().into(),
                options,
                &message.body,
                message.properties,
            );
            waiting.push_back(publishing.await?);
        }
    }
    if !arguments.exchange.is_empty() {
        std::future::pending::<()>().await;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}
