//! One measured run: fill the queue, start the consumers, watch the effects, count everything afterwards.
//!
//! The clock runs from the first effect that is seen to the last one: what it takes a process to start and to connect is
//! left out on both sides. The same messages are counted: those that came after the first look. CPU time is read at the same
//! two moments, and for us once more when the relay has emptied the mirror queue.

use std::time::Instant;

use sqlx::{PgConnection, Row as _};

use super::job::{Consumer, Job};
use super::measured::{LOOK, Measured, STUCK, check};
use super::meter::{Reading, Usage};
use super::published::published;
use super::site::{Member, Site};
use super::stage::Stage;
use super::verify::verify;

/// Runs a job on a site of its own and verifies what it left behind.
pub(crate) async fn measure(stage: &Stage, job: &Job, seed: u64) -> anyhow::Result<Measured> {
    let mut site = Site::prepare(stage, job).await?;
    match job.consumer {
        Consumer::Raw => site.settle().await?,
        _ => site.fill(seed).await?,
    }
    let measured = match job.consumer {
        Consumer::Nobody(_) => published(&mut site).await?,
        _ => effects(&mut site).await?,
    };
    site.clear().await?;
    Ok(measured)
}

/// Starts the consumers of a filled site, measures until all has taken effect, ends them, verifies.
pub(crate) async fn effects(site: &mut Site<'_>) -> anyhow::Result<Measured> {
    let due = site.job.messages - site.job.poisoned() - site.job.refused();
    let mut watch = site.connect().await?;
    let there = count(&mut watch).await?;
    let before = Reading::take(site.stage, &[], &mut watch).await?;
    let mut members = site.start()?;
    let _scraping = site.scrape();

    let sequence = count_drawn(&mut watch).await?;
    let mut first = until(&mut watch, &mut members, sequence + 1).await? - sequence;
    let started = Instant::now();
    let begin = Reading::take(site.stage, &members, &mut watch).await?;
    until(&mut watch, &mut members, sequence + due).await?;
    // A message that failed in a batch has drawn a number, and draws another: so the count has the last word, when the broker
    // has handed out all.
    let broker = site.broker().await?;
    let mut progress = (u64::MAX, Instant::now());
    loop {
        let left = u64::from(broker.depth(&site.queue).await?.0);
        let looked = Instant::now();
        let open = match left {
            0 => due.saturating_sub(count(&mut watch).await? - there),
            left => left + due,
        };
        if open == 0 {
            break;
        }
        if open < progress.0 {
            progress = (open, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{left} messages in the queue, and nothing moves");
        check(&mut members)?;
        // A commit is on its way: a long wait would be counted as ours. Of a table of millions the count takes its time, and then
        // it may not take more than half of a processor.
        tokio::time::sleep(LOOK.max(looked.elapsed())).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let last = Instant::now();
    site.wait_until_drained().await?;
    let drained_after = last.elapsed().as_secs_f64();
    let end = Reading::take(site.stage, &members, &mut watch).await?;

    first = first.min(due);
    let messages = (site.job.messages - first).max(1) as f64;
    let Usage { cpu, .. } = end.since(&begin);
    let measured = Measured {
        rate: messages / seconds,
        cpu: cpu.into_iter().map(|(role, time)| (role, time.as_secs_f64() * 1e6 / messages)).collect(),
        wal: end.since(&before).wal as f64 / site.job.messages as f64,
        drained_after,
        memory: members
            .iter()
            .filter(|m| m.role != "relay")
            .filter_map(|m| m.process.peak_memory())
            .max()
            .unwrap_or(0),
    };
    site.finish(members).await?;
    verify(site, &mut watch, there + due).await?;
    Ok(measured)
}

/// Waits until so many numbers have been drawn for effects: costs the server nothing, as a count would.
pub(crate) async fn until(
    watch: &mut PgConnection,
    members: &mut [Member],
    wanted: u64,
) -> anyhow::Result<u64> {
    let mut progress = (0, Instant::now());
    loop {
        let now = count_drawn(watch).await?;
        if now >= wanted {
            return Ok(now);
        }
        if now > progress.0 {
            progress = (now, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{now} of {wanted} effects, and nothing moves");
        check(members)?;
        tokio::time::sleep(LOOK).await;
    }
}

pub(crate) async fn count_drawn(watch: &mut PgConnection) -> anyhow::Result<u64> {
    let row = sqlx::query("select case when is_called then last_value else 0 end from bench.payments_id_seq")
        .fetch_one(watch)
        .await?;
    Ok(u64::try_from(row.get::<i64, _>(0))?)
}

pub(crate) async fn count(watch: &mut PgConnection) -> anyhow::Result<u64> {
    let row = sqlx::query("select count(*) from bench.payments").fetch_one(watch).await?;
    Ok(u64::try_from(row.get::<i64, _>(0))?)
}
