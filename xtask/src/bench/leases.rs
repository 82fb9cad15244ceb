//! What leases cost: runs that do nothing, runs that wait for somebody else, leases that are only held.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{PgConnection, Row as _};

use super::case::find;
use super::job::{Consumer, Handler, Job, Keys, Ours, QueueType};
use super::measured::{Measured, STUCK, check};
use super::meter::{Reading, Usage};
use super::outcome::{Outcome, Side, rounded};
use super::round::Rounds;
use super::site::Site;
use super::throughput::ratios;

/// Between two counts of completed keys: they cost the server something.
const LOOK: Duration = Duration::from_millis(50);
/// How long held leases are looked at: two renewals of each, and a half.
const HELD: Duration = Duration::from_secs(25);

fn leased(concurrency: u32, call: u64, messages: u64) -> Job {
    let ours = Ours { relay: false, ..Ours::full(Handler::Leased { concurrency, call }) };
    Job::ours(ours, QueueType::Classic, messages)
}

/// Runs that do nothing, against the usual two transactions.
pub(crate) async fn empty(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let messages = rounds.messages / 4;
    let ours = leased(256, 0, messages);
    let naive = Job { consumer: Consumer::Naive(Keys::Held), ..Job::naive(QueueType::Classic, messages) };
    let (mut us, mut them) = (Side::default(), Side::default());
    for round in 0..rounds.rounds {
        rounds.say("lease_empty", round);
        let seed = u64::from(round) * 1_000;
        // Which goes first changes from round to round.
        if round.is_multiple_of(2) {
            them.0.push(completions(rounds, &naive, seed).await?);
            us.0.push(completions(rounds, &ours, seed + 1).await?);
        } else {
            us.0.push(completions(rounds, &ours, seed + 1).await?);
            them.0.push(completions(rounds, &naive, seed).await?);
        }
    }
    let middle = |of: fn(&Measured) -> f64| {
        let mut ratios = ratios(&us, &them, of);
        ratios.sort_by(f64::total_cmp);
        json!(rounded(ratios[ratios.len() / 2]))
    };
    let outcome = find("lease_empty").map(|case| {
        Outcome::new(case, ratios(&us, &them, |run| run.rate))
            .of(&us, &them)
            .note("cpu_ratio", middle(Measured::total_cpu))
            .note("wal_ratio", middle(|run| run.wal))
    });
    Ok(outcome.into_iter().collect())
}

/// Runs that wait for somebody else, as many as may run at the same time.
pub(crate) async fn calls(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    const CONCURRENCY: u32 = 256;
    const CALL: u64 = 50;
    let ours = leased(CONCURRENCY, CALL, rounds.messages / 4);
    let mut us = Side::default();
    for round in 0..rounds.rounds {
        rounds.say("lease_50ms_256", round);
        us.0.push(completions(rounds, &ours, u64::from(round) * 1_000).await?);
    }
    let most = f64::from(CONCURRENCY) * 1_000.0 / CALL as f64;
    let rates = us.0.iter().map(|run| run.rate / most).collect();
    let outcome = find("lease_50ms_256").map(|case| {
        let rate = us.figure(|run| run.rate).median();
        Outcome::new(case, rates).note("rate", json!(rounded(rate)))
    });
    Ok(outcome.into_iter().collect())
}

