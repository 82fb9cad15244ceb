//! One contender's run: a queue that is kept filled, a window of minutes from the first payment on, then the rest of the queue, then
//! the count.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::{PgConnection, Row as _};
use testbed::eventually_within;
use tokio_util::sync::CancellationToken;

use super::contender::{Contender, System};
use super::program::Installation;
use super::supply::Supply;
use crate::bench::measured::{LOOK, STUCK, check};
use crate::bench::meter::Reading;
use crate::bench::run::{count, count_drawn};
use crate::bench::site::{Member, Site};
use crate::bench::stage::Stage;

/// The first payment comes within this time: Python and Restate take theirs to start.
const START: Duration = Duration::from_secs(120);
/// Between two looks during the window.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(15);

/// Holds the measurements of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Payments a second.
    pub(crate) rate: f64,
    /// CPU time in microseconds a payment, by process.
    pub(crate) cpu: BTreeMap<&'static str, f64>,
    /// Bytes of PostgreSQL's WAL a payment.
    pub(crate) wal: f64,
    /// Dead tuples a payment, once all is done.
    pub(crate) dead_tuples: f64,
    /// Bytes of the database, and of the peer's own data beside it, a payment.
    pub(crate) bytes: f64,
    /// Payments within the window.
    pub(crate) payments: u64,
    /// The fewest messages in the queue during the window; with none the publisher was the limit.
    pub(crate) least: u64,
    pub(crate) duplicates: u64,
    /// The error of the verification, if it failed.
    pub(crate) wrong: Option<String>,
}

/// Runs a contender in a database and on a queue of its own, which are removed in the end.
pub(crate) async fn run(
    stage: &Stage,
    installation: &Installation,
    contender: &Contender,
    window: Duration,
) -> anyhow::Result<Figures> {
    let mut site = Site::prepare(stage, &contender.system.job()).await?;
    let measured = measure(&mut site, installation, contender, window).await;
    site.clear().await?;
    measured
}

async fn measure(
    site: &mut Site<'_>,
    installation: &Installation,
    contender: &Contender,
    window: Duration,
) -> anyhow::Result<Figures> {
    let mut watch = site.connect().await?;
    if let System::Peer { unique_key, .. } = contender.system {
        sqlx::raw_sql(include_str!("../bench/schema.sql")).execute(&mut watch).await?;
        if unique_key {
            sqlx::raw_sql(include_str!("unique_key.sql")).execute(&mut watch).await?;
        }
    }
    let mut supply = Supply::default();
    supply.fill(site).await?;
    site.settle().await?;
    let (mut members, data) = match contender.system {
        System::Peer { program, .. } => program.start(contender.name, installation, site)?,
        System::Ours(_) | System::Naive => (site.start()?, None),
    };

    let site = &*site;
    let stop = CancellationToken::new();
    let watching = async {
        let watched = watch_window(site, &mut watch, &mut members, window).await;
        stop.cancel();
        watched
    };
    let (supplied, watched) = tokio::join!(supply.keep(site, &stop), watching);
    supplied?;
    let (mut figures, drawn) = watched?;
    eprintln!("  {:.0} payments a second; {drawn} tried; now the rest of the queue", figures.rate);

    let due = supply.distinct();
    figures.least = supply.least.unwrap_or(0);
    figures.duplicates = supply.duplicates();
    figures.wrong = drain(site, &mut watch, &mut members, due).await.err().map(|error| format!("{error:#}"));
    for mut member in members {
        member.process.terminate(Duration::from_secs(60)).await?;
    }
    let connection = &mut watch;
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while sqlx::query(include_str!("backends.sql")).fetch_one(&mut *connection).await?.get::<i64, _>(0)
            > 0
        {
            tokio::time::sleep(LOOK).await;
        }
        Ok::<_, anyhow::Error>(())
    });
    ended.await.map_err(|_| anyhow::anyhow!("the sessions of {} do not end", contender.name))??;
    let row = sqlx::query(include_str!("left.sql")).fetch_one(&mut watch).await?;
    let (dead, bytes): (i64, i64) = (row.get("dead_tuples"), row.get("bytes"));
    let own = data.as_deref().map_or(Ok(0), size)?;
    figures.dead_tuples = dead as f64 / due as f64;
    figures.bytes = (bytes as f64 + own as f64) / due as f64;
    if figures.wrong.is_none() {
        figures.wrong = verify(site, &mut watch, due).await.err().map(|error| format!("{error:#}"));
    }
    Ok(figures)
}

