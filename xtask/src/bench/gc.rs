//! The collection of old keys: what it costs, and what it costs others.

use std::time::Instant;

use serde_json::json;
use sqlx::Row as _;

use super::case::find;
use super::job::{Handler, Job, Ours, QueueType};
use super::measured::{LOOK, STUCK, check};
use super::meter::Reading;
use super::outcome::{Figure, Outcome, rounded};
use super::round::Rounds;
use super::run::{count_drawn, effects, until};
use super::site::{Member, Site};
use super::verify::verify;

/// Old enough for any retention.
const DAYS: i32 = 30;

/// Keys to collect: more than fits into PostgreSQL's buffers, so that by key each row is somewhere else.
const COLLECTED: u64 = 2_000_000;

fn job(rounds: &Rounds<'_>) -> Job {
    Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages)
}

/// A site with so many old keys, of which each run gets a copy.
async fn pattern<'s>(rounds: &Rounds<'s>, keys: u64) -> anyhow::Result<Site<'s>> {
    let mut site = Site::prepare(rounds.stage, &job(rounds)).await?;
    site.prefill(keys, DAYS, false).await?;
    // As a worker does that starts here: nothing is collected of a consumer that the database does not know.
    sqlx::query(
        "select oncely.register_consumer('payments', '7 days', '1 day', 'body', 'dead_letter', 'bench')",
    )
    .execute(&mut site.connect().await?)
    .await?;
    Ok(site)
}

/// PostgreSQL's CPU time a deleted row: by key / ours.
pub(crate) async fn cpu(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    rounds.say("gc_cpu", 0);
    let rows = COLLECTED;
    let pattern = pattern(rounds, rows).await?;
    // It comes by its own clock, into whichever side runs longer, and costs as much for either way of deleting.
    sqlx::raw_sql("alter table oncely.idempotency_keys set (autovacuum_enabled = false)")
        .execute(&mut pattern.connect().await?)
        .await?;
    let (mut us, mut them) = (Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say("gc_cpu", round);
        for ours in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let site = pattern.copy().await?;
            site.settle().await?;
            let mut watch = site.connect().await?;
            let before = Reading::take(rounds.stage, &[], &mut watch).await?;
            let started = Instant::now();
            if ours {
                site.oncely(&["gc", "run"]).await?;
            } else {
                by_key(&site).await?;
            }
            let seconds = started.elapsed().as_secs_f64();
            let used = Reading::take(rounds.stage, &[], &mut watch).await?.since(&before);
            let left: i64 = sqlx::query("select count(*) from oncely.idempotency_keys")
                .fetch_one(&mut watch)
                .await?
                .get(0);
            anyhow::ensure!(left == 0, "{left} of {rows} keys are left");
            drop(watch);
            site.database.drop_now().await?;
            let cpu = used.cpu.get("postgres").copied().unwrap_or_default().as_secs_f64();
            let side = if ours { &mut us } else { &mut them };
            side.push((cpu * 1e6 / rows as f64, rows as f64 / seconds));
        }
    }
    pattern.clear().await?;
    let median = |side: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
        json!(rounded(Figure(side.iter().map(of).collect()).median()))
    };
    let outcome = find("gc_cpu").map(|case| {
        Outcome::new(case, them.iter().zip(&us).map(|(them, us)| them.0 / us.0).collect())
            .note("ours_cpu_us_per_row", median(&us, |run| run.0))
            .note("ours_rows_per_second", median(&us, |run| run.1))
            .note("baseline_cpu_us_per_row", median(&them, |run| run.0))
            .note("baseline_rows_per_second", median(&them, |run| run.1))
    });
    Ok(outcome.into_iter().collect())
}

/// The usual way: batches of the same size, by primary key.
async fn by_key(site: &Site<'_>) -> anyhow::Result<()> {
    let mut connection = site.connect().await?;
    loop {
        let done = sqlx::query(
            "delete from oncely.idempotency_keys
             where (tenant, consumer, key) in (
                 select tenant, consumer, key from oncely.idempotency_keys
                 where status = 'COMPLETED' and consumer = 'payments' and completed_at < now() - interval '7 days'
                 order by completed_at
                 limit 5000
             )",
        )
        .execute(&mut connection)
        .await?;
        if done.rows_affected() == 0 {
            return Ok(());
        }
    }
}

/// Rate of ingest while the collection runs / without it. The same old keys are there on both sides.
pub(crate) async fn interference(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    rounds.say("gc_interference", 0);
    let old = rounds.messages * 25;
    let pattern = pattern(rounds, old).await?;
    let (mut us, mut them, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say("gc_interference", round);
        for collects in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let mut site = pattern.copy().await?;
            rounds.stage.flush_redis().await?;
            site.fill(u64::from(round)).await?;
            if collects {
                let (rate, seconds) = measure_collection(&mut site).await?;
                us.push(rate);
                spans.push(seconds);
            } else {
                them.push(effects(&mut site).await?.rate);
            }
            site.database.drop_now().await?;
        }
    }
    pattern.clear().await?;
    let outcome = find("gc_interference").map(|case| {
        Outcome::new(case, us.iter().zip(&them).map(|(us, them)| us / them).collect())
            .note("rate_while_collecting", json!(rounded(Figure(us.clone()).median())))
            .note("rate_without", json!(rounded(Figure(them.clone()).median())))
            .note("both_for_seconds", json!(rounded(Figure(spans.clone()).median())))
            .note("old_keys", json!(old))
    });
    Ok(outcome.into_iter().collect())
}

/// The rate from the start of the collection to its end, or to the last message, and how long that was.
async fn measure_collection(site: &mut Site<'_>) -> anyhow::Result<(f64, f64)> {
    let due = site.job.messages;
    let mut watch = site.connect().await?;
    let mut members = site.start()?;
    let first = until(&mut watch, &mut members, 1).await?;
    let (rate, seconds) = {
        let site = &*site;
        let gc = site.oncely(&["gc", "run"]);
        tokio::pin!(gc);
        let started = Instant::now();
        let mut over = false;
        let both = loop {
            tokio::select! {
                done = &mut gc, if !over => { done?; over = true; }
                () = tokio::time::sleep(LOOK) => {}
            }
            let now = count_drawn(&mut watch).await?;
            if over || now >= due {
                break ((now - first) as f64, started.elapsed().as_secs_f64());
            }
            check(&mut members)?;
        };
        if !over {
            gc.await?;
        }
        (both.0 / both.1, both.1)
    };
    wait_for_rest(site, &mut members).await?;
    site.wait_until_drained().await?;
    site.finish(members).await?;
    site.prefilled = 0;
    verify(site, &mut watch, due).await?;
    Ok((rate, seconds))
}

/// Until all has taken effect.
async fn wait_for_rest(site: &Site<'_>, members: &mut [Member]) -> anyhow::Result<()> {
    let broker = site.broker().await?;
    let mut watch = site.connect().await?;
    let start = Instant::now();
    while super::run::count(&mut watch).await? < site.job.messages || broker.depth(&site.queue).await?.0 > 0 {
        anyhow::ensure!(start.elapsed() < STUCK, "not all has taken effect");
        check(members)?;
        tokio::time::sleep(LOOK * 10).await;
    }
    Ok(())
}
