//! The tarball on a bare Debian: installed as the book says, run as the units say, until a message has taken effect.
//!
//! Kept to of the units: program, environment and its files, credentials, an unprivileged user without capabilities, a read-only root,
//! temporary folders of its own, the notice that it is ready. Filters of system calls and of address families need systemd itself.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sqlx::AssertSqlSafe;
use testbed::{BareRoot, Broker, Browser, Database, Process, Servers, Service, eventually};
use tokio::net::UnixDatagram;

use super::unit::{Unit, credentials_folder};
use crate::process;

/// As systemd gives them to services with DynamicUser=yes.
const FIRST_USER: u32 = 61_184;
/// How long a service may take to be ready, or to end.
const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "trial-0a9b8c7d6e5f4031223344556677";

/// Fails where a step does; says how long it took.
pub(super) async fn run(folder: &Path, tarball: &str) -> anyhow::Result<()> {
    let (servers, root) = tokio::try_join!(Servers::start_private(), async {
        tokio::task::spawn_blocking(BareRoot::copy).await?
    })?;
    let began = Instant::now();
    let told = |what: &str| eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f64());
    install(&root, folder, tarball)?;
    told("installed on a bare Debian");
    let mut site = Site { root, servers, users: FIRST_USER, notices: 0 };
    let database = Database::create(&site.servers.urls().postgres).await?;
    let port = testbed::free_port()?;
    site.configure(&database, port)?;
    site.run_unit("oncely-migrate.service").await?;
    told("migrated, queues declared");
    grant(&database).await?;
    let mut running = Vec::new();
    for name in ["oncely-worker.service", "oncely-relay.service", "oncely-console.service"] {
        running.push((name, site.start(name).await?));
    }
    told("worker, relay and console are running");
    publish(&site.servers).await?;
    wait_until_processed(&database, "select 1 from app.payments where tenant = 'acme' and order_id = '1182'")
        .await?;
    told("a message has taken effect");
    wait_until_processed(&database, "select 1 where not exists (select from oncely.mirror_queue)").await?;
    told("its key is in the mirror");
    check_console(port).await?;
    told("the console shows it to an operator");
    for (name, mut service) in running {
        let ended = service.terminate(LIMIT).await?;
        anyhow::ensure!(ended.success(), "{name}: {ended}\n{}", service.output());
    }
    told("all have ended as they were told");
    Ok(())
}

/// docs/src/how-to/deploy.md, "Install".
fn install(root: &BareRoot, folder: &Path, tarball: &str) -> anyhow::Result<()> {
    for name in [tarball, "SHA256SUMS"] {
        std::fs::copy(folder.join(name), root.path().join("root").join(name))?;
    }
    root.run(&["sh", "-c", "cd /root && sha256sum --check --ignore-missing SHA256SUMS"])?;
    let file = format!("/root/{tarball}");
    root.run(&["tar", "--extract", "--file", &file, "--strip-components=1", "--directory=/"])?;
    // Where the alerts lead.
    root.run(&[
        "grep",
        "--quiet",
        "id=\"oncelypostgresaway\"",
        "/usr/share/doc/oncely/book/how-to/runbooks.html",
    ])?;
    root.run(&["oncely", "--version"])
}

/// A place where the product is installed, and its servers.
struct Site {
    root: BareRoot,
    servers: Servers,
    /// Whom the next service runs as.
    users: u32,
    /// How many sockets for notices there are.
    notices: u32,
}

impl Site {
    /// Writes the configuration and each process's own secrets.
    fn configure(&self, database: &Database, port: u16) -> anyhow::Result<()> {
        let tour = std::fs::read_to_string(process::root().join("examples/tour/oncely.toml"))?;
        let tokens = credentials_folder("oncely-console.service").join("console-tokens");
        let console =
            format!("{tour}\n[console]\nlisten = \"127.0.0.1:{port}\"\ntokens = \"{}\"\n", tokens.display());
        let urls = self.servers.urls();
        let (_, server) = database.url().split_once('@').context("the URL names no user")?;
        let environment = |login: &str| {
            format!(
                "DATABASE_URL=postgres://{login}@{server}\nAMQP_URL={}\nREDIS_URL={}\n",
                urls.rabbitmq, urls.redis
            )
        };
        let folder = self.root.outside(Path::new("/etc/oncely"));
        std::fs::create_dir_all(&folder)?;
        let write = |name: &str, text: &str, mode: u32| -> anyhow::Result<()> {
            let path = folder.join(name);
            std::fs::write(&path, text)?;
            Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
        };
        write("oncely.toml", &tour, 0o644)?;
        write("console.toml", &console, 0o644)?;
        write("console-tokens", &format!("operator bo {TOKEN}\n"), 0o600)?;
        write("migrate.environment", &environment("postgres"), 0o600)?;
        for name in ["worker", "relay", "console"] {
            write(&format!("{name}.environment"), &environment(&format!("trial_{name}")), 0o600)?;
        }
        Ok(())
    }

