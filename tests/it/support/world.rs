//! What a test works with.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use testbed::proxy::{Protocol, Proxy};
use testbed::{Broker, Database, Process, Scratch, Signal, Urls, eventually};
use tokio::sync::OnceCell;

use super::{HANDLER, login, program, servers};

/// A database, queues and programs of one test.
pub(crate) struct World {
    pub(crate) urls: Urls,
    pub(crate) database: Database,
    pub(crate) sql: PgConnection,
    pub(crate) broker: Broker,
    prefix: String,
    scratch: Scratch,
    configuration: String,
    /// What a program may have of memory.
    memory: Option<u64>,
}

/// Whose events are for which nobody says it: as an application with one tenant has it.
const TENANT: &str = "
    do $$ begin execute format('alter database %I set oncely.tenant = shop', current_database()); end $$;
    set oncely.tenant = shop";

/// Creates the migrations' objects, the handler of [`HANDLER`], and the programs' logins; nobody stays connected.
async fn fill(database: &Database) -> anyhow::Result<()> {
    let mut sql = database.connect().await?;
    oncely_postgres::MIGRATOR.run(&mut sql).await?;
    sqlx::raw_sql(HANDLER).execute(&mut sql).await?;
    sqlx::raw_sql(login::OF_PROGRAMS).execute(&mut sql).await?;
    Ok(sql.close().await?)
}

/// The migrated database that tests copy, which costs less than the migrations. Tests of one build share it, each in its process.
async fn template(urls: &Urls) -> &'static Database {
    static TEMPLATE: OnceCell<Database> = OnceCell::const_new();
    let mut hasher = DefaultHasher::new();
    oncely_postgres::MIGRATOR.iter().for_each(|migration| migration.checksum.hash(&mut hasher));
    (HANDLER, login::OF_PROGRAMS).hash(&mut hasher);
    TEMPLATE
        .get_or_init(async || {
            Database::template(&urls.postgres, hasher.finish(), fill).await.expect("a template")
        })
        .await
}

/// Properties of a message with a tenant and a key.
pub(crate) fn message(tenant: &str, key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString(tenant.into()));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

impl World {
    /// On the shared servers, with the migrations and the handler of [`HANDLER`], without Redis.
    pub(crate) async fn new() -> Self {
        let urls = servers().await.urls().clone();
        let copy = template(&urls).await.copy().await.expect("a copy");
        Self::in_database(copy, urls).await
    }

    /// On other servers.
    pub(crate) async fn on(urls: Urls) -> Self {
        let database = match std::env::var("DATABASE_URL").is_ok_and(|url| url == urls.postgres) {
            true => template(&urls).await.copy().await.expect("a copy"),
            false => {
                let database = Database::create(&urls.postgres).await.expect("database");
                return Self::in_new_database(database, urls).await;
            }
        };
        Self::in_database(database, urls).await
    }

    /// In a database without our schema.
    pub(crate) async fn in_new_database(database: Database, urls: Urls) -> Self {
        fill(&database).await.expect("migrations");
        Self::in_database(database, urls).await
    }

    /// With a configuration of its own, on the database of another one.
    pub(crate) async fn on_database_of(other: &Self) -> Self {
        Self::in_database(other.database.clone(), other.urls.clone()).await
    }

    async fn in_database(database: Database, urls: Urls) -> Self {
        let mut sql = database.connect().await.expect("connection");
        // Not a copy's own: as a new installation has them.
        sqlx::raw_sql(
            "update oncely.cell set history_id = default; update oncely.secrets set id = default, secret = default",
        )
            .execute(&mut sql)
            .await
            .expect("a history");
        sqlx::raw_sql(TENANT).execute(&mut sql).await.expect("tenant");
        Self {
            broker: Broker::connect(&urls.rabbitmq).await.expect("broker"),
            prefix: format!("test-{}", uuid::Uuid::new_v4().simple()),
            scratch: Scratch::new("world").expect("scratch"),
            configuration: String::new(),
            memory: None,
            urls,
            database,
            sql,
        }
    }

