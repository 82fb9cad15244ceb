//! HTTP: a shop behind the door against the same shop with a transaction of its own and no key, and one behind the gateway against nginx.

use std::path::{Path, PathBuf};

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

/// What receives an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// The shop, with a transaction of its own.
    Shop,
    /// The shop behind the door, in the transaction of the key.
    Door,
    /// The shop behind the door, with a transaction of its own under a lease.
    LeasedDoor,
    /// The gateway, with the shop behind it.
    Gateway,
    /// nginx, with the shop behind it.
    Nginx,
}

impl Front {
    fn has_keys(self) -> bool {
        matches!(self, Self::Door | Self::LeasedDoor | Self::Gateway)
    }
}

/// A case's names, ours and its baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Of the median at a fixed rate, of first requests a second, and of replays a second.
    pub(crate) names: [&'static str; 3],
    ours: Front,
    baseline: Front,
}

pub(crate) const PAIRS: [Pair; 3] = [
    Pair {
        names: ["http_p50_500", "http_throughput", "http_replay"],
        ours: Front::Door,
        baseline: Front::Shop,
    },
    Pair {
        names: ["http_leased_p50_500", "http_leased_throughput", "http_leased_replay"],
        ours: Front::LeasedDoor,
        baseline: Front::Shop,
    },
    Pair {
        names: ["http_gateway_p50_500", "http_gateway_throughput", "http_gateway_replay"],
        ours: Front::Gateway,
        baseline: Front::Nginx,
    },
];

/// A shop with a database of its own.
struct Shop<'s> {
    stage: &'s Stage,
    database: Database,
    front: Front,
    /// Of what receives the orders.
    port: u16,
    members: Vec<Member>,
    watch: PgConnection,
    /// Requests that were answered for the first time.
    answered: u64,
}

