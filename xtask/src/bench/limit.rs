//! How close to what PostgreSQL can do.

use super::case::find;
use super::job::{Consumer, Handler, Job, Ours, QueueType};
use super::outcome::Outcome;
use super::round::Rounds;
use super::throughput::ratios;

/// PostgreSQL's CPU time of a worker without a relay, against bare inserts of the same rows in batches of the same size.
pub(crate) async fn raw_batch(
    rounds: &Rounds<'_>,
    name: &'static str,
    handler: Handler,
) -> anyhow::Result<Vec<Outcome>> {
    let ours = Ours { relay: false, ..Ours::full(handler) };
    let ours = Job::ours(ours, QueueType::Classic, rounds.messages);
    let raw = Job { consumer: Consumer::Raw, ..ours.clone() };
    let (us, them) = rounds.alternate(name, &ours, &raw).await?;
    let outcome = find(name)
        .map(|case| Outcome::new(case, ratios(&us, &them, |run| run.cpu_of("postgres"))).of(&us, &them));
    Ok(outcome.into_iter().collect())
}
