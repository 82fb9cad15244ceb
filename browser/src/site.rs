//! What the console looks at: private servers, a database, a worker and a relay, and the console itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use testbed::{Broker, Database, Process, Scratch, Servers, eventually};
use tokio::sync::Mutex;
use url::Url;

/// Retries are over at once, and duplicates stand in the trail.
const CONFIGURATION: &str = r#"
[audit]
duplicates = true

[relay]
poll = "50ms"

[events]
retry = { delays = ["100ms"], max_attempts = 2 }

[mirror]
budget = "5s"
"#;

/// The consumers; a queue's name is its consumer's.
pub(crate) const CONSUMERS: [&str; 3] = ["payments", "ledger", "emails"];

/// Everything that a check needs beside the browser.
pub(crate) struct Site {
    /// Where the console is: `http://127.0.0.1:PORT/`.
    pub(crate) address: Url,
    /// The link that was printed, which lets one in once.
    pub(crate) link: Url,
    sql: Mutex<PgConnection>,
    broker: Broker,
    // They end before what they use.
    _programs: Vec<Process>,
    _scratch: Scratch,
    _servers: Servers,
}

impl Site {
    /// Starts it all. `programs`: the folder with worker, relay and oncely.
    pub(crate) async fn open(programs: &Path) -> anyhow::Result<Self> {
        let servers = Servers::start_private().await?;
        let urls = servers.urls().clone();
        let database = Database::create(&urls.postgres).await?;
        let scratch = Scratch::new("browser")?;
        let file = scratch.path().join("oncely.toml");
        let mut configuration = CONFIGURATION.to_owned();
        for name in CONSUMERS {
            configuration.push_str(&consumer(name));
        }
        std::fs::write(&file, configuration)?;
        let environment = [
            ("ONCELY_CONFIG", file.display().to_string()),
            ("DATABASE_URL", database.url().to_owned()),
            ("AMQP_URL", urls.rabbitmq.clone()),
            ("REDIS_URL", urls.redis.clone()),
            // Who it was that started the console.
            ("SUDO_USER", "ana".to_owned()),
        ];
        let start = |name: &str, arguments: &[&str]| {
            let log = scratch.path().join(format!("{name}-{}.log", arguments.first().unwrap_or(&"")));
            let mut environment: Vec<_> =
                environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
            if name == "worker" {
                environment.push(("ONCELY_WORKER__NAME", "worker-1"));
            }
            Process::start(&programs.join(name), arguments, &environment, &log)
        };
        run(start("oncely", &["migrate"])?).await?;
        let mut sql = database.connect().await?;
        sqlx::raw_sql(include_str!("shop.sql")).execute(&mut sql).await?;
        run(start("oncely", &["topology", "apply"])?).await?;
        let (worker, relay) = (start("worker", &[])?, start("relay", &[])?);
        let console = start("oncely", &["console", "--listen", "127.0.0.1:0"])?;
        let link = printed_link(&console).await?;
        Ok(Self {
            address: link.join("/")?,
            link,
            sql: Mutex::new(sql),
            broker: Broker::connect(&urls.rabbitmq).await?,
            _programs: vec![console, worker, relay],
            _scratch: scratch,
            _servers: servers,
        })
    }

