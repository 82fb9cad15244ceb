//! An existing queue with its consumer in Python, taken over: a backlog with copies and conflicts, an observer beside it, kills of everybody,
//! keys seeded from the old consumer's table, cut-over, the way back, and over again. What is counted at the end is counted here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::{Broker, Database, Process, Scratch, Urls, eventually_within};

/// Longest time for a step.
const LIMIT: Duration = Duration::from_secs(180);
/// Of the consumer that is taken over.
const CONSUMER: &str = "orders";
const ROUTING_KEY: &str = "order.placed";
/// The handler takes its time: else a worker would be done before anybody can kill it.
const SLOW: &str = "
create function shop.slow_order(message oncely.message) returns jsonb language plpgsql as $$
begin
    perform pg_sleep(0.003);
    return shop.handle_order(message);
end $$";

/// What the messages are, by whoever made them; or by whoever looked at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Messages with a key that did not come before.
    pub first: u64,
    /// The same key and payload again.
    pub duplicates: u64,
    /// A known key with another payload.
    pub conflicts: u64,
    /// Messages without a key.
    pub unidentified: u64,
    /// What the looker can't tell.
    pub unsure: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct AdoptionReport {
    /// What was published.
    pub sent: Sightings,
    /// What the observer has reported.
    pub observed: Sightings,
    /// Its verdict.
    pub verdict: String,
    /// Effects of the old consumer, and of Oncely's handler.
    pub effects: BTreeMap<String, i64>,
    /// Keys that were seeded.
    pub seeded: i64,
    /// Processes that were killed with -9.
    pub kills: u64,
    /// Keys without an effect.
    pub lost: Vec<String>,
    /// Keys with more than one.
    pub doubled: Vec<String>,
    /// Effects and dead letters that can't be.
    pub odd: Vec<String>,
    /// Dead letters, by reason.
    pub dead_letters: BTreeMap<String, i64>,
}

impl AdoptionReport {
    /// Nothing is lost, doubled or odd, and the observer saw what there was.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.odd.is_empty() && self.sent == self.observed
    }
}

/// A message of the plan.
#[derive(Clone, Debug)]
struct Planned {
    tenant: String,
    /// None has no key.
    key: Option<String>,
    cents: u32,
}

/// Messages in the order in which they are published: originals, copies, payloads under a known key, and messages without a key.
fn plan(messages: usize, seed: u64) -> (Vec<Planned>, Sightings) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sent = Sightings::default();
    let mut originals: Vec<Planned> = Vec::new();
    let mut planned = Vec::with_capacity(messages);
    for number in 0..messages {
        // Half of the copies come soon.
        let known = match originals.len() {
            0 => None,
            count if random.bool() => originals.get(random.usize(count.saturating_sub(50)..count)).cloned(),
            count => originals.get(random.usize(..count)).cloned(),
        };
        let one = match (random.u32(..1_000), known) {
            (0..300, Some(known)) => {
                sent.duplicates += 1;
                known
            }
            (300..320, Some(known)) => {
                sent.conflicts += 1;
                Planned { cents: known.cents + 1_000_000, ..known }
            }
            (320..325, _) => {
                sent.unidentified += 1;
                Planned { tenant: "tenant-0".to_owned(), key: None, cents: 1 }
            }
            _ => {
                sent.first += 1;
                let tenant = format!("tenant-{}", random.u32(..10));
                let one =
                    Planned { tenant, key: Some(format!("order-{number}")), cents: random.u32(1..10_000) };
                originals.push(one.clone());
                one
            }
        };
        planned.push(one);
    }
    (planned, sent)
}

/// Where it takes place.
struct Adoption<'a> {
    programs: &'a Path,
    repository: &'a Path,
    python: PathBuf,
    urls: &'a Urls,
    management: &'a str,
    database: Database,
    sql: PgConnection,
    broker: Broker,
    scratch: Scratch,
    exchange: String,
    queue: String,
    report: AdoptionReport,
}

/// Runs the trial with the programs of a folder and the examples of a repository; `python` as [`crate::python`] has installed it; `management` is
/// the HTTP API of RabbitMQ.
///
/// # Errors
/// Where a step does not come to its end. What is lost or doubled is in the report.
pub async fn adopt(
    programs: &Path,
    repository: &Path,
    python: PathBuf,
    urls: &Urls,
    management: &str,
    messages: usize,
    seed: u64,
) -> anyhow::Result<AdoptionReport> {
    let database = Database::create(&urls.postgres).await?;
    let prefix = format!("adopt-{}", uuid::Uuid::new_v4().simple());
    let mut adoption = Adoption {
        programs,
        repository,
        python,
        urls,
        management,
        sql: database.connect().await?,
        database,
        broker: Broker::connect(&urls.rabbitmq).await?,
        scratch: Scratch::new("adopt")?,
        exchange: format!("{prefix}-shop"),
        queue: format!("{prefix}-orders"),
        report: AdoptionReport::default(),
    };
    let (planned, sent) = plan(messages, seed);
    adoption.report.sent = sent;
    adoption.all(&planned).await?;
    adoption.judge(&planned).await?;
    adoption.clear().await
}

