//! Publishes at a fixed rate.

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Connection, ConnectionProperties, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::payment::{Outgoing, Payments, now};

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
    /// Interval of messages that the handler rejects, among those that repeat no other; 0 for none
    #[arg(long, default_value_t = 0)]
    poison_every: u64,
    /// Of ten messages, how many repeat an earlier one, byte for byte
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..10))]
    repeats_of_ten: u64,
    /// Seconds back in which the repeated messages lie; half of them lie within the last one
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    repeat_within: u32,
}

/// Messages that can be sent again: of each the payments before it, from which it is made a second time, and when it was sent.
#[derive(Debug)]
struct Memory {
    sent: VecDeque<(Payments, i64)>,
    random: fastrand::Rng,
    /// Messages that are remembered, and those of a second.
    within: usize,
    recent: usize,
}

impl Memory {
    fn new(arguments: &Arguments) -> Self {
        let recent = arguments.rate as usize;
        let within = if arguments.repeats_of_ten > 0 { recent * arguments.repeat_within as usize } else { 0 };
        Self { sent: VecDeque::new(), random: fastrand::Rng::with_seed(arguments.seed), within, recent }
    }

    fn remember(&mut self, before: Payments, sent_at: i64) {
        if self.within > 0 {
            self.sent.truncate(self.within - 1);
            self.sent.push_front((before, sent_at));
        }
    }

    /// Returns an earlier message once more; `None` if there is none yet.
    fn repeat(&mut self) -> Option<Outgoing> {
        let reach = if self.random.bool() { self.recent } else { self.within }.min(self.sent.len());
        let (before, sent_at) = self.sent.get(self.random.usize(0..reach.max(1)))?;
        Some(before.clone().next(*sent_at))
    }
}

/// A message goes out when its time has come, not when the one before is confirmed: a broker that stalls is not spared. Prints how many
/// different messages there were, and how many of these the handler rejects; they are never repeated.
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
    let mut payments = Payments::new(arguments.seed, arguments.poison_every);
    let mut memory = Memory::new(arguments);
    let (mut different, mut rejected) = (0_u64, 0_u64);
    // One at a time up to 1,000 a second, as independent senders would.
    let mut tick = tokio::time::interval_at(Instant::now(), Duration::from_secs(1) / arguments.rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..arguments.messages {
        tick.tick().await;
        let again = if number % 10 < arguments.repeats_of_ten { memory.repeat() } else { None };
        let message = again.unwrap_or_else(|| {
            let (before, sent_at) = (payments.clone(), now());
            let message = payments.next(sent_at);
            different += 1;
            match payments.last_is_negative() {
                true => rejected += 1,
                false => memory.remember(before, sent_at),
            }
            message
        });
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
    crate::tell(&serde_json::json!({ "different": different, "rejected": rejected }))
}
