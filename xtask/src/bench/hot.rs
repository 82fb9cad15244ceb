//! Rows that many messages update: one, two and four workers with default settings against the usual consumer.
//!
//! Each run empties a full queue, which gives the rate; then come bursts of messages, which start with idle workers. A burst is
//! clocked from the start of its publisher to the last effect.

use std::time::{Duration, Instant};

use serde_json::json;

use super::case::find;
use super::job::{Consumer, Handler, Hot, Job, Ours, QueueType};
use super::measured::{LOOK, Measured, STUCK, check};
use super::outcome::{Outcome, Side, rounded};
use super::round::Rounds;
use super::run::{count, effects};
use super::site::Site;
use super::throughput::ratios;
use super::verify::verify;

/// Numbers of workers that are compared with the baseline.
const WORKERS: [usize; 3] = [1, 2, 4];

/// Messages of a burst.
const BURST: u64 = 2_000;

/// Bursts after each run.
const BURSTS: u64 = 4;

/// The longest that a burst may take.
const LONGEST: Duration = Duration::from_secs(2);

/// The cases of one kind of work, by number of workers.
pub(crate) const CASES: [(Hot, [&str; 3]); 5] = [
    (Hot::Stock, ["hot_stock_1", "hot_stock_2", "hot_stock_4"]),
    (Hot::OneRow, ["hot_one_row_1", "hot_one_row_2", "hot_one_row_4"]),
    (Hot::TwoRows, ["hot_two_rows_1", "hot_two_rows_2", "hot_two_rows_4"]),
    (Hot::Batch, ["hot_batch_1", "hot_batch_2", "hot_batch_4"]),
    (Hot::Events, ["hot_events_1", "hot_events_2", "hot_events_4"]),
];

/// Measures one kind of work: the baseline once a round, and each number of workers beside it.
pub(crate) async fn hot(
    rounds: &Rounds<'_>,
    hot: Hot,
    names: [&'static str; 3],
) -> anyhow::Result<Vec<Outcome>> {
    let refused_of_ten = if hot == Hot::Stock { 6 } else { 0 };
    let job = |consumer| Job {
        consumer,
        queue_type: QueueType::Classic,
        messages: rounds.messages,
        poison_every: 0,
        refused_of_ten,
    };
    let baseline = job(Consumer::NaiveHot(hot));
    let ours = WORKERS.map(|workers| {
        // Nobody publishes the events: their exchange is not there.
        let relay = hot != Hot::Events;
        job(Consumer::Ours(Ours { workers, relay, ..Ours::full(Handler::Hot(hot)) }))
    });
    let mut them = Side::default();
    let mut us = [Side::default(), Side::default(), Side::default()];
    let mut longest = [Duration::ZERO; 3];
    let mut their_longest = Duration::ZERO;
    for round in 0..rounds.rounds {
        let seed = u64::from(round) * 1_000;
        rounds.say(names[0], round);
        let (measured, burst) = measure(rounds, &baseline, seed).await?;
        them.0.push(measured);
        their_longest = their_longest.max(burst);
        for (index, job) in ours.iter().enumerate() {
            let (measured, burst) = measure(rounds, job, seed).await?;
            us[index].0.push(measured);
            longest[index] = longest[index].max(burst);
        }
    }
    let outcomes = names.iter().enumerate().filter_map(|(index, name)| {
        let outcome =
            Outcome::new(find(name)?, ratios(&us[index], &them, |run| run.rate)).of(&us[index], &them);
        let burst = longest[index];
        Some(
            outcome
                .unless(burst > LONGEST, || {
                    format!("a burst of {BURST} messages took {:.1} s", burst.as_secs_f64())
                })
                .note("longest_burst_s", json!(rounded(burst.as_secs_f64())))
                .note("naive_longest_burst_s", json!(rounded(their_longest.as_secs_f64()))),
        )
    });
    Ok(outcomes.collect())
}

/// A full queue, then bursts; the longest of these.
async fn measure(rounds: &Rounds<'_>, job: &Job, seed: u64) -> anyhow::Result<(Measured, Duration)> {
    let mut site = Site::prepare(rounds.stage, job).await?;
    site.fill(seed).await?;
    let measured = effects(&mut site).await?;
    let longest = bursts(&mut site, seed).await?;
    site.clear().await?;
    if rounds.stage.pids {
        eprintln!("{:?}: longest burst {longest:?}, {measured:?}", job.consumer);
    }
    Ok((measured, longest))
}

async fn bursts(site: &mut Site<'_>, seed: u64) -> anyhow::Result<Duration> {
    let mut watch = site.connect().await?;
    let before = (site.job.messages, site.job.messages - site.job.refused());
    let mut members = site.start()?;
    site.wait_for_consumers(members.iter().filter(|member| member.role != "relay").count()).await?;
    let mut longest = Duration::ZERO;
    let mut due = before.1;
    site.job.messages = BURST;
    let broker = site.broker().await?;
    for burst in 1..=BURSTS {
        due += BURST - site.job.refused();
        let started = Instant::now();
        site.publish(seed + burst).await?;
        loop {
            let left = u64::from(broker.depth(&site.queue).await?.0);
            if left == 0 && count(&mut watch).await? == due {
                break;
            }
            anyhow::ensure!(
                started.elapsed() < STUCK,
                "a burst: {left} messages in the queue, and nothing moves"
            );
            check(&mut members)?;
            tokio::time::sleep(LOOK).await;
        }
        longest = longest.max(started.elapsed());
    }
    site.wait_until_drained().await?;
    site.finish(members).await?;
    site.job.messages = before.0 + BURSTS * BURST;
    verify(site, &mut watch, due).await?;
    Ok(longest)
}
