//! The Compose file: against its schema and against the repository; and what its services run, run here, one after the other, on servers
//! with the logins that it makes. No container engine is needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use sqlx::Connection as _;
use testbed::{Broker, Postgres, Process, RabbitMq, Redis, Scratch};

use crate::support::{message, program};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A text with the defaults of its variables.
fn plain(text: &str) -> String {
    let parts = text.split("${").map(|part| match part.split_once(":-") {
        Some((_, rest)) => rest.replacen('}', "", 1),
        None => part.to_owned(),
    });
    parts.collect()
}

fn environment(service: &Value) -> Vec<(String, String)> {
    let variables = service["environment"].as_object().into_iter().flatten();
    variables.map(|(name, value)| (name.clone(), plain(value.as_str().unwrap()))).collect()
}

/// The Compose file with its merge keys (`<<`) resolved.
fn compose() -> Value {
    let mut yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read("docker-compose.yml")).unwrap();
    yaml.apply_merge().unwrap();
    serde_json::to_value(yaml).unwrap()
}

#[test]
fn the_compose_file_follows_its_schema() {
    let schema: Value = serde_json::from_str(&read("tests/data/compose-spec.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&compose())
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, Vec::<String>::new());
    // The check can fail.
    let mut broken = compose();
    broken["services"]["worker"]["restart_polcy"] = Value::from("always");
    assert!(!validator.is_valid(&broken));
}

#[test]
fn every_image_is_pinned_and_every_server_has_a_health_check() {
    let compose = compose();
    for (name, service) in compose["services"].as_object().unwrap() {
        let image = service["image"].as_str().unwrap();
        let tag = image.rsplit_once(':').unwrap_or_else(|| panic!("{name}: {image} has no tag")).1;
        assert!(tag.chars().filter(|c| *c == '.').count() >= 1, "{name}: {tag} names no version");
        let is_server = ["postgres", "rabbitmq", "redis"].contains(&name.as_str());
        assert_eq!(service["healthcheck"].is_object(), is_server, "{name}");
        for (on, how) in service["depends_on"].as_object().into_iter().flatten() {
            let target = &compose["services"][on.as_str()];
            assert!(target.is_object(), "{name} waits for {on}, which is not there");
            match how["condition"].as_str().unwrap() {
                "service_healthy" => assert!(target["healthcheck"].is_object(), "{on} has no health check"),
                "service_completed_successfully" => {
                    assert_eq!(target["restart"], "no", "{on} never completes")
                }
                other => panic!("{name}: {other}"),
            }
        }
    }
    assert!(compose["services"]["postgres"]["image"].as_str().unwrap().starts_with("postgres:17"));
    assert!(compose["services"]["rabbitmq"]["image"].as_str().unwrap().starts_with("rabbitmq:4"));
}

#[test]
fn every_path_variable_and_program_that_the_compose_file_names_is_there() {
    let compose = compose();
    let declared: BTreeSet<&str> =
        compose["volumes"].as_object().unwrap().keys().map(String::as_str).collect();
    for (name, service) in compose["services"].as_object().unwrap() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume.as_str().unwrap().split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(path) => assert!(root().join(path).exists(), "{name}: {path}"),
                None => assert!(declared.contains(source), "{name}: {source}"),
            }
        }
        if service["build"].is_string() {
            let words = if service["entrypoint"].is_array() { "entrypoint" } else { "command" };
            let program = service[words][0].as_str().unwrap();
            crate::support::program(program);
        }
    }
    // Compose would put an empty text where a variable without a default is not set.
    let text = read("docker-compose.yml");
    for part in text.split("${").skip(1) {
        let variable = part.split('}').next().unwrap();
        assert!(variable.contains(":-"), "${{{variable}}} has no default");
    }
}