    /// Runs a unit that does something once.
    async fn run_unit(&mut self, name: &str) -> anyhow::Result<()> {
        let unit = Unit::read(&self.root.path(), name)?;
        for command in &unit.commands {
            let mut process = self.spawn(&unit, command, None)?;
            let ended = process.wait_for_end(LIMIT).await?;
            anyhow::ensure!(ended.success(), "{name}: {}: {ended}\n{}", command.join(" "), process.output());
        }
        Ok(())
    }

    /// Starts a unit that stays; waits until it says that it is ready, where it says so.
    async fn start(&mut self, name: &str) -> anyhow::Result<Process> {
        let unit = Unit::read(&self.root.path(), name)?;
        let [command] = unit.commands.as_slice() else { anyhow::bail!("{name} is no single program") };
        if !unit.notifies {
            return self.spawn(&unit, command, None);
        }
        self.notices += 1;
        let socket = PathBuf::from(format!("/run/notice-{}", self.notices));
        let notices = UnixDatagram::bind(self.root.outside(&socket))?;
        std::fs::set_permissions(self.root.outside(&socket), std::fs::Permissions::from_mode(0o777))?;
        let mut process = self.spawn(&unit, command, Some(&socket))?;
        let ready = async {
            let mut notice = [0_u8; 4096];
            loop {
                let length = notices.recv(&mut notice).await?;
                if String::from_utf8_lossy(&notice[..length]).lines().any(|line| line == "READY=1") {
                    return anyhow::Ok(());
                }
            }
        };
        tokio::select! {
            ready = tokio::time::timeout(LIMIT, ready) => match ready {
                Ok(ready) => ready?,
                Err(_) => anyhow::bail!("{name} is not ready within {LIMIT:?}:\n{}", process.output()),
            },
            ended = process.wait_for_end(2 * LIMIT) => anyhow::bail!("{name}: {}\n{}", ended?, process.output()),
        }
        Ok(process)
    }

    fn spawn(&mut self, unit: &Unit, command: &[String], notices: Option<&Path>) -> anyhow::Result<Process> {
        let user = self.users;
        self.users += 1;
        let mut environment = unit.environment(&self.root.path())?;
        environment.push(("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()));
        if let Some(socket) = notices {
            environment.push(("NOTIFY_SOCKET".to_owned(), socket.display().to_string()));
        }
        let folder = credentials_folder(&unit.name);
        let outside = self.root.outside(&folder);
        for (name, path) in &unit.credentials {
            // One that is missing has an empty text instead (SetCredential=).
            let Ok(secret) = std::fs::read(self.root.outside(path)) else { continue };
            std::fs::create_dir_all(&outside)?;
            let copy = outside.join(name);
            std::fs::write(&copy, secret)?;
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o400))?;
            std::os::unix::fs::chown(&copy, Some(user), Some(user))?;
        }
        environment.push(("CREDENTIALS_DIRECTORY".to_owned(), folder.display().to_string()));
        let log = self.root.path().with_file_name(format!("{}-{user}.log", unit.name));
        self.root.start(&Service { command: command.to_vec(), environment, user }, &log)
    }
}

/// What the application and its administrator do: tables, a handler, a login for each process.
pub(super) async fn grant(database: &Database) -> anyhow::Result<()> {
    let mut connection = database.connect().await?;
    let handler = std::fs::read_to_string(process::root().join("examples/tour/payments.sql"))?;
    sqlx::raw_sql(AssertSqlSafe(handler)).execute(&mut connection).await?;
    let logins = "
        create role trial_worker login in role oncely_worker;
        create role trial_relay login in role oncely_relay;
        create role trial_console login in role oncely_operator;
        grant usage on schema app to trial_worker;
        grant execute on function app.capture_payment(oncely.message) to trial_worker;
        grant insert on app.payments to trial_worker";
    sqlx::raw_sql(logins).execute(&mut connection).await?;
    Ok(())
}

/// A message, by whoever publishes to the queue of examples/tour.
pub(super) async fn publish(servers: &Servers) -> anyhow::Result<()> {
    let broker = Broker::connect(&servers.urls().rabbitmq).await?;
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    let properties = BasicProperties::default().with_message_id("order-1182".into()).with_headers(headers);
    broker.publish("", "payments", properties, br#"{"order": "1182", "amount": 20}"#).await
}

/// Waits until a question has a row for an answer.
pub(super) async fn wait_until_processed(database: &Database, question: &'static str) -> anyhow::Result<()> {
    let mut connection = database.connect().await?;
    let began = Instant::now();
    loop {
        if sqlx::query(question).fetch_optional(&mut connection).await?.is_some() {
            return Ok(());
        }
        anyhow::ensure!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {question}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An operator comes in with a token and sees what was done.
async fn check_console(port: u16) -> anyhow::Result<()> {
    let link = format!("http://127.0.0.1:{port}/login?token={TOKEN}");
    let mut browser = eventually("the console lets an operator in", || Browser::follow(&link)).await?;
    let page = browser.get("/keys?q=key%3Aorder-1182").await?;
    anyhow::ensure!(page.status == 200 && page.body.contains("order-1182"), "the console: {}", page.status);
    Ok(())
}
