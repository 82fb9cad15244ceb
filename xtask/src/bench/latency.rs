//! From the publisher's call to the commit, at a fixed rate.
//!
//! Each message says when it was sent, its effect keeps that, and PostgreSQL keeps when the effect's transaction committed
//! (`track_commit_timestamp`, on for both sides and in these cases only). That time is taken just before the commit is flushed:
//! one flush is missing on both sides.

use std::time::Duration;

use serde_json::json;
use sqlx::Row as _;
use testbed::eventually_within;

use super::case::find;
use super::job::{Consumer, Handler, Job, Ours, QueueType};
use super::outcome::{Figure, Outcome, rounded};
use super::round::Rounds;
use super::run::count;
use super::site::Site;
use super::stats::percentile;
use super::verify::verify;

/// Seconds at the beginning that don't count: connections and caches are cold.
const WARM_UP: u64 = 2;
/// Seconds that count.
const SPAN: u64 = 13;

/// Percentiles in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Latency {
    p50: f64,
    p99: f64,
}

pub(crate) async fn latency(rounds: &Rounds<'_>, rate: u64) -> anyhow::Result<Vec<Outcome>> {
    let name = if rate == 200 { "latency_200" } else { "latency_1000" };
    let messages = rate * (WARM_UP + SPAN);
    let ours = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, messages);
    let naive = Job::naive(QueueType::Classic, messages);
    let (mut us, mut them) = (Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say(name, round);
        let mut jobs = [&naive, &ours];
        if !round.is_multiple_of(2) {
            jobs.reverse();
        }
        for job in jobs {
            let latency = measure_paced(rounds, job, rate, u64::from(round)).await?;
            match job.consumer {
                Consumer::Naive(_) => them.push(latency),
                _ => us.push(latency),
            }
        }
    }
    let of = |side: &[Latency], of: fn(&Latency) -> f64| {
        json!(rounded(Figure(side.iter().map(of).collect()).median()))
    };
    let ratios = us.iter().zip(&them).map(|(us, them)| us.p99 / them.p99).collect();
    let outcome = find(name).map(|case| {
        Outcome::new(case, ratios)
            .note("ours_p50_ms", of(&us, |l| l.p50))
            .note("ours_p99_ms", of(&us, |l| l.p99))
            .note("baseline_p50_ms", of(&them, |l| l.p50))
            .note("baseline_p99_ms", of(&them, |l| l.p99))
    });
    Ok(outcome.into_iter().collect())
}

async fn measure_paced(rounds: &Rounds<'_>, job: &Job, rate: u64, seed: u64) -> anyhow::Result<Latency> {
    let mut site = Site::prepare(rounds.stage, job).await?;
    site.settle().await?;
    let members = site.start()?;
    let broker = site.broker().await?;
    eventually_within(Duration::from_secs(30), "the consumer is there", || async {
        let (_, consumers) = broker.depth(&site.queue).await?;
        anyhow::ensure!(consumers > 0, "no consumer");
        Ok(())
    })
    .await?;
    let (messages, seed, rate) = (job.messages.to_string(), seed.to_string(), rate.to_string());
    site.client(&["pace", "--queue", &site.queue, "--messages", &messages, "--seed", &seed, "--rate", &rate])
        .await?;
    eventually_within(Duration::from_secs(30), "all has taken effect", || async {
        let done = count(&mut site.connect().await?).await?;
        anyhow::ensure!(done == job.messages, "{done} of {}", job.messages);
        Ok(())
    })
    .await?;
    site.wait_until_drained().await?;
    site.finish(members).await?;
    let mut connection = site.connect().await?;
    verify(&site, &mut connection, job.messages).await?;
    let rows = sqlx::query(
        "select (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint - sent_at
         from bench.payments
         where sent_at >= (select min(sent_at) from bench.payments) + $1",
    )
    .bind(i64::try_from(WARM_UP)? * 1_000_000)
    .fetch_all(&mut connection)
    .await?;
    drop(connection);
    let millis: Vec<f64> = rows.iter().map(|row| row.get::<i64, _>(0) as f64 / 1e3).collect();
    site.clear().await?;
    let latency = Latency { p50: percentile(&millis, 0.5), p99: percentile(&millis, 0.99) };
    if rounds.stage.pids {
        eprintln!("{latency:?}");
    }
    Ok(latency)
}
