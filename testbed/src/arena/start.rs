//! How an arena comes about: database, logins, queues, processes.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lapin::types::{AMQPValue, FieldTable};
use sqlx::{AssertSqlSafe, PgConnection};

use super::Arena;
use super::config::ArenaConfig;
use super::member::{Member, environment};
use super::neighbours::Neighbours;
use super::publisher::{Address, Publisher};
use super::watchers::Watchers;
use super::witnesses::Witnesses;
use crate::checker::events::{EXCHANGE, FREE, ORDERED};
use crate::checker::{self, Evidence};
use crate::{Broker, Database, Scratch, Servers, Urls};

/// Who works in a trial, and what they may. No superusers: a revoked grant must hurt.
const LOGINS: &str = "
    do $$
    begin
        create role arena_worker login in role oncely_worker;
        create role arena_charging login in role oncely_worker;
        create role arena_taking login in role oncely_worker;
        create role arena_gateway login in role oncely_worker;
        create role arena_observer login in role oncely_worker;
        create role arena_relay login in role oncely_relay;
        create role arena_application login in role oncely_emitter;
        create role arena_stranger login in role oncely_emitter;
        create role arena_client login in role oncely_consumer;
        create role arena_creator login;
        create role arena_operator login in role oncely_operator;
    exception when duplicate_object then null;
    end $$;
    do $$
    begin
        if to_regprocedure('oncely.grant_right(text, text, text, text)') is not null then
            perform oncely.grant_right('arena_application', 'emit', 'judge.events', '*');
            perform oncely.grant_right('arena_client', 'consume', 'own', '*');
            perform oncely.grant_right('arena_stranger', 'emit', 'judge.events', 'stranger');
        end if;
    end $$";

impl Arena {
    /// Starts servers, declares, starts the processes.
    pub async fn start(config: ArenaConfig) -> anyhow::Result<Self> {
        Self::start_on(Servers::start_private().await?, config).await
    }

    /// The same on servers that another arena has left ([`Arena::leave`]): they start slowly.
    pub async fn start_on(servers: Servers, config: ArenaConfig) -> anyhow::Result<Self> {
        let database = Database::create(&servers.urls().postgres).await?;
        let scratch = Scratch::new("arena")?;
        let queue = format!("{}-{}", config.consumer, uuid::Uuid::new_v4().simple());
        let config = if config.encrypted { encrypting(config, scratch.path())? } else { config };
        std::fs::write(scratch.path().join("oncely.toml"), config.toml(&queue))?;
        let urls = Urls { postgres: database.url().to_owned(), ..servers.urls().clone() };
        for arguments in [&["migrate"][..], &["topology", "apply"]] {
            let output = oncely_command(&config, scratch.path(), &urls, arguments).output().await?;
            let text = String::from_utf8_lossy(&output.stderr);
            anyhow::ensure!(output.status.success(), "oncely {}: {text}", arguments.join(" "));
        }
        let mut connection = database.connect().await?;
        sqlx::raw_sql(checker::SCHEMA).execute(&mut connection).await?;
        if config.divided {
            sqlx::raw_sql(crate::DIVIDED).execute(&mut connection).await?;
        }
        if !config.plain {
            sqlx::raw_sql(LOGINS).execute(&mut connection).await?;
            set_for_sessions(&mut connection, &config.sessions).await?;
            // A classic queue goes with its node.
            declare_events(&urls.rabbitmq, config.hosts.is_some()).await?;
            if let Some(rabbitmq) = &servers.rabbitmq {
                rabbitmq.flush().await?;
            }
        }
        let start = async |program: &str, count: usize| {
            let mut members = Vec::new();
            for number in 1..=count {
                let member = Member::start(&config, scratch.path(), program, number, &urls, &database);
                members.push(member.await?);
            }
            anyhow::Ok(members)
        };
        let workers = start("worker", config.workers).await?;
        let relays = start("relay", config.relays).await?;
        let mut evidence = Evidence::default();
        evidence.meanwhile.ladders.push(config.ladder()?);
        evidence.encrypted = config.encrypted;
        let neighbours = match config.neighbours.as_slice() {
            [] => None,
            who => Some(Neighbours::start(who, &urls, database.name(), &queue).await?),
        };
        let watchers = match config.watched {
            true => Some(Watchers::start(&config, scratch.path(), &urls, &database).await?),
            false => None,
        };
        let brokers = match &config.hosts {
            None => vec![urls.rabbitmq],
            // A node that says nothing is left for another one.
            Some(hosts) => hosts.rabbitmq_urls("?heartbeat=2").collect(),
        };
        Ok(Self {
            workers,
            relays,
            evidence,
            exits: Vec::new(),
            missing: 0,
            junk: BTreeSet::new(),
            complete_mirror: false,
            partitions: false,
            other_build: None,
            neighbours,
            watchers,
            rare: None,
            started: Instant::now(),
            looked: None,
            decided: BTreeSet::new(),
            witnesses: Witnesses::default(),
            returns: 0,
            forgotten: 0,
            publisher: Publisher::start(brokers, &Address::queue(&queue), config.window()),
            config,
            application: None,
            charging: None,
            doors: None,
            gateways: None,
            observer: None,
            rolled_back: 0,
            watch: Some(connection),
            queue,
            more_queues: Vec::new(),
            database,
            servers,
            scratch,
        })
    }
}

/// The same with bodies that are encrypted before they are stored.
fn encrypting(config: ArenaConfig, folder: &Path) -> anyhow::Result<ArenaConfig> {
    let file = folder.join("keys.toml");
    std::fs::write(&file, format!("[[keys]]\nid = \"trial\"\nkey = \"{}\"\n", "5e".repeat(32)))?;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
    Ok(config.set("encryption", "keys", &format!("{:?}", file.display().to_string())))
}

/// Sets these times for all later sessions of the programs that are struck.
async fn set_for_sessions(
    connection: &mut PgConnection,
    settings: &[(&'static str, Duration)],
) -> anyhow::Result<()> {
    let database: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut *connection).await?;
    for program in ["worker", "charging", "taking", "gateway", "observer", "relay"] {
        for (setting, time) in settings {
            let millis = time.as_millis();
            let set =
                format!("alter role arena_{program} in database {database} set {setting} = '{millis}ms'");
            // Names and numbers of our own.
            sqlx::query(AssertSqlSafe(set)).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// The program `oncely`, with the environment that workers and relays have.
pub(super) fn oncely_command(
    config: &ArenaConfig,
    folder: &Path,
    urls: &Urls,
    arguments: &[&str],
) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(&config.oncely);
    command
        .args(arguments)
        .envs(environment(folder, urls))
        .envs(config.environment.iter().map(|(name, value)| (name, value)));
    command
}

/// The queues of events, empty, and bound to their exchange.
async fn declare_events(url: &str, all_quorum: bool) -> anyhow::Result<()> {
    let broker = Broker::connect(url).await?;
    broker.declare_exchange(EXCHANGE, lapin::ExchangeKind::Direct).await?;
    for (queue, key) in [ORDERED, FREE] {
        // Of a trial before.
        broker.delete_queue(queue).await?;
        let mut arguments = FieldTable::default();
        // Of each type one: both must keep what they have confirmed.
        if all_quorum || queue == ORDERED.0 {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        broker.declare_queue(queue, arguments).await?;
        broker.bind(queue, EXCHANGE, key).await?;
    }
    Ok(())
}