#[test]
fn the_programs_accept_the_environment_that_the_compose_file_gives_them() {
    let compose = compose();
    let scratch = testbed::Scratch::new("compose").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::copy(root().join("examples/tour/oncely.toml"), &file).unwrap();
    let mut command = std::process::Command::new(crate::support::program("oncely"));
    command.env_clear().env("ONCELY_CONFIG", &file).args(["check", "--json"]);
    for (name, value) in environment(&compose["services"]["worker"]) {
        // Nobody listens there; the names of the Compose network mean nothing here.
        let value = value.replace("@postgres:5432", "@127.0.0.1:1").replace("@rabbitmq:5672", "@127.0.0.1:1");
        command.env(name, value.replace("@redis:6379", "@127.0.0.1:1"));
    }
    let output = command.output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["problems"], Value::Array(vec![]), "{object}");
    assert_eq!(output.status.code(), Some(3), "valid, and nobody is there");
}

/// The services of the Compose file, on servers of this machine.
struct Site {
    compose: Value,
    postgres: Postgres,
    rabbitmq: RabbitMq,
    redis: Redis,
    scratch: Scratch,
}

impl Site {
    async fn open() -> Self {
        let compose = compose();
        let services = &compose["services"];
        // The server's program has another name here; its options are the same.
        let words = services["redis"]["command"].as_array().unwrap()[1..].iter();
        let options: Vec<String> = words.map(|word| plain(word.as_str().unwrap())).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (postgres, rabbitmq, redis) =
            tokio::join!(Postgres::start(&[]), RabbitMq::start(), Redis::start_with(&options));
        let mut site = Self {
            postgres: postgres.unwrap(),
            rabbitmq: rabbitmq.unwrap(),
            redis: redis.unwrap(),
            scratch: Scratch::new("compose").unwrap(),
            compose,
        };
        site.initialise().await;
        site.rabbitmq.ctl_script(site.scratch.path()).unwrap();
        site
    }

    /// What PostgreSQL's image does with a new volume; and passwords are asked for.
    async fn initialise(&mut self) {
        let service = self.compose["services"]["postgres"].clone();
        let database = service["environment"]["POSTGRES_DB"].as_str().unwrap();
        let mut sql = sqlx::PgConnection::connect(&self.postgres.url()).await.unwrap();
        let create = format!("create database {database}");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut sql).await.unwrap();
        sql.close().await.unwrap();
        let script = mounted(&service, "/docker-entrypoint-initdb.d/owner.sql");
        let mut psql = Command::new("psql");
        psql.arg(database_of(&self.postgres, database))
            .args(["--set", "ON_ERROR_STOP=1", "--file"])
            .arg(script);
        finish(psql, &service).await;
        let lines = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        self.postgres.write("pg_hba.conf", lines).unwrap();
        self.postgres.restart().await.unwrap();
    }

    /// A service's command, with the servers of this machine.
    fn command(&self, name: &str) -> (Command, Vec<(String, String)>) {
        let service = &self.compose["services"][name];
        let words =
            ["entrypoint", "command"].into_iter().filter_map(|part| service[part].as_array()).flatten();
        let mut words = words.map(|word| word.as_str().unwrap());
        let port = |url: &str| url::Url::parse(url).unwrap().port().unwrap();
        let first = words.next().unwrap();
        let mut command = match first {
            "psql" | "bash" => Command::new(first),
            _ => Command::new(program(first)),
        };
        for word in words {
            match word {
                "postgres" => {
                    command.args(["127.0.0.1", "--port", &port(&self.postgres.url()).to_string(), "oncely"])
                }
                path if path.starts_with('/') => command.arg(mounted(service, path)),
                word => command.arg(word),
            };
        }
        let at =
            |text: String, host: &str, url: &str| text.replace(host, &format!("@127.0.0.1:{}", port(url)));
        let mut variables = environment(service);
        for (_, value) in &mut variables {
            let text = at(std::mem::take(value), "@postgres:5432", &self.postgres.url());
            let text = at(text, "@rabbitmq:5672", &self.rabbitmq.url());
            *value = at(text, "@redis:6379", &self.redis.url());
        }
        // The test's rabbitmqctl has the name of its own broker.
        variables.push(("RIGHTS_FILE".to_owned(), "examples/rights/rabbitmq.sh".to_owned()));
        variables.push(("ONCELY_CONFIG".to_owned(), "examples/tour/oncely.toml".to_owned()));
        let path = std::env::var_os("PATH").unwrap();
        let path = std::iter::once(self.scratch.path().to_owned()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path).unwrap();
        variables.push(("PATH".to_owned(), path.into_string().unwrap()));
        (command, variables)
    }

    /// Runs a service that ends by itself.
    async fn run(&self, name: &str) -> String {
        let (mut command, variables) = self.command(name);
        command.envs(variables);
        finish(command, &Value::Null).await
    }

    fn start(&self, name: &str) -> Process {
        let (command, variables) = self.command(name);
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let log = self.scratch.path().join(name);
        Process::start(Path::new(command.get_program()), &[], &variables, &log).unwrap()
    }
}

