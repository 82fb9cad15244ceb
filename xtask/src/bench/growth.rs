//! With many keys already there.

use serde_json::json;

use super::case::find;
use super::job::{Handler, Job, Ours, QueueType};
use super::outcome::{Outcome, Side};
use super::round::Rounds;
use super::run::{effects, measure};
use super::site::Site;
use super::throughput::ratios;

/// Rate with so many keys (and as many audit rows) there / with none. The full database is filled once, and used in each round.
pub(crate) async fn growth(
    rounds: &Rounds<'_>,
    name: &'static str,
    keys: u64,
) -> anyhow::Result<Vec<Outcome>> {
    let job = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    rounds.say(name, 0);
    let mut full = Site::prepare(rounds.stage, &job).await?;
    full.prefill(keys, 1, true).await?;
    let (mut us, mut them) = (Side::default(), Side::default());
    for round in 0..rounds.rounds {
        rounds.say(name, round);
        let seed = 10_000 + u64::from(round);
        for grown in if round.is_multiple_of(2) { [false, true] } else { [true, false] } {
            if grown {
                rounds.stage.flush_redis().await?;
                full.fill(seed).await?;
                us.0.push(effects(&mut full).await?);
            } else {
                them.0.push(measure(rounds.stage, &job, seed).await?);
            }
        }
    }
    full.clear().await?;
    let outcome = find(name).map(|case| {
        Outcome::new(case, ratios(&us, &them, |run| run.rate)).of(&us, &them).note("keys", json!(keys))
    });
    Ok(outcome.into_iter().collect())
}