    /// Programs that start from now on may have so many bytes of memory (RLIMIT_DATA).
    pub(crate) fn limit_memory(&mut self, bytes: u64) {
        self.memory = Some(bytes);
    }

    /// Appends to the configuration.
    pub(crate) fn configure(&mut self, text: &str) {
        self.configuration.push_str(text);
        self.configuration.push('\n');
        std::fs::write(self.file(), &self.configuration).expect("configuration");
    }

    /// Adds a consumer that reads [`World::queue`]`(name)`, with quick retries. `settings` are further lines; what they do
    /// not set has a default.
    pub(crate) fn consumer(&mut self, name: &str, settings: &str) {
        let mut text =
            format!("[[consumers]]\nname = {name:?}\nqueue = {:?}\n{settings}\n", self.queue(name));
        for (key, default) in [
            ("tenant", "{ header = \"x-tenant-id\" }"),
            ("key", "{ property = \"message_id\" }"),
            ("handler", "{ function = \"app.handle\" }"),
            ("retry", "{ delays = [\"100ms\"], max_attempts = 3 }"),
            ("queue_type", "\"classic\""),
        ] {
            if !settings.lines().any(|line| line.trim_start().starts_with(&format!("{key} ="))) {
                text.push_str(&format!("{key} = {default}\n"));
            }
        }
        self.configure(&text);
    }

    /// Tells the database of a consumer, as a worker does when it starts; `retention` as PostgreSQL reads it.
    pub(crate) async fn register(&mut self, consumer: &str, retention: &str) {
        sqlx::query("select oncely.register_consumer($1, $2::text::interval, '1 hour', 'body', 'dead_letter', 'test')")
            .bind(consumer)
            .bind(retention)
            .execute(&mut self.sql)
            .await
            .expect("registered");
    }

    /// Changes the configuration.
    pub(crate) fn reconfigure(&mut self, from: &str, to: &str) {
        assert!(self.configuration.contains(from), "{from} is not in {}", self.configuration);
        self.configuration = self.configuration.replace(from, to);
        std::fs::write(self.file(), &self.configuration).expect("configuration");
    }

    /// Turns the mirror on, with a budget that a busy machine does not exceed.
    pub(crate) fn with_redis(&mut self, url: &str, settings: &str) {
        self.configure(&format!("[redis]\nurl = {url:?}\n[mirror]\nbudget = \"5s\"\n{settings}"));
    }

    /// The name of a consumer's queue.
    pub(crate) fn queue(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// The configuration file.
    pub(crate) fn file(&self) -> PathBuf {
        self.scratch.path().join("oncely.toml")
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("ONCELY_CONFIG", self.file().display().to_string()),
            ("DATABASE_URL", self.database.url().to_owned()),
            ("AMQP_URL", self.urls.rabbitmq.clone()),
        ]
    }

    /// The configuration as the library sees it, with the servers' URLs.
    pub(crate) fn config(&self) -> oncely::config::Config {
        let url = format!("[postgres]\nurl = {:?}\n", self.database.url());
        let mut text = self.configuration.clone();
        if text.contains("[postgres]\n") {
            text = text.replace("[postgres]\n", &url);
        } else {
            text.push_str(&url);
        }
        text.push_str(&format!("[rabbitmq]\nurl = {:?}\n", self.urls.rabbitmq));
        oncely::config::Config::parse(&text).expect("configuration")
    }

