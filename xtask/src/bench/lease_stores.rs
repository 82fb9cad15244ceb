//! Leases in Redis and DynamoDB, against what the articles do: keys a second, bytes a key, money a message.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};
use testbed::cpu_time;

use super::backlog::fill_mirror;
use super::case::find;
use super::measured::Measured;
use super::outcome::{Outcome, Side, rounded};
use super::round::Rounds;
use super::stage::Stage;
use super::throughput::ratios;
use crate::dynamodb::Moto;
use crate::process;

/// Claims and completions at the same time.
const CLIENTS: u64 = 50;
/// Ours, then the articles': the name that `bench claims` knows each by, and the case that compares ours with it.
const OURS: &str = "function";
const ARTICLES: [(&str, &str); 3] =
    [("watch", "lease_redis_rate"), ("script", "lease_redis_vs_script"), ("set", "lease_redis_vs_set")];

/// Keys that are claimed and completed, a second.
pub(crate) async fn rates(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let mut sides: BTreeMap<&str, Side> = BTreeMap::new();
    for round in 0..rounds.rounds {
        rounds.say("lease_redis_rate", round);
        let mut ways = vec![OURS];
        ways.extend(ARTICLES.map(|(way, _)| way));
        // Which goes first changes from round to round.
        ways.rotate_left(round as usize % 4);
        for way in ways {
            let measured = claims(rounds.stage, way, rounds.messages).await?;
            if rounds.stage.pids {
                eprintln!("{way}: {measured:?}");
            }
            sides.entry(way).or_default().0.push(measured);
        }
    }
    let us = sides.remove(OURS).unwrap_or_default();
    let mut outcomes = Vec::new();
    for (way, name) in ARTICLES {
        let them = sides.remove(way).unwrap_or_default();
        if way == "script" {
            let cpu = ratios(&us, &them, Measured::total_cpu);
            outcomes.extend(find("lease_redis_cpu").map(|case| Outcome::new(case, cpu)));
        }
        outcomes.extend(find(name).map(|case| {
            Outcome::new(case, ratios(&us, &them, |run| run.rate))
                .of(&us, &them)
                .note("clients", json!(CLIENTS))
        }));
    }
    Ok(outcomes)
}

/// One run; each key must be there at its end.
async fn claims(stage: &Stage, way: &str, keys: u64) -> anyhow::Result<Measured> {
    stage.flush_redis().await?;
    let cpu = || cpu_time(stage.redis_pid()?).context("Redis has ended");
    let before = cpu()?;
    let (count, clients) = (keys.to_string(), CLIENTS.to_string());
    let environment = [("REDIS_URL", stage.urls().redis.as_str())];
    let arguments = ["claims", "--way", way, "--keys", &count, "--clients", &clients];
    let told: Value = serde_json::from_str(&stage.ask("bench", &arguments, &environment).await?)?;
    let seconds = told["seconds"].as_f64().context("no time")?;
    let used = cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / keys as f64;
    let found: u64 = redis::cmd("DBSIZE").query_async(&mut stage.redis().await?).await?;
    anyhow::ensure!(found == keys, "{way}: {found} keys instead of {keys}");
    Ok(Measured {
        rate: keys as f64 / seconds,
        cpu: BTreeMap::from([("redis", used)]),
        ..Measured::default()
    })
}

/// `MEMORY USAGE` of a completed key. The same in each round: one run.
pub(crate) async fn bytes(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    rounds.say("lease_redis_bytes", 0);
    let mut bytes = BTreeMap::new();
    for way in [OURS, "script"] {
        claims(rounds.stage, way, rounds.messages).await?;
        bytes.insert(way, usage(rounds.stage).await? / rounds.messages as f64);
    }
    let tag = match fill_mirror(rounds).await {
        Ok(messages) => usage(rounds.stage).await? / messages as f64,
        Err(error) => return Err(error.context("the mirror's tags")),
    };
    rounds.stage.flush_redis().await?;
    let outcome = find("lease_redis_bytes").map(|case| {
        Outcome::new(case, vec![bytes[OURS] / bytes["script"]])
            .note("bytes_per_key", json!(rounded(bytes[OURS])))
            .note("json_bytes_per_key", json!(rounded(bytes["script"])))
            .note("mirror_bytes_per_key", json!(rounded(tag)))
            .note("keys", json!(rounds.messages))
    });
    Ok(outcome.into_iter().collect())
}

