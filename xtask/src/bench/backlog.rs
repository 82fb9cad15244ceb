//! A long queue: what the worker holds in memory while it works it off, and what the mirror holds afterwards.

use serde_json::json;

use super::case::find;
use super::job::{Handler, Job, Ours, QueueType};
use super::outcome::{Outcome, rounded};
use super::round::Rounds;
use super::run::effects;
use super::site::Site;
use super::stage::Stage;

/// The backlog, in runs' messages.
const TIMES: u64 = 25;

/// Both figures don't change from round to round: one run.
pub(crate) async fn backlog(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    rounds.say("worker_rss", 0);
    let job =
        Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages.saturating_mul(TIMES));
    let mut site = Site::prepare(rounds.stage, &job).await?;
    site.fill(7).await?;
    let empty = read_used_memory(rounds.stage).await?;
    let measured = effects(&mut site).await?;
    let bytes = read_used_memory(rounds.stage).await?.saturating_sub(empty) as f64 / job.messages as f64;
    site.clear().await?;
    rounds.stage.flush_redis().await?;
    let json = measure_json_layout(rounds.stage, rounds.messages).await?;
    rounds.stage.flush_redis().await?;
    let memory = find("worker_rss").map(|case| {
        Outcome::new(case, vec![measured.memory as f64])
            .note("backlog", json!(job.messages))
            .note("rate", json!(rounded(measured.rate)))
    });
    let mirror = find("redis_bytes").map(|case| {
        Outcome::new(case, vec![bytes / json])
            .note("bytes_per_key", json!(rounded(bytes)))
            .note("json_bytes_per_key", json!(rounded(json)))
            .note("keys", json!(job.messages))
    });
    Ok(memory.into_iter().chain(mirror).collect())
}

/// Fills Redis with the tags of a run, and nothing else; returns the number of its messages.
pub(crate) async fn fill_mirror(rounds: &Rounds<'_>) -> anyhow::Result<u64> {
    let job = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let mut site = Site::prepare(rounds.stage, &job).await?;
    site.fill(7).await?;
    effects(&mut site).await?;
    site.clear().await?;
    Ok(job.messages)
}

/// Bytes that Redis uses.
async fn read_used_memory(stage: &Stage) -> anyhow::Result<u64> {
    let mut connection = stage.redis().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(line.unwrap_or_default().trim().parse()?)
}

/// Bytes a key of the usual layout: a JSON object per message, with a TTL of its own.
async fn measure_json_layout(stage: &Stage, keys: u64) -> anyhow::Result<f64> {
    const PIPELINE: u64 = 500;
    let mut connection = stage.redis().await?;
    let before = read_used_memory(stage).await?;
    let mut left = keys;
    while left > 0 {
        let count = left.min(PIPELINE);
        left -= count;
        let mut pipeline = redis::pipe();
        for _ in 0..count {
            let key = uuid::Uuid::new_v4();
            let value = format!(
                r#"{{"status":"COMPLETED","owner":"consumer-{:016x}","completedAt":{},"result":{{"success":true,"transactionId":"{}"}},"scope":"tenant-07"}}"#,
                fastrand::u64(..),
                fastrand::u64(1_700_000_000_000..1_800_000_000_000),
                uuid::Uuid::new_v4(),
            );
            pipeline
                .cmd("SET")
                .arg(format!("idempotency:tenant-07:{key}"))
                .arg(value)
                .arg("EX")
                .arg(86_400)
                .ignore();
        }
        pipeline.query_async::<()>(&mut connection).await?;
    }
    Ok((read_used_memory(stage).await?.saturating_sub(before)) as f64 / keys as f64)
}