    /// Publishes messages to a consumer: tenant, key and body of each.
    pub(crate) async fn publish(
        &self,
        consumer: &str,
        messages: &[(&str, &str, String)],
    ) -> anyhow::Result<()> {
        let all = messages.iter().map(|(tenant, key, body)| {
            (consumer.to_owned(), properties(tenant, key), body.clone().into_bytes())
        });
        self.broker.publish_all("", all.collect()).await
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut *self.sql.lock().await).await?;
        Ok(())
    }

    /// From now on a payment fails, until [`Site::unlock`].
    pub(crate) async fn lock(&self, keys: &[&str]) -> anyhow::Result<()> {
        let lock = sqlx::query("insert into shop.locked select unnest($1::text[]) on conflict do nothing");
        lock.bind(keys).execute(&mut *self.sql.lock().await).await?;
        Ok(())
    }

    /// The handler is mended for these.
    pub(crate) async fn unlock(&self, keys: &[&str]) -> anyhow::Result<()> {
        let unlock = sqlx::query("delete from shop.locked where key = any($1)");
        unlock.bind(keys).execute(&mut *self.sql.lock().await).await?;
        Ok(())
    }

    /// The first column of what a query finds for a text, as text.
    pub(crate) async fn texts(&self, query: &str, argument: &str) -> anyhow::Result<Vec<String>> {
        let rows = sqlx::query(AssertSqlSafe(query.to_owned()))
            .bind(argument)
            .fetch_all(&mut *self.sql.lock().await)
            .await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Waits until a query counts so many.
    pub(crate) async fn wait_for(&self, query: &str, wanted: i64) -> anyhow::Result<()> {
        eventually(query, || async {
            let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(query.to_owned()));
            match count.fetch_one(&mut *self.sql.lock().await).await {
                Ok(found) if found == wanted => Ok(()),
                Ok(found) => Err(format!("{found} instead of {wanted}")),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Waits like [`Site::wait_for`], while payments succeed, or events arrive as e-mails: without them no failure is judged.
    pub(crate) async fn wait_beside_good_ones(&self, query: &str, wanted: i64) -> anyhow::Result<()> {
        for number in 0..120 {
            let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(query.to_owned()));
            if count.fetch_one(&mut *self.sql.lock().await).await? == wanted {
                return Ok(());
            }
            let key = format!("good-{wanted}-{number}");
            self.publish("payments", &[("initech", &key, r#"{"cents": 100}"#.to_owned())]).await?;
            let email = r#"select oncely.emit('', 'emails', '{}', tenant => 'initech', headers => '{"x-tenant-id": "initech"}')"#;
            self.execute(email).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("not {wanted} within a minute: {query}")
    }

    /// Messages that are ready in a consumer's queue.
    pub(crate) async fn ready(&self, consumer: &str) -> anyhow::Result<u32> {
        self.broker.ready(consumer).await
    }

    /// How often each of these payments took effect.
    pub(crate) async fn effects(&self, keys: &[String]) -> anyhow::Result<Vec<i64>> {
        let count = "select count(p.key) from unnest($1::text[]) with ordinality as k (key, place) left join shop.payments as p using (key)
            group by k.place order by k.place";
        Ok(sqlx::query_scalar(count).bind(keys).fetch_all(&mut *self.sql.lock().await).await?)
    }

    /// The URL of a page; `path` with its query.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address.as_str().trim_end_matches('/'))
    }
}

/// A path with a query of these values.
pub(crate) fn path(path: &str, query: &[(&str, &str)]) -> String {
    let mut serializer = url::form_urlencoded::Serializer::for_suffix(format!("{path}?"), path.len() + 1);
    serializer.extend_pairs(query).finish()
}

fn consumer(name: &str) -> String {
    format!(
        "\n[[consumers]]\nname = {name:?}\nqueue = {name:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\n\
         key = {{ property = \"message_id\" }}\nhandler = {{ function = \"shop.pay\" }}\n\
         retry = {{ delays = [\"100ms\"], max_attempts = 2 }}\n"
    )
}

fn properties(tenant: &str, key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString(tenant.into()));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

async fn run(mut process: Process) -> anyhow::Result<()> {
    let status = process.wait_for_end(Duration::from_secs(60)).await?;
    anyhow::ensure!(status.success(), "{}: {status}: {}", process.program().display(), process.output());
    Ok(())
}

/// What the console says on its stdout.
async fn printed_link(console: &Process) -> anyhow::Result<Url> {
    let link = eventually("the console prints its link", || async {
        let output = console.output();
        output.lines().find(|line| line.starts_with("http://")).map(str::to_owned).ok_or(output)
    });
    let link = link.await?;
    link.parse().with_context(|| format!("no URL: {link}"))
}