fn database_of(server: &Postgres, name: &str) -> String {
    format!("{}/{name}", server.url().rsplit_once('/').unwrap().0)
}

/// The file of the repository that a service sees under this path.
fn mounted(service: &Value, path: &str) -> PathBuf {
    let volumes = service["volumes"].as_array().unwrap().iter().map(|volume| volume.as_str().unwrap());
    let of = |volume: &str| {
        let mut parts = volume.split(':');
        let source = parts.next()?;
        (parts.next() == Some(path)).then(|| root().join(source))
    };
    volumes.filter_map(of).next().unwrap_or_else(|| panic!("{path} is not mounted"))
}

async fn finish(mut command: Command, service: &Value) -> String {
    command.envs(environment(service)).current_dir(root()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap() + &told
}

#[tokio::test]
async fn what_the_services_run_gets_a_message_through_with_a_login_for_each_and_no_superuser() {
    let site = Site::open().await;
    // A second start of Compose runs them again.
    for _ in 0..2 {
        for service in ["rabbitmq-users", "migrate", "handler", "logins", "topology"] {
            site.run(service).await;
        }
    }
    let mut sql = sqlx::PgConnection::connect(&database_of(&site.postgres, "oncely")).await.unwrap();
    let powerful = "select coalesce(string_agg(rolname, ' '), '') from pg_roles
        where rolcanlogin and rolname <> 'postgres' and (rolsuper or rolbypassrls or rolreplication
            or (rolname <> 'oncely' and (rolcreaterole or rolcreatedb)))";
    let powerful: String = sqlx::query_scalar(powerful).fetch_one(&mut sql).await.unwrap();
    assert_eq!(powerful, "");
    let (mut worker, mut relay) = (site.start("worker"), site.start("relay"));
    let broker = Broker::connect(&site.rabbitmq.url()).await.unwrap();
    let body = br#"{"order": "1182", "amount": 5}"#;
    for _ in 0..2 {
        broker.publish("", "payments", message("acme", "order-1182"), body).await.unwrap();
    }
    let sql = tokio::sync::Mutex::new(sql);
    let done =
        "select (select count(*) from app.payments) = 1 and not exists (select from oncely.mirror_queue)
        and exists (select from oncely.audit where outcome = 'duplicate')";
    let waited = testbed::eventually("a payment, once, and mirrored", || async {
        let is_done: bool = sqlx::query_scalar(done)
            .fetch_one(&mut *sql.lock().await)
            .await
            .map_err(|error| error.to_string())?;
        if is_done { Ok(()) } else { Err("not yet".to_owned()) }
    });
    if let Err(error) = waited.await {
        panic!("{error}: {} {}", worker.output(), relay.output());
    }
    let entries: Vec<String> = {
        let stranger = redis::Client::open(site.redis.url()).unwrap();
        let mut stranger = stranger.get_multiplexed_async_connection().await.unwrap();
        let refused: redis::RedisResult<Vec<String>> = redis::AsyncCommands::keys(&mut stranger, "*").await;
        assert_eq!(refused.unwrap_err().code(), Some("NOAUTH"), "nobody comes in without a password");
        let url = site.redis.url().replace("redis://", "redis://:oncely@");
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        redis::AsyncCommands::keys(&mut connection, "oncely:2:*").await.unwrap()
    };
    assert_eq!(entries.len(), 1);
    let told = site.run("oncely").await;
    assert!(told.contains("payments"), "{told}");
    for process in [&mut worker, &mut relay] {
        process.kill().unwrap();
    }
}
