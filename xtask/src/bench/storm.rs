//! A redelivery storm: everything that comes has taken effect before.
//!
//! The broker's count of ready messages is the clock: from the moment when a tenth is gone to the last one handed out. What is
//! unacknowledged at either moment is the prefetch, so as many were settled as were handed out.

use std::time::Instant;

use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::case::find;
use super::job::{Consumer, Handler, Job, Ours, QueueType};
use super::measured::{LOOK, Measured, STUCK, check};
use super::meter::Reading;
use super::outcome::{Figure, Outcome, Side, rounded};
use super::round::Rounds;
use super::run::effects;
use super::site::Site;
use super::throughput::ratios;
use super::verify::verify;

/// Who knows the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownTo {
    /// Redis, and it is trusted.
    Redis,
    /// Only PostgreSQL: nothing was mirrored.
    Postgres,
}

/// A storm, and how many transactions PostgreSQL had with it, a message.
struct Storm {
    measured: Measured,
    transactions: f64,
}

pub(crate) async fn storm(rounds: &Rounds<'_>, known: KnownTo) -> anyhow::Result<Vec<Outcome>> {
    let name = match known {
        KnownTo::Redis => "storm_redis",
        KnownTo::Postgres => "storm_postgres",
    };
    let ours = Ours { relay: known == KnownTo::Redis, ..Ours::full(Handler::Batch) };
    let ours = Job::ours(ours, QueueType::Classic, rounds.messages);
    let naive = Job::naive(QueueType::Classic, rounds.messages);
    let (mut us, mut them, mut transactions) = (Side::default(), Side::default(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say(name, round);
        let seed = u64::from(round);
        let mut jobs = [&naive, &ours];
        if !round.is_multiple_of(2) {
            jobs.reverse();
        }
        for job in jobs {
            let storm = run_twice(rounds, job, seed).await?;
            match job.consumer {
                Consumer::Naive(_) => them.0.push(storm.measured),
                _ => {
                    transactions.push(storm.transactions);
                    us.0.push(storm.measured);
                }
            }
        }
    }
    let transactions = Figure(transactions).median();
    let wal = us.figure(|run| run.wal).median();
    // What a worker does by the clock (its look at the database's epoch) and a server's own records are not per message.
    let asks = known == KnownTo::Redis && transactions >= 0.01;
    let outcome = find(name).map(|case| {
        Outcome::new(case, ratios(&us, &them, |run| run.rate))
            .of(&us, &them)
            .unless(wal >= 1.0, || format!("{wal:.1} bytes of WAL a message"))
            .unless(asks, || format!("{transactions:.3} transactions a message"))
            .note("transactions_per_message", json!(transactions))
            .note("wal_bytes_per_message", json!(rounded(wal)))
    });
    Ok(outcome.into_iter().collect())
}

/// A consumer that only acknowledges, against the baseline's storm: what the broker lets anybody reach.
pub(crate) async fn storm_limit(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let naive = Job::naive(QueueType::Classic, rounds.messages);
    let bare = Job { consumer: Consumer::Bare, ..naive.clone() };
    let (mut us, mut them) = (Side::default(), Side::default());
    for round in 0..rounds.rounds {
        rounds.say("storm_limit", round);
        let seed = u64::from(round);
        let mut site = Site::prepare(rounds.stage, &bare).await?;
        site.fill(seed).await?;
        us.0.push(drain(&mut site).await?.measured);
        site.clear().await?;
        them.0.push(run_twice(rounds, &naive, seed).await?.measured);
    }
    let outcome =
        find("storm_limit").map(|case| Outcome::new(case, ratios(&us, &them, |run| run.rate)).of(&us, &them));
    Ok(outcome.into_iter().collect())
}

/// Sends all messages once, then the same ones again.
async fn run_twice(rounds: &Rounds<'_>, job: &Job, seed: u64) -> anyhow::Result<Storm> {
    let mut site = Site::prepare(rounds.stage, job).await?;
    site.fill(seed).await?;
    effects(&mut site).await?;
    site.fill(seed).await?;
    let storm = drain(&mut site).await?;
    verify(&site, &mut site.connect().await?, job.messages).await?;
    site.clear().await?;
    if rounds.stage.pids {
        eprintln!("storm: {:?}, {} transactions a message", storm.measured, storm.transactions);
    }
    Ok(storm)
}

async fn drain(site: &mut Site<'_>) -> anyhow::Result<Storm> {
    let broker = site.broker().await?;
    // From another database: what is asked here must not count.
    let mut watch = PgConnection::connect(&site.stage.servers.urls().postgres).await?;
    let filled = u64::from(broker.depth(&site.queue).await?.0);
    let transactions = transactions(&mut watch, site.database.name()).await?;
    let mut members = site.start()?;
    let start = Instant::now();
    let mut begun = None;
    loop {
        let left = u64::from(broker.depth(&site.queue).await?.0);
        if begun.is_none() && left <= filled - filled / 10 {
            begun = Some((left, Instant::now(), Reading::take(site.stage, &members, &mut watch).await?));
        }
        if left == 0 {
            break;
        }
        anyhow::ensure!(start.elapsed() < STUCK * 5, "{left} of {filled} messages are left");
        check(&mut members)?;
        tokio::time::sleep(LOOK).await;
    }
    let end = Reading::take(site.stage, &members, &mut watch).await?;
    let (handed, since, begin) = begun.ok_or_else(|| anyhow::anyhow!("the queue was empty"))?;
    let handed = handed as f64;
    let seconds = since.elapsed().as_secs_f64();
    let usage = end.since(&begin);
    let measured = Measured {
        rate: handed / seconds,
        cpu: usage.cpu.into_iter().map(|(role, time)| (role, time.as_secs_f64() * 1e6 / handed)).collect(),
        wal: usage.wal as f64 / handed,
        ..Measured::default()
    };
    if !matches!(site.job.consumer, Consumer::Bare) {
        site.wait_until_acknowledged().await?;
    }
    site.finish(members).await?;
    // Sessions report what they did when they end.
    let after = self::transactions(&mut watch, site.database.name()).await?;
    Ok(Storm { measured, transactions: (after - transactions) as f64 / filled as f64 })
}

async fn transactions(connection: &mut PgConnection, database: &str) -> anyhow::Result<i64> {
    let query = "select xact_commit + xact_rollback from pg_stat_database where datname = $1";
    Ok(sqlx::query(query).bind(database).fetch_one(connection).await?.get(0))
}