impl<'s> Shop<'s> {
    async fn open(stage: &'s Stage, front: Front) -> anyhow::Result<Self> {
        let database = Database::create(&stage.servers.urls().postgres).await?;
        let folder = stage.scratch.path();
        let configuration: PathBuf = folder.join("shop.toml");
        let (port, own_port) = (free_port()?, free_port()?);
        let gateway = format!(
            "[gateway]\nlisten = \"127.0.0.1:{port}\"\nupstream = \"http://127.0.0.1:{own_port}\"\ntenant = {{ fixed = \"acme\" }}\nprincipal = []\n"
        );
        std::fs::write(&configuration, COMMON.to_owned() + &gateway)?;
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
        let start = |role, program: &str, arguments: &[&str]| {
            let log = folder.join(format!("{role}-{port}.log"));
            let process = stage.start(program, arguments, &environment, &log)?;
            anyhow::Ok(Member { role, process })
        };
        let is_behind = matches!(front, Front::Gateway | Front::Nginx);
        let shop_port = if is_behind { own_port } else { port }.to_string();
        let mut arguments = vec!["serve", "--port", &shop_port];
        match front {
            Front::Door => arguments.extend(["--door", "transactional"]),
            Front::LeasedDoor => arguments.extend(["--door", "leased"]),
            Front::Shop | Front::Gateway | Front::Nginx => {}
        }
        let mut members = vec![start("shop", "bench", &arguments)?];
        if is_behind {
            // A client that sends nothing waits until the shop listens.
            let nothing =
                ["order", "--port", &shop_port, "--requests", "0", "--seed", "0", "--connections", "1"];
            stage.ask("bench", &nothing, &[]).await?;
        }
        match front {
            Front::Gateway => members.push(start("gateway", "oncely", &["gateway"])?),
            Front::Nginx => {
                let file = folder.join(format!("nginx-{port}.conf"));
                std::fs::write(&file, nginx_configuration(folder, port, own_port))?;
                let (file, nginx) = (file.display().to_string(), testbed::nginx()?.display().to_string());
                members.push(start("nginx", &nginx, &["-c", &file, "-e", "stderr"])?);
            }
            Front::Shop | Front::Door | Front::LeasedDoor => {}
        }
        Ok(Self { stage, database, front, port, members, watch, answered: 0 })
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
            eprintln!("{:?} {told}: {measured:?}", self.front);
        }
        Ok((measured, told))
    }

    /// Each order took effect once, and where there are keys, under its own.
    async fn close(mut self) -> anyhow::Result<()> {
        let mut facts =
            vec!["select count(distinct key) from bench.payments", "select count(*) from bench.payments"];
        facts.extend(self.front.has_keys().then_some(
            "select count(*) from oncely.idempotency_keys as k join bench.payments as p on p.key = k.key
             where k.status = 'COMPLETED' and coalesce(k.http_status = 201, k.response is not null)",
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

/// Returns the settings of an nginx before the shop: its defaults, and one process, of which the CPU time is read.
fn nginx_configuration(folder: &Path, port: u16, shop_port: u16) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}/nginx-{port}-{kind};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx-{port}.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         server {{\nlisten 127.0.0.1:{port};\nlocation / {{ proxy_pass http://127.0.0.1:{shop_port}; }}\n}}\n}}\n"
    )
}

/// From a request's time to its whole answer, at a fixed rate; the median.
pub(crate) async fn latency(rounds: &Rounds<'_>, pair: Pair) -> anyhow::Result<Vec<Outcome>> {
    let [name, ..] = pair.names;
    let (rate, warm_up) = (RATE.to_string(), (RATE * WARM_UP).to_string());
    let more = ["--rate", &rate, "--warm-up", &warm_up];
    let (mut us, mut them) = (Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say(name, round);
        for is_ours in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let mut shop = Shop::open(rounds.stage, if is_ours { pair.ours } else { pair.baseline }).await?;
            let (_, told) = shop.order(u64::from(round), RATE * (WARM_UP + SPAN), &more).await?;
            shop.close().await?;
            let times = ["p50_ms", "p99_ms"].map(|time| told[time].as_f64().unwrap_or_default());
            if is_ours { us.push(times) } else { them.push(times) }
        }
    }
    let of = |side: &[[f64; 2]], time: usize| {
        json!(rounded(Figure(side.iter().map(|times| times[time]).collect()).median()))
    };
    let ratios = us.iter().zip(&them).map(|(us, them)| us[0] / them[0]).collect();
    let outcome = find(name).map(|case| {
        Outcome::new(case, ratios)
            .note("ours_p50_ms", of(&us, 0))
            .note("ours_p99_ms", of(&us, 1))
            .note("baseline_p50_ms", of(&them, 0))
            .note("baseline_p99_ms", of(&them, 1))
    });
    Ok(outcome.into_iter().collect())
}

/// Requests a second: of first ones against the baseline's, and of retries against first ones.
pub(crate) async fn throughput(rounds: &Rounds<'_>, pair: Pair) -> anyhow::Result<Vec<Outcome>> {
    let [_, first_name, replay_name] = pair.names;
    let requests = rounds.messages / 2;
    let (mut first, mut again, mut them) = (Side::default(), Side::default(), Side::default());
    for round in 0..rounds.rounds {
        rounds.say(first_name, round);
        for is_ours in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let mut shop = Shop::open(rounds.stage, if is_ours { pair.ours } else { pair.baseline }).await?;
            // Connections and caches are cold.
            shop.order(1_000_000, 1_000, &[]).await?;
            let seed = u64::from(round);
            let measured = shop.order(seed, requests, &[]).await?.0;
            if is_ours {
                first.0.push(measured);
                again.0.push(shop.order(seed, requests, &["--replayed"]).await?.0);
            } else {
                them.0.push(measured);
            }
            shop.close().await?;
        }
    }
    let first_runs = find(first_name)
        .map(|case| Outcome::new(case, ratios(&first, &them, |run| run.rate)).of(&first, &them));
    let replays = find(replay_name)
        .map(|case| Outcome::new(case, ratios(&again, &first, |run| run.rate)).of(&again, &first));
    Ok(first_runs.into_iter().chain(replays).collect())
}
