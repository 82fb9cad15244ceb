//! The HTTP door: a shop behind it against the same shop with a transaction of its own and no key.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};
use testbed::{Database, free_port};

use super::case::find;
use super::measured::Measured;
use super::meter::Reading;
use super::outcome::{Figure, Outcome, Side, rounded};
use super::round::Rounds;
use super::site::{COMMON, Member};
use super::stage::Stage;
use super::throughput::ratios;

/// Requests a second of an open loop.
const RATE: u64 = 500;
/// Seconds at the beginning that don't count, and those that do.
const WARM_UP: u64 = 2;
const SPAN: u64 = 10;

/// A shop with a database of its own.
struct Shop<'s> {
    stage: &'s Stage,
    database: Database,
    door: bool,
    port: u16,
    members: Vec<Member>,
    watch: PgConnection,
    /// Requests that were answered for the first time.
    answered: u64,
}

impl<'s> Shop<'s> {
    async fn open(stage: &'s Stage, door: bool) -> anyhow::Result<Self> {
        let database = Database::create(&stage.servers.urls().postgres).await?;
        let folder = stage.scratch.path();
        let configuration: PathBuf = folder.join("shop.toml");
        std::fs::write(&configuration, COMMON)?;
        let configuration = configuration.display().to_string();
        let (urls, database_url) = (stage.urls(), stage.database_url(&database));
        let environment = [
            ("ONCELY_CONFIG", configuration.as_str()),
            ("DATABASE_URL", &database_url),
            ("AMQP_URL", &urls.rabbitmq),
            ("REDIS_URL", &urls.redis),
        ];
        stage.run("oncely", &["migrate"], &environment).await?;
        let mut watch = database.connect().await?;
        sqlx::raw_sql(include_str!("schema.sql")).execute(&mut watch).await?;
        sqlx::raw_sql("checkpoint").execute(&mut watch).await?;
        let port = free_port()?;
        let told = port.to_string();
        let mut arguments = vec!["serve", "--port", &told];
        arguments.extend(door.then_some("--door"));
        let log = folder.join(format!("shop-{port}.log"));
        let process = stage.start("bench", &arguments, &environment, &log)?;
        let members = vec![Member { role: "shop", process }];
        Ok(Self { stage, database, door, port, members, watch, answered: 0 })
    }

    /// Returns what the shop has printed.
    fn output(&self) -> String {
        self.members.iter().map(|member| member.process.output()).collect()
    }

    /// Sends so many orders, and measures.
    async fn order(&mut self, seed: u64, requests: u64, more: &[&str]) -> anyhow::Result<(Measured, Value)> {
        let before = Reading::take(self.stage, &self.members, &mut self.watch).await?;
        let (port, count, seed) = (self.port.to_string(), requests.to_string(), seed.to_string());
        let mut arguments = vec!["order", "--port", &port, "--requests", &count, "--seed", &seed];
        arguments.extend(more);
        let told = self.stage.ask("bench", &arguments, &[]).await;
        let told: Value = serde_json::from_str(&told.with_context(|| self.output())?)?;
        let usage = Reading::take(self.stage, &self.members, &mut self.watch).await?.since(&before);
        let count = requests as f64;
        let cpu =
            usage.cpu.into_iter().map(|(role, time)| (role, time.as_secs_f64() * 1e6 / count)).collect();
        let seconds = told["seconds"].as_f64().context("no time")?;
        let measured =
            Measured { rate: count / seconds, cpu, wal: usage.wal as f64 / count, ..Measured::default() };
        if !more.contains(&"--replayed") {
            self.answered += requests;
        }
        if self.stage.pids {
            eprintln!("{} {told}: {measured:?}", if self.door { "door" } else { "plain" });
        }
        Ok((measured, told))
    }

    /// Each order took effect once, and where there are keys, under its own.
    async fn close(mut self) -> anyhow::Result<()> {
        let mut facts =
            vec!["select count(distinct key) from bench.payments", "select count(*) from bench.payments"];
        facts.extend(self.door.then_some(
            "select count(*) from oncely.idempotency_keys as k join bench.payments as p on p.key = k.key
             where k.status = 'COMPLETED' and k.http_status = 201",
        ));
        for fact in facts {
            let found: i64 = sqlx::query(fact).fetch_one(&mut self.watch).await?.get(0);
            anyhow::ensure!(
                u64::try_from(found) == Ok(self.answered),
                "{found} of {}: {fact}",
                self.answered
            );
        }
        for member in &mut self.members {
            member.process.kill()?;
        }
        drop(self.watch);
        self.database.drop_now().await
    }
}

/// From a request's time to its whole answer, at a fixed rate; what is in the middle.
pub(crate) async fn latency(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let (rate, warm_up) = (RATE.to_string(), (RATE * WARM_UP).to_string());
    let more = ["--rate", &rate, "--warm-up", &warm_up];
    let (mut us, mut them) = (Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say("http_p50_500", round);
        for door in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let mut shop = Shop::open(rounds.stage, door).await?;
            let (_, told) = shop.order(u64::from(round), RATE * (WARM_UP + SPAN), &more).await?;
            shop.close().await?;
            let times = ["p50_ms", "p99_ms"].map(|time| told[time].as_f64().unwrap_or_default());
            if door { us.push(times) } else { them.push(times) }
        }
    }
    let of = |side: &[[f64; 2]], time: usize| {
        json!(rounded(Figure(side.iter().map(|times| times[time]).collect()).median()))
    };
    let ratios = us.iter().zip(&them).map(|(us, them)| us[0] / them[0]).collect();
    let outcome = find("http_p50_500").map(|case| {
        Outcome::new(case, ratios)
            .note("ours_p50_ms", of(&us, 0))
            .note("ours_p99_ms", of(&us, 1))
            .note("baseline_p50_ms", of(&them, 0))
            .note("baseline_p99_ms", of(&them, 1))
    });
    Ok(outcome.into_iter().collect())
}

/// Requests a second: of first ones against the same handler without a key, and of retries against first ones.
pub(crate) async fn throughput(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let requests = rounds.messages / 2;
    let (mut first, mut again, mut them) = (Side::default(), Side::default(), Side::default());
    for round in 0..rounds.rounds {
        rounds.say("http_throughput", round);
        for door in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let mut shop = Shop::open(rounds.stage, door).await?;
            // Connections and caches are cold.
            shop.order(1_000_000, 1_000, &[]).await?;
            let seed = u64::from(round);
            let measured = shop.order(seed, requests, &[]).await?.0;
            match door {
                true => {
                    first.0.push(measured);
                    again.0.push(shop.order(seed, requests, &["--replayed"]).await?.0);
                }
                false => them.0.push(measured),
            }
            shop.close().await?;
        }
    }
    let first_runs = find("http_throughput")
        .map(|case| Outcome::new(case, ratios(&first, &them, |run| run.rate)).of(&first, &them));
    let replays = find("http_replay")
        .map(|case| Outcome::new(case, ratios(&again, &first, |run| run.rate)).of(&again, &first));
    Ok(first_runs.into_iter().chain(replays).collect())
}