    /// Declares the queues.
    pub(crate) async fn apply_topology(&self) {
        let output = self.oncely(&["topology", "apply"]).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs `oncely` to its end.
    pub(crate) async fn oncely(&self, arguments: &[&str]) -> Output {
        self.oncely_with(arguments, &[]).await
    }

    /// Runs `oncely` to its end with further environment variables.
    pub(crate) async fn oncely_with(&self, arguments: &[&str], more: &[(&str, &str)]) -> Output {
        let mut command = tokio::process::Command::new(program("oncely"));
        command.args(arguments).env_remove("REDIS_URL").envs(self.environment()).envs(more.iter().copied());
        command.output().await.expect("oncely")
    }

    /// Starts one of the programs.
    pub(crate) fn start(&self, name: &str) -> Process {
        self.start_as(name, name)
    }

    /// Starts one of the programs, with a name for its log and for the audit trail.
    pub(crate) fn start_as(&self, name: &str, as_name: &str) -> Process {
        self.start_with(name, as_name, &[])
    }

    /// Starts one of the programs with further environment variables.
    pub(crate) fn start_with(&self, name: &str, as_name: &str, more: &[(&'static str, String)]) -> Process {
        self.start_verb(name, &[], as_name, more)
    }

    /// Starts one of the programs with arguments and further environment variables. Where no other user is said, workers, relays and
    /// gateways log in with their role's rights alone.
    pub(crate) fn start_verb(
        &self,
        name: &str,
        arguments: &[&str],
        as_name: &str,
        more: &[(&'static str, String)],
    ) -> Process {
        let mut environment = self.environment();
        // One that stands in a file is said nowhere else.
        let in_file = |name: &str| more.iter().any(|(other, _)| other.strip_suffix("_FILE") == Some(name));
        environment.retain(|(name, _)| !in_file(name));
        environment.extend(more.iter().cloned());
        if let Some(login) = login::of_program(name, arguments) {
            let owner = login::user(self.database.url());
            for (_, url) in environment
                .iter_mut()
                .filter(|(name, url)| *name == "DATABASE_URL" && login::user(url) == owner)
            {
                *url = login::url(url, login);
            }
        }
        environment.push(("ONCELY_WORKER__NAME", as_name.to_owned()));
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let log = self.scratch.path().join(format!("{as_name}.log"));
        // The configuration of the test decides about Redis, not the environment of whoever runs it; and a program sees to
        // its own stack.
        let program = program(name);
        let program = program.to_str().expect("path");
        let unset = ["REDIS_URL", "RUST_MIN_STACK", "DATABASE_URL", "AMQP_URL"];
        let unset = unset.iter().filter(|name| !environment.iter().any(|(set, _)| set == *name));
        let mut all: Vec<&str> = unset.flat_map(|name| ["-u", *name]).collect();
        let limit = self.memory.map(|bytes| format!("--data={bytes}"));
        if let Some(limit) = &limit {
            all.extend(["/usr/bin/prlimit", limit, "--"]);
        }
        all.push(program);
        all.extend(arguments);
        Process::start("/usr/bin/env".as_ref(), &all, &environment, &log).expect("program")
    }

    /// A proxy in front of RabbitMQ, and the URL that leads through it.
    pub(crate) async fn proxied_rabbitmq(&self) -> (Proxy, String) {
        let mut through: url::Url = self.urls.rabbitmq.parse().expect("url");
        let upstream = format!("127.0.0.1:{}", through.port().expect("port")).parse().expect("address");
        let proxy = Proxy::start(Protocol::Amqp, upstream).await.expect("proxy");
        through.set_port(Some(proxy.port())).expect("port");
        (proxy, through.to_string())
    }

    /// A proxy in front of PostgreSQL, and the environment of a program that goes through it.
    pub(crate) async fn proxied_postgres(&self) -> (Proxy, [(&'static str, String); 1]) {
        let mut through: url::Url = self.database.url().parse().expect("url");
        let upstream = format!("127.0.0.1:{}", through.port().expect("port")).parse().expect("address");
        let proxy = Proxy::start(Protocol::Postgres, upstream).await.expect("proxy");
        through.set_port(Some(proxy.port())).expect("port");
        (proxy, [("DATABASE_URL", through.to_string())])
    }

    /// Publishes a JSON body to a consumer's queue.
    pub(crate) async fn publish(&self, consumer: &str, properties: BasicProperties, body: &str) {
        self.publish_bytes(consumer, properties, body.as_bytes()).await;
    }

    /// Publishes a body to a consumer's queue.
    pub(crate) async fn publish_bytes(&self, consumer: &str, properties: BasicProperties, body: &[u8]) {
        self.broker.publish("", &self.queue(consumer), properties, body).await.expect("published");
    }

    /// A number from a query.
    pub(crate) async fn count(&mut self, query: &str) -> i64 {
        let row = sqlx::query(AssertSqlSafe(query.to_owned())).fetch_one(&mut self.sql).await.expect(query);
        row.get(0)
    }

    /// A text from a query.
    pub(crate) async fn text(&mut self, query: &str) -> Option<String> {
        let row =
            sqlx::query(AssertSqlSafe(query.to_owned())).fetch_optional(&mut self.sql).await.expect(query);
        row.and_then(|row| row.get(0))
    }

    /// Waits until a query gives a number.
    pub(crate) async fn wait_for(&mut self, query: &str, wanted: i64) {
        self.wait_within(testbed::DEADLINE, query, wanted).await;
    }

    /// Waits, for `limit` at most, until a query gives a number.
    pub(crate) async fn wait_within(&mut self, limit: Duration, query: &str, wanted: i64) {
        let connection = tokio::sync::Mutex::new(&mut self.sql);
        testbed::eventually_within(limit, query, || async {
            let mut connection = connection.lock().await;
            let row = sqlx::query(AssertSqlSafe(query.to_owned())).fetch_one(&mut **connection).await;
            match row.map(|row| row.get::<i64, _>(0)) {
                Ok(found) if found == wanted => Ok(()),
                Ok(found) => Err(format!("{found} instead of {wanted}")),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
        .expect("in time");
    }

    /// Waits like [`World::wait_for`], while other messages of the consumer succeed: they are the witnesses without which failures of
    /// several messages are judged by none.
    pub(crate) async fn wait_beside_good_ones(&mut self, consumer: &str, query: &str, wanted: i64) {
        let start = std::time::Instant::now();
        while self.count(query).await != wanted {
            assert!(start.elapsed() < testbed::DEADLINE, "{query} is not {wanted}");
            let witness = format!("witness-{}", uuid::Uuid::new_v4());
            self.publish(consumer, message("witness", &witness), "{}").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a queue has so many ready messages.
    pub(crate) async fn wait_for_ready(&self, queue: &str, wanted: u32) {
        eventually(&format!("{wanted} messages in {queue}"), || async {
            let ready = self.broker.ready(queue).await?;
            if ready == wanted { Ok(()) } else { Err(anyhow::anyhow!("{ready} are ready")) }
        })
        .await
        .expect("in time");
    }

    /// Waits until some program has printed a text.
    pub(crate) async fn wait_for_line(&self, process: &Process, text: &str) {
        self.wait_for_lines(process, text, 1).await;
    }

    /// Waits until some program has printed a text so many times.
    pub(crate) async fn wait_for_lines(&self, process: &Process, text: &str, times: usize) {
        eventually(&format!("{times} lines with {text:?}"), || async {
            let output = process.output();
            if output.matches(text).count() >= times { Ok(()) } else { Err(output) }
        })
        .await
        .expect("in time");
    }

    /// Stops a worker by SIGTERM and checks that it exits 0 and has left nothing unacknowledged that took effect.
    pub(crate) async fn stop(&self, process: Process) {
        self.stopped_log(process).await;
    }

    /// The same, with all that it has printed.
    pub(crate) async fn stopped_log(&self, mut process: Process) -> String {
        // Before it listens, the signal would just kill it.
        eventually("it listens to signals", || async {
            if process.catches(Signal::TERM) { Ok(()) } else { Err(process.output()) }
        })
        .await
        .expect("in time");
        let status = process.terminate(Duration::from_secs(30)).await.expect("end");
        let output = process.output();
        assert!(status.success(), "{status}: {output}");
        output
    }

    /// Kills a program with -9.
    pub(crate) fn kill(&self, process: &mut Process) {
        process.signal(Signal::KILL).expect("kill");
        process.kill().expect("reaped");
    }
}