/// Measures from the first payment on. Numbers that were drawn for payments tell of progress: they cost the server nothing, and those of
/// duplicates that the unique index keeps out are among them; the payments are counted at both ends.
async fn watch_window(
    site: &Site<'_>,
    watch: &mut PgConnection,
    members: &mut [Member],
    window: Duration,
) -> anyhow::Result<(Figures, u64)> {
    let waiting = Instant::now();
    while count_drawn(watch).await? == 0 {
        check(members)?;
        anyhow::ensure!(waiting.elapsed() < START, "no payment within {START:?}");
        tokio::time::sleep(LOOK).await;
    }
    let first = count(watch).await?;
    let started = Instant::now();
    let begin = Reading::take(site.stage, members, watch).await?;
    let mut progress = (0, Instant::now());
    let mut shown = Instant::now();
    while started.elapsed() < window {
        tokio::time::sleep(PAUSE.min(window.saturating_sub(started.elapsed()))).await;
        check(members)?;
        let drawn = count_drawn(watch).await?;
        if drawn > progress.0 {
            progress = (drawn, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{drawn} payments, and nothing moves");
        if shown.elapsed() >= PROGRESS {
            eprintln!("  {:.0} s: {drawn} payments tried", started.elapsed().as_secs_f64());
            shown = Instant::now();
        }
    }
    let end = Reading::take(site.stage, members, watch).await?;
    let seconds = started.elapsed().as_secs_f64();
    let payments = count(watch).await? - first;
    anyhow::ensure!(payments > 0, "no payment within {window:?}");
    let usage = end.since(&begin);
    let each = |value: f64| value / payments as f64;
    let cpu = usage.cpu.into_iter().map(|(role, time)| (role, each(time.as_secs_f64() * 1e6))).collect();
    let figures = Figures {
        rate: payments as f64 / seconds,
        cpu,
        wal: each(usage.wal as f64),
        dead_tuples: 0.0,
        bytes: 0.0,
        payments,
        least: 0,
        duplicates: 0,
        wrong: None,
    };
    Ok((figures, progress.0))
}

/// Waits until each message has its payment and is acknowledged; fails when nothing moves any more.
async fn drain(
    site: &Site<'_>,
    watch: &mut PgConnection,
    members: &mut [Member],
    due: u64,
) -> anyhow::Result<()> {
    let broker = site.broker().await?;
    let mut progress = (u64::MAX, Instant::now());
    loop {
        let looked = Instant::now();
        let left = match u64::from(broker.ready(&site.queue).await?) {
            0 => due.saturating_sub(count(watch).await?),
            ready => ready + due,
        };
        if left == 0 {
            break;
        }
        if left < progress.0 {
            progress = (left, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{left} payments are missing, and nothing moves");
        check(members)?;
        // The count of millions takes its time, and may not take more than a third of a processor.
        tokio::time::sleep(PAUSE.max(2 * looked.elapsed())).await;
    }
    site.wait_until_acknowledged().await?;
    site.wait_until_drained().await
}

/// Fails unless each message has one payment and the queue is empty.
async fn verify(site: &Site<'_>, watch: &mut PgConnection, due: u64) -> anyhow::Result<()> {
    let row = sqlx::query(include_str!("count.sql")).fetch_one(watch).await?;
    let (payments, paid): (i64, i64) = (row.get("payments"), row.get("paid"));
    let due = i64::try_from(due)?;
    anyhow::ensure!(payments == due && paid == due, "{due} messages, {payments} payments of {paid}");
    let broker = site.broker().await?;
    eventually_within(Duration::from_secs(20), "the queue is empty", || async {
        let (ready, consumers) = broker.depth(&site.queue).await?;
        anyhow::ensure!(ready == 0 && consumers == 0, "{ready} messages, {consumers} consumers");
        Ok(())
    })
    .await
}

/// Returns the bytes of the files in a folder.
fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
