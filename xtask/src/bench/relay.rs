//! Events on their way to RabbitMQ: against what the broker takes from a bare client, and against somebody else's relay.

use super::job::{Job, Publisher};
use super::outcome::Outcome;
use super::round::Rounds;
use super::throughput::rate;

/// Without an order.
pub(crate) async fn to_rabbitmq(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    compare(rounds, "relay_to_rabbitmq", 0, Publisher::Bare).await
}

/// One event after another within each of 1,000 keys.
pub(crate) async fn ordered(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    compare(rounds, "relay_ordered", 1_000, Publisher::Bare).await
}

/// The same number of rows, each side from its own table.
pub(crate) async fn against_outbox_core(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    rounds.stage.add_peer()?;
    compare(rounds, "relay_vs_outbox_core", 0, Publisher::OutboxCore).await
}

async fn compare(
    rounds: &Rounds<'_>,
    name: &'static str,
    ordering_keys: u64,
    baseline: Publisher,
) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::publisher(Publisher::Relay { ordering_keys }, rounds.messages);
    rate(rounds, name, &ours, &Job::publisher(baseline, rounds.messages)).await
}