impl Adoption<'_> {
    async fn all(&mut self, planned: &[Planned]) -> anyhow::Result<()> {
        let keys = i64::try_from(self.report.sent.first)?;
        // What was there before.
        self.broker.declare_exchange(&self.exchange, ExchangeKind::Topic).await?;
        self.broker.declare_queue(&self.queue, FieldTable::default()).await?;
        self.broker.bind(&self.queue, &self.exchange, "order.*").await?;
        self.configure("mode = \"observe\"")?;
        self.oncely(&["migrate"]).await?;
        self.run_file("shop.sql").await?;
        sqlx::raw_sql(SLOW).execute(&mut self.sql).await?;
        // An observer beside it.
        self.oncely(&["topology", "apply"]).await?;
        let mut observer = self.start("worker", &[], "observer")?;
        let mut old = self.old()?;
        self.publish(planned).await?;

        self.wait_for_effects("old", keys * 4 / 10).await?;
        self.kill_old(&mut old).await?;
        let seen = "select count(*) from oncely.audit where outcome = 'observed'";
        self.wait_until("all is observed", seen, i64::try_from(planned.len())?).await?;
        let ended = observer.terminate(LIMIT).await?;
        anyhow::ensure!(ended.success(), "the observer: {ended}: {}", observer.output());
        self.read_report().await?;

        // Cut over.
        self.configure("declare = false")?;
        self.oncely(&["topology", "apply"]).await?;
        self.oncely(&["check"]).await?;
        self.seed().await?;
        let mut workers = self.workers()?;
        self.wait_for_effects("oncely", keys * 15 / 100).await?;
        self.kill(&mut workers[0])?;
        self.wait_for_effects("oncely", keys * 25 / 100).await?;
        // And back, for a while: what Oncely has done is told the old consumer.
        for worker in &mut workers {
            let ended = worker.terminate(LIMIT).await?;
            anyhow::ensure!(ended.success(), "a worker: {ended}: {}", worker.output());
        }
        self.run_file("back.sql").await?;
        let before = self.effects("old").await?;
        let mut old = self.old()?;
        self.wait_for_effects("old", before + keys / 20).await?;
        self.kill_old(&mut old).await?;
        self.seed().await?;
        let mut workers = self.workers()?;
        let before = self.effects("oncely").await?;
        self.wait_for_effects("oncely", before + keys / 20).await?;
        self.kill(&mut workers[1])?;
        self.wait_until(
            "every key has its effect",
            "select count(distinct (tenant, order_id)) from shop.effects",
            keys,
        )
        .await?;
        eventually_within(LIMIT, "the queue is empty", || async {
            let ready = self.broker.ready(&self.queue).await?;
            anyhow::ensure!(ready == 0, "{ready} messages are ready");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        for worker in &mut workers {
            let ended = worker.terminate(LIMIT).await?;
            anyhow::ensure!(ended.success(), "a worker: {ended}: {}", worker.output());
        }
        let left = self.broker.ready(&self.queue).await?;
        anyhow::ensure!(left == 0, "{left} messages were left in the queue");
        Ok(())
    }

    /// What is there and must not be, and what must be and is not.
    async fn judge(&mut self, planned: &[Planned]) -> anyhow::Result<()> {
        let mut cents: BTreeMap<(String, String), BTreeSet<i64>> = BTreeMap::new();
        for Planned { tenant, key, cents: amount } in planned {
            if let Some(key) = key {
                cents.entry((tenant.clone(), key.clone())).or_default().insert(i64::from(*amount));
            }
        }
        let rows =
            sqlx::query("select tenant, order_id, cents, writer from shop.effects").fetch_all(&mut self.sql);
        let mut found: BTreeMap<(String, String), u64> = BTreeMap::new();
        for row in rows.await? {
            let (tenant, key, amount): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
            *self.report.effects.entry(row.get(3)).or_default() += 1;
            let name = (tenant, key);
            if !cents.get(&name).is_some_and(|sent| sent.contains(&amount)) {
                self.report.odd.push(format!("an effect that nobody sent: {name:?}, {amount}"));
            }
            *found.entry(name).or_default() += 1;
        }
        for (tenant, key) in cents.keys() {
            match found.get(&(tenant.clone(), key.clone())) {
                None => self.report.lost.push(format!("{tenant} {key}")),
                Some(1) => {}
                Some(_) => self.report.doubled.push(format!("{tenant} {key}")),
            }
        }
        let letters =
            sqlx::query("select tenant, key, reason from oncely.dead_letters").fetch_all(&mut self.sql);
        for row in letters.await? {
            let (tenant, key, reason): (String, String, String) = (row.get(0), row.get(1), row.get(2));
            let is_right = match reason.as_str() {
                "key_conflict" => {
                    cents.get(&(tenant.clone(), key.clone())).is_some_and(|sent| sent.len() > 1)
                }
                reason => reason == "key_missing" && key.is_empty(),
            };
            if !is_right {
                self.report.odd.push(format!("a dead letter: {tenant} {key:?}, {reason}"));
            }
            *self.report.dead_letters.entry(reason).or_default() += 1;
        }
        // Nothing that was only observed took effect, became a letter, or will ever stop a message.
        let of_observer =
            "select count(*) from oncely.audit where consumer = 'orders.observe' and outcome <> 'observed'";
        let others = self.count(of_observer).await?;
        if others > 0 {
            self.report.odd.push(format!("{others} decisions of the observer that are none"));
        }
        Ok(())
    }

    /// Of a bad run everything is left there to look at.
    async fn clear(self) -> anyhow::Result<AdoptionReport> {
        if self.report.is_good() {
            self.broker.delete_topology(&self.queue, &["1s"]).await?;
            self.broker.delete_queue(&format!("{}.observe", self.queue)).await?;
            self.broker.delete_exchange(&self.exchange).await?;
            drop(self.sql);
            self.database.drop_now().await?;
        }
        Ok(self.report)
    }

    fn configure(&self, mode: &str) -> anyhow::Result<()> {
        let text = format!(
            "[rabbitmq]\nmanagement = {:?}\n[[consumers]]\nname = {CONSUMER:?}\nqueue = {:?}\n{mode}\nqueue_type = \"classic\"\n\
             bindings = [{{ exchange = {:?}, routing_key = \"order.*\" }}]\ntenant = {{ header = \"x-tenant-id\" }}\n\
             key = {{ property = \"message_id\" }}\nhandler = {{ function = \"shop.slow_order\" }}\n\
             retry = {{ delays = [\"1s\"], max_attempts = 3 }}\nbatch = 10\nlanes = 1\n",
            self.management, self.queue, self.exchange
        );
        Ok(std::fs::write(self.scratch.path().join("oncely.toml"), text)?)
    }

    async fn publish(&self, planned: &[Planned]) -> anyhow::Result<()> {
        let messages = planned.iter().map(|Planned { tenant, key, cents }| {
            let mut headers = FieldTable::default();
            headers.insert("x-tenant-id".into(), AMQPValue::LongString(tenant.as_str().into()));
            let properties = BasicProperties::default().with_headers(headers);
            let (properties, order) = match key {
                Some(key) => (properties.with_message_id(key.as_str().into()), key.as_str()),
                None => (properties, ""),
            };
            let body = serde_json::json!({ "order": order, "cents": cents }).to_string().into_bytes();
            (ROUTING_KEY.to_owned(), properties, body)
        });
        let messages: Vec<_> = messages.collect();
        for some in messages.chunks(1_000) {
            self.broker.publish_all(&self.exchange, some.to_vec()).await?;
        }
        Ok(())
    }

    fn old(&self) -> anyhow::Result<Process> {
        let script = self.repository.join("examples/adopt/old_consumer.py").display().to_string();
        self.start_program(&self.python, &[&script, &self.queue], "old")
    }

    /// Kills it with -9. Its last transaction is over when its session is.
    async fn kill_old(&mut self, old: &mut Process) -> anyhow::Result<()> {
        self.kill_for_good(old)?;
        let sessions = "select count(*) from pg_stat_activity where application_name = 'old_consumer.py' and datname = current_database()";
        self.wait_until("the old consumer's session is over", sessions, 0).await
    }

    fn workers(&self) -> anyhow::Result<Vec<Process>> {
        ["first", "second"].into_iter().map(|name| self.start("worker", &[], name)).collect()
    }

    fn kill(&mut self, worker: &mut Process) -> anyhow::Result<()> {
        self.report.kills += 1;
        worker.kill_and_restart()
    }

    fn kill_for_good(&mut self, process: &mut Process) -> anyhow::Result<()> {
        self.report.kills += 1;
        process.kill()
    }

    /// Makes the old consumer's keys known.
    async fn seed(&mut self) -> anyhow::Result<()> {
        let copy = std::fs::read_to_string(self.repository.join("examples/adopt/processed.sql"))?;
        let bytes: Vec<u8> = self
            .sql
            .copy_out_raw(&copy)
            .await?
            .try_fold(Vec::new(), async |mut all, some| {
                all.extend_from_slice(&some);
                Ok(all)
            })
            .await?;
        let file = self.scratch.path().join("processed.csv");
        std::fs::write(&file, bytes)?;
        let file = file.display().to_string();
        let told = self.oncely(&["keys", "seed", &file, "--consumer", CONSUMER, "--json"]).await?;
        let told: Value = serde_json::from_str(&told).context("what oncely keys seed says")?;
        self.report.seeded += told["seeded"].as_i64().unwrap_or_default();
        Ok(())
    }

    async fn read_report(&mut self) -> anyhow::Result<()> {
        let output =
            self.command(&["adopt", "report", "--consumer", CONSUMER, "-o", "json"]).output().await?;
        let told: Value = serde_json::from_slice(&output.stdout).context("what oncely adopt report says")?;
        let number = |name: &str| told[name].as_u64().with_context(|| format!("{name} in {told}"));
        self.report.observed = Sightings {
            first: number("keys")?,
            duplicates: number("doubles_stopped")?,
            conflicts: number("conflicts")?,
            unidentified: number("unidentified")?,
            unsure: number("unsure")?,
        };
        self.report.verdict = told["verdict"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("ONCELY_CONFIG", self.scratch.path().join("oncely.toml").display().to_string()),
            ("DATABASE_URL", self.database.url().to_owned()),
            ("AMQP_URL", self.urls.rabbitmq.clone()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ]
    }

    fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.programs.join("oncely"));
        command.args(arguments).env_remove("REDIS_URL").envs(self.environment());
        command
    }

    /// Runs `oncely` to its end; what it printed.
    async fn oncely(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output().await?;
        let told = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "oncely {}: {told}", arguments.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn start(&self, program: &str, arguments: &[&str], name: &str) -> anyhow::Result<Process> {
        self.start_program(&self.programs.join(program), arguments, name)
    }

    fn start_program(&self, program: &Path, arguments: &[&str], name: &str) -> anyhow::Result<Process> {
        let mut environment = self.environment().to_vec();
        environment.push(("ONCELY_WORKER__NAME", name.to_owned()));
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let program = program.display().to_string();
        let all = [&["-u", "REDIS_URL", program.as_str()][..], arguments].concat();
        let log = self.scratch.path().join(format!("{name}.log"));
        Process::start("/usr/bin/env".as_ref(), &all, &environment, &log)
    }

    async fn run_file(&mut self, name: &str) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(self.repository.join("examples/adopt").join(name))?;
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.sql).await.with_context(|| name.to_owned())?;
        Ok(())
    }

    async fn count(&mut self, query: &str) -> anyhow::Result<i64> {
        Ok(sqlx::query(AssertSqlSafe(query.to_owned())).fetch_one(&mut self.sql).await?.get(0))
    }

    async fn effects(&mut self, writer: &str) -> anyhow::Result<i64> {
        self.count(&format!("select count(*) from shop.effects where writer = '{writer}'")).await
    }

    /// Waits for at least so many.
    async fn wait_for_effects(&mut self, writer: &str, wanted: i64) -> anyhow::Result<()> {
        let query = format!("select least(count(*), {wanted}) from shop.effects where writer = '{writer}'");
        self.wait_until(&format!("effects of {writer}"), &query, wanted).await
    }

    async fn wait_until(&mut self, what: &str, query: &str, wanted: i64) -> anyhow::Result<()> {
        let adoption = tokio::sync::Mutex::new(self);
        eventually_within(LIMIT, what, || async {
            let found = adoption.lock().await.count(query).await?;
            anyhow::ensure!(found == wanted, "{found} instead of {wanted}");
            Ok::<_, anyhow::Error>(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_holds_what_it_says() {
        let (planned, sent) = plan(5_000, 7);
        let mut payloads: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut found = Sightings::default();
        for Planned { tenant, key, cents } in planned {
            let Some(key) = key else {
                found.unidentified += 1;
                continue;
            };
            match payloads.get(&(tenant.clone(), key.clone())) {
                None => {
                    payloads.insert((tenant, key), cents);
                    found.first += 1;
                }
                Some(known) if *known == cents => found.duplicates += 1,
                Some(_) => found.conflicts += 1,
            }
        }
        assert_eq!(found, sent);
        assert!(sent.duplicates > 1_000 && sent.conflicts > 50 && sent.unidentified > 10, "{sent:?}");
    }
}