/// Leases that are only held.
pub(crate) async fn idle(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    const LEASES: u32 = 10_000;
    let job = leased(LEASES, 600_000, u64::from(LEASES));
    let (mut cores, mut postgres, mut hot) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say("lease_idle_10k", round);
        let mut site = Site::prepare(rounds.stage, &job).await?;
        site.fill(u64::from(round)).await?;
        let mut watch = site.connect().await?;
        let mut members = site.start()?;
        const HELD_KEYS: &str = "select count(*) from oncely.idempotency_keys where owner is not null";
        until(&mut watch, &mut members, HELD_KEYS, u64::from(LEASES)).await?;
        let (updates, begin) = (count_updates(&mut watch).await?, Instant::now());
        let before = Reading::take(site.stage, &members, &mut watch).await?;
        tokio::time::sleep(HELD).await;
        let after = Reading::take(site.stage, &members, &mut watch).await?;
        let seconds = begin.elapsed().as_secs_f64();
        let Usage { cpu, .. } = after.since(&before);
        let of = |role: &str| cpu.get(role).map_or(0.0, Duration::as_secs_f64) / seconds;
        cores.push(of("worker"));
        postgres.push(of("postgres"));
        // The statistics of a session that is at work come late.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = count_updates(&mut watch).await?;
        hot.push((now.1 - updates.1) / (now.0 - updates.0).max(1.0));
        anyhow::ensure!(count(&mut watch, HELD_KEYS).await? == u64::from(LEASES), "leases were lost");
        // It would give its keys back one by one, and take its time.
        for mut member in members {
            member.process.kill()?;
        }
        site.clear().await?;
    }
    let least = hot.iter().copied().fold(f64::INFINITY, f64::min);
    let outcome = find("lease_idle_10k").map(|case| {
        Outcome::new(case, cores)
            .note("postgres_cores", json!(postgres.iter().map(|one| rounded(*one)).collect::<Vec<_>>()))
            .note("hot_updates", json!(rounded(least)))
            .unless(least < 0.9, || format!("{least:.2} of the updates are HOT"))
    });
    Ok(outcome.into_iter().collect())
}

/// Updates of keys, and those among them that touched no index.
async fn count_updates(watch: &mut PgConnection) -> anyhow::Result<(f64, f64)> {
    let row = sqlx::query(
        "select n_tup_upd::float8, n_tup_hot_upd::float8 from pg_stat_user_tables where relid = 'oncely.idempotency_keys'::regclass",
    )
    .fetch_one(watch)
    .await?;
    Ok((row.get(0), row.get(1)))
}

async fn count(watch: &mut PgConnection, query: &'static str) -> anyhow::Result<u64> {
    Ok(u64::try_from(sqlx::query(query).fetch_one(watch).await?.get::<i64, _>(0))?)
}

/// Waits until the count is reached, as long as something moves.
async fn until(
    watch: &mut PgConnection,
    members: &mut [super::site::Member],
    query: &'static str,
    wanted: u64,
) -> anyhow::Result<u64> {
    let mut progress = (0, Instant::now());
    loop {
        let looked = Instant::now();
        let now = count(watch, query).await?;
        if now >= wanted {
            return Ok(now);
        }
        if now > progress.0 {
            progress = (now, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{now} of {wanted}, and nothing moves");
        check(members)?;
        // A count takes at most a fifth of a processor.
        tokio::time::sleep(LOOK.max(looked.elapsed() * 4)).await;
    }
}

/// One run: from the first completed key that is seen to the last one.
async fn completions(rounds: &Rounds<'_>, job: &Job, seed: u64) -> anyhow::Result<Measured> {
    let done = match job.consumer {
        Consumer::Naive(_) => "select count(*) from idempotency_keys where status = 'COMPLETED'",
        _ => "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'",
    };
    let mut site = Site::prepare(rounds.stage, job).await?;
    site.fill(seed).await?;
    let mut watch = site.connect().await?;
    let before = Reading::take(site.stage, &[], &mut watch).await?;
    let mut members = site.start()?;
    let first = until(&mut watch, &mut members, done, 1).await?;
    let started = Instant::now();
    let begin = Reading::take(site.stage, &members, &mut watch).await?;
    until(&mut watch, &mut members, done, job.messages).await?;
    let seconds = started.elapsed().as_secs_f64();
    let end = Reading::take(site.stage, &members, &mut watch).await?;
    let messages = (job.messages - first).max(1) as f64;
    let Usage { cpu, .. } = end.since(&begin);
    site.finish(members).await?;
    let keys = count(&mut watch, done).await?;
    anyhow::ensure!(keys == job.messages, "{keys} completed keys instead of {}", job.messages);
    site.clear().await?;
    Ok(Measured {
        rate: messages / seconds,
        cpu: cpu.into_iter().map(|(role, time)| (role, time.as_secs_f64() * 1e6 / messages)).collect(),
        wal: end.since(&before).wal as f64 / job.messages as f64,
        ..Measured::default()
    })
}