/// Bytes of all keys that Redis holds.
async fn usage(stage: &Stage) -> anyhow::Result<f64> {
    let mut connection = stage.redis().await?;
    let (mut cursor, mut sum) = (0_u64, 0.0);
    loop {
        let mut scan = redis::cmd("SCAN");
        let (next, keys): (u64, Vec<Vec<u8>>) =
            scan.arg(cursor).arg("COUNT").arg(1_000).query_async(&mut connection).await?;
        let mut pipeline = redis::pipe();
        for key in &keys {
            pipeline.cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        }
        if !keys.is_empty() {
            let used: Vec<Option<f64>> = pipeline.query_async(&mut connection).await?;
            sum += used.into_iter().flatten().sum::<f64>();
        }
        if next == 0 {
            return Ok(sum);
        }
        cursor = next;
    }
}

/// What DynamoDB takes on demand for a million writes of up to 1 KB, in USD, in us-east-1 since November 2024. A write that fails its condition
/// is one.
const WRITES: f64 = 0.625;
/// The same for a million consistent reads of up to 4 KB. One that may be late is half of it.
const READS: f64 = 0.125;
/// Messages that moto is asked about: what one asks is what each asks.
const ASKED: u32 = 100;

/// USD for a million messages, by the requests that moto was asked.
pub(crate) fn cost() -> anyhow::Result<Vec<Outcome>> {
    let moto = Moto::start()?;
    let table = |name: &str| format!("{name}-{}", uuid::Uuid::new_v4());
    let (ours, article) = (table("ours"), table("article"));
    let mut asked = BTreeMap::new();
    for (phase, table) in [("first", &ours), ("again", &ours), ("article", &article)] {
        asked.insert(phase, requests(&moto, table, phase)?);
    }
    let usd = |phase: &str| -> f64 {
        asked[phase]
            .iter()
            .map(|(request, count)| f64::from(*count) / f64::from(ASKED) * price(request))
            .sum()
    };
    let outcome = find("lease_dynamodb_cost").map(|case| {
        Outcome::new(case, vec![usd("first") / usd("article")])
            .note("usd_per_million", json!(rounded(usd("first"))))
            .note("usd_per_million_duplicates", json!(rounded(usd("again"))))
            .note("article_usd_per_million", json!(rounded(usd("article"))))
            .note("requests", json!({ "of": ASKED, "ours": asked["first"], "duplicates": asked["again"], "article": asked["article"] }))
    });
    Ok(outcome.into_iter().collect())
}

/// USD for a million.
fn price(request: &str) -> f64 {
    match request {
        "PutItem" | "UpdateItem" | "DeleteItem" => WRITES,
        "GetItem, consistent" => READS,
        "GetItem" => READS / 2.0,
        // Of a table, once.
        _ => 0.0,
    }
}

fn requests(moto: &Moto, table: &str, phase: &str) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut command: Command = process::cargo(&process::root().join(Moto::PACKAGE));
    command
        .args(["run", "--quiet", "--locked", "--example", "requests", "--target-dir"])
        .arg(Moto::target()?);
    command.args(["--", table, phase]).arg(ASKED.to_string()).env("DYNAMODB_URL", moto.url());
    // What was asked before is nobody's.
    moto.requests()?;
    process::run(&mut command)?;
    let mut asked = moto.requests()?;
    asked.retain(|request, _| price(request) > 0.0);
    Ok(asked)
}
