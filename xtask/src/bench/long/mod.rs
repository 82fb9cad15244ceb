//! A month of data in an hour: the collection, the trail's partitions, events, dead letters and autovacuum at work under a steady
//! load, on tables that are full from the beginning.

mod minute;
mod past;
mod state;
mod traffic;
mod verdict;

use clap::Args;

use super::job::{Handler, Job, Ours, QueueType};
use super::outcome::Outcome;
use super::site::Site;
use super::stage::Stage;
use past::Past;
use traffic::Traffic;
use verdict::judge;

/// Results of the run.
pub(crate) const CASES: [&str; 4] = ["long_p99", "long_cpu", "long_bytes_per_key", "long_wal"];
/// Checkpoints come by time (`checkpoint_timeout`, five minutes), never because there is much WAL.
pub(crate) const SETTINGS: [&str; 1] = ["max_wal_size=16GB"];

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// For how many minutes messages come, in long
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    minutes: u32,
    /// Completed keys that are there at the beginning of long, and rows of the trail: random UUIDs, as old as that many messages
    /// are at this rate. Retention (half an hour at least, of which RabbitMQ alone may take 30 minutes) ends for the oldest at the
    /// first message, so each minute as many keys pass it as new ones come. The trail has weekly partitions: seven eighths of its
    /// rows lie in seven past weeks, and each time the keys of an eighth have passed their retention, oncely.cell.audit_floor is
    /// lowered by a week and the farthest week ahead removed, so that the relay drops one partition and makes another
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(10_000..=1_000_000_000))]
    keys: u64,
    /// Messages a second in long; one in ten repeats an earlier one, up to five minutes old
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    rate: u32,
}

impl Arguments {
    /// Returns how many messages a second are no repetitions.
    fn different_rate(&self) -> f64 {
        f64::from(self.rate) * (1.0 - f64::from(traffic::REPEATS_OF_TEN) / 10.0)
    }
}

/// Fills the tables, lets messages come, prints the figures of each minute, counts everything at the end.
pub(crate) async fn long(stage: &Stage, arguments: &super::Arguments) -> anyhow::Result<Vec<Outcome>> {
    let long = &arguments.long;
    let messages = u64::from(long.minutes) * 60 * u64::from(long.rate);
    let job = Job::ours(Ours::full(Handler::Announcing), QueueType::Classic, messages);
    let mut site = Site::prepare(stage, &job).await?;
    let past = Past::fill(&site, long).await?;
    let mut traffic = Traffic::start(&mut site, long, past).await?;
    let minutes = traffic.watch(&site, long, arguments.json).await?;
    let outcomes = judge(&mut traffic, &site, &minutes).await?;
    traffic.clear().await?;
    site.clear().await?;
    Ok(outcomes)
}
