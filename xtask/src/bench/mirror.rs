//! How long after its commit a batch is known to Redis, under full load.
//!
//! A batch's mirror record is deleted after its tags are in Redis. So from the record's commit (`track_commit_timestamp`) to the
//! first look that doesn't find it any more is an upper bound of the lag. A record that no look has seen was there for no longer
//! than the pause between two looks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use sqlx::{PgConnection, Row as _};

use super::case::find;
use super::job::{Handler, Job, Ours, QueueType};
use super::outcome::{Figure, Outcome, rounded};
use super::round::Rounds;
use super::run::effects;
use super::site::Site;
use super::stats::percentile;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Lanes of a worker: as many batches are under way at a time. The default.
const LANES: f64 = 2.0;

struct Lag {
    /// 99 of 100 batches were in Redis after so many milliseconds.
    p99: f64,
    p50: f64,
    /// A batch takes so many milliseconds.
    batch: f64,
}

pub(crate) async fn lag(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let mut lags = Vec::new();
    for round in 0..rounds.rounds {
        rounds.say("mirror_lag", round);
        lags.push(measure_lag(rounds, u64::from(round)).await?);
    }
    let median = |of: fn(&Lag) -> f64| json!(rounded(Figure(lags.iter().map(of).collect()).median()));
    let outcome = find("mirror_lag").map(|case| {
        Outcome::new(case, lags.iter().map(|lag| lag.p99 / lag.batch).collect())
            .note("lag_p50_ms", median(|lag| lag.p50))
            .note("lag_p99_ms", median(|lag| lag.p99))
            .note("batch_ms", median(|lag| lag.batch))
    });
    Ok(outcome.into_iter().collect())
}

async fn measure_lag(rounds: &Rounds<'_>, seed: u64) -> anyhow::Result<Lag> {
    let job = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let mut site = Site::prepare(rounds.stage, &job).await?;
    site.fill(seed).await?;
    let watch = site.connect().await?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let looking = tokio::spawn(watch_queue(watch, stopped));
    let measured = effects(&mut site).await?;
    let _ = stop.send(());
    let (mut lags, pause) = looking.await??;
    let mut connection = site.connect().await?;
    let batches: i64 = sqlx::query("select count(distinct created_at) from oncely.idempotency_keys")
        .fetch_one(&mut connection)
        .await?
        .get(0);
    drop(connection);
    site.clear().await?;
    let batches = usize::try_from(batches)?;
    lags.resize(lags.len().max(batches), pause);
    let seconds = job.messages as f64 / measured.rate;
    Ok(Lag {
        p99: percentile(&lags, 0.99),
        p50: percentile(&lags, 0.5),
        batch: LANES * seconds * 1e3 / batches as f64,
    })
}

/// Looks at the mirror queue until told to stop: the lags in milliseconds, and the longest pause between two looks.
async fn watch_queue(
    mut watch: PgConnection,
    mut stopped: tokio::sync::oneshot::Receiver<()>,
) -> anyhow::Result<(Vec<f64>, f64)> {
    let mut there: BTreeMap<uuid::Uuid, i64> = BTreeMap::new();
    let (mut lags, mut last, mut pauses) = (Vec::new(), None, Vec::new());
    loop {
        // Last of all: has it ended before this look?
        let over = stopped.try_recv().is_ok();
        let rows = sqlx::query(
            "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, o.id,
                (extract(epoch from pg_xact_commit_timestamp(o.xmin)) * 1000000)::bigint
             from (select) as once left join oncely.mirror_queue as o on true",
        )
        .fetch_all(&mut watch)
        .await?;
        let now: i64 = rows.first().map_or(0, |row| row.get(0));
        let mut still = BTreeMap::new();
        for row in &rows {
            if let (Some(id), Some(committed)) = (row.get(1), row.get(2)) {
                still.insert(id, committed);
            }
        }
        lags.extend(
            there.iter().filter(|(id, _)| !still.contains_key(*id)).map(|(_, at)| (now - at) as f64 / 1e3),
        );
        if !lags.is_empty()
            && let Some(last) = last
        {
            pauses.push((now - last) as f64 / 1e3);
        }
        last = Some(now);
        there = still;
        if over && there.is_empty() {
            return Ok((lags, percentile(&pauses, 0.99)));
        }
        tokio::time::sleep(LOOK).await;
    }
}
