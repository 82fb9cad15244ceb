//! How fast, and at what cost: a full queue until it is empty.

use serde_json::json;

use super::case::find;
use super::job::{Consumer, Handler, Job, Keys, Ours, QueueType};
use super::measured::Measured;
use super::outcome::{Outcome, Side, rounded};
use super::round::Rounds;

/// Ratios round by round.
pub(crate) fn ratios(above: &Side, below: &Side, of: impl Fn(&Measured) -> f64) -> Vec<f64> {
    above.0.iter().zip(&below.0).map(|(above, below)| of(above) / of(below)).collect()
}

/// Classic queue, all on: rate, CPU, WAL.
pub(crate) async fn classic(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let naive = Job::naive(QueueType::Classic, rounds.messages);
    let (us, them) = rounds.alternate("e2e_classic_full", &ours, &naive).await?;
    let mut outcomes = Vec::new();
    outcomes.extend(find("e2e_classic_full").map(|case| {
        Outcome::new(case, ratios(&us, &them, |run| run.rate))
            .of(&us, &them)
            .note("drained_after_seconds", json!(rounded(us.figure(|run| run.drained_after).median())))
    }));
    outcomes.extend(
        find("cpu_per_message").map(|case| Outcome::new(case, ratios(&them, &us, Measured::total_cpu))),
    );
    outcomes
        .extend(find("wal_per_message").map(|case| Outcome::new(case, ratios(&us, &them, |run| run.wal))));
    outcomes
        .extend(find("mirror_drain").map(|case| Outcome::new(case, us.figure(|run| run.drained_after).0)));
    Ok(outcomes)
}

/// Against the baseline with a table of keys that has no more than it needs.
pub(crate) async fn lean(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let naive =
        Job { consumer: Consumer::Naive(Keys::Lean), ..Job::naive(QueueType::Classic, rounds.messages) };
    let (us, them) = rounds.alternate("e2e_vs_lean", &ours, &naive).await?;
    let rate =
        find("e2e_vs_lean").map(|case| Outcome::new(case, ratios(&us, &them, |run| run.rate)).of(&us, &them));
    let wal = find("wal_vs_lean").map(|case| Outcome::new(case, ratios(&us, &them, |run| run.wal)));
    Ok(rate.into_iter().chain(wal).collect())
}

/// The same on a quorum queue.
pub(crate) async fn quorum(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::ours(Ours::full(Handler::Batch), QueueType::Quorum, rounds.messages);
    let naive = Job::naive(QueueType::Quorum, rounds.messages);
    let (us, them) = rounds.alternate("e2e_quorum_full", &ours, &naive).await?;
    let cpu = us.0.iter().map(Measured::total_cpu).collect();
    let cpu = find("cpu_quorum").map(|case| Outcome::new(case, cpu));
    let rate = find("e2e_quorum_full")
        .map(|case| Outcome::new(case, ratios(&us, &them, |run| run.rate)).of(&us, &them));
    Ok(rate.into_iter().chain(cpu).collect())
}

/// Alternates, and compares the rates.
pub(crate) async fn rate(
    rounds: &Rounds<'_>,
    name: &'static str,
    ours: &Job,
    baseline: &Job,
) -> anyhow::Result<Vec<Outcome>> {
    let (us, them) = rounds.alternate(name, ours, baseline).await?;
    let outcome =
        find(name).map(|case| Outcome::new(case, ratios(&us, &them, |run| run.rate)).of(&us, &them));
    Ok(outcome.into_iter().collect())
}

/// One SQL function call per message.
pub(crate) async fn per_message(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::ours(Ours::full(Handler::PerMessage), QueueType::Classic, rounds.messages);
    rate(rounds, "e2e_per_message_sql", &ours, &Job::naive(QueueType::Classic, rounds.messages)).await
}

/// A handler in Rust.
pub(crate) async fn rust(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let ours = Job::ours(Ours::full(Handler::Rust), QueueType::Classic, rounds.messages / 2);
    rate(rounds, "e2e_rust_handler", &ours, &Job::naive(QueueType::Classic, rounds.messages)).await
}

/// One message in a hundred that the handler rejects.
pub(crate) async fn poison(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let clean = Job::ours(Ours::full(Handler::StrictBatch), QueueType::Classic, rounds.messages);
    let poisoned = Job { poison_every: 100, ..clean.clone() };
    rate(rounds, "poison_1pct", &poisoned, &clean).await
}

/// One message in a hundred whose branch of the handler misses its table, among others that succeed.
pub(crate) async fn environment(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let clean = Job::ours(Ours::full(Handler::BranchBatch), QueueType::Classic, rounds.messages);
    let broken = Job { poison_every: 100, ..clean.clone() };
    rate(rounds, "env_1pct", &broken, &clean).await
}

/// What it costs to be looked at.
pub(crate) async fn metrics(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let silent = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let told = Ours { metrics: true, ..Ours::full(Handler::Batch) };
    let told = Job::ours(told, QueueType::Classic, rounds.messages);
    let (us, them) = rounds.alternate("metrics_cost", &told, &silent).await?;
    let ours = |run: &Measured| run.cpu_of("worker") + run.cpu_of("relay");
    let outcome =
        find("metrics_cost").map(|case| Outcome::new(case, ratios(&us, &them, ours)).of(&us, &them));
    Ok(outcome.into_iter().collect())
}

/// More workers on the same queue.
pub(crate) async fn workers(
    rounds: &Rounds<'_>,
    name: &'static str,
    count: usize,
) -> anyhow::Result<Vec<Outcome>> {
    let one = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let several = Ours { workers: count, ..Ours::full(Handler::Batch) };
    let several = Job::ours(several, QueueType::Classic, rounds.messages);
    rate(rounds, name, &several, &one).await
}
