//! A worker or a relay; in a trial with a way of its own to each server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;

use super::ArenaConfig;
use crate::proxy::{Protocol, Proxy};
use crate::{Database, Process, Urls, free_port};

/// One of the three servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Server {
    Postgres,
    RabbitMq,
    Redis,
}

/// A process under test.
#[derive(Debug)]
pub struct Member {
    /// `worker-1`, …
    pub name: String,
    /// The process.
    pub process: Process,
    /// Where it says its metrics, if it does.
    pub(super) metrics: Option<u16>,
    links: Option<Links>,
}

/// Its ways to the servers.
#[derive(Debug)]
struct Links {
    postgres: Proxy,
    rabbitmq: Proxy,
    redis: Proxy,
}

impl Links {
    async fn start(servers: &Urls) -> anyhow::Result<Self> {
        Ok(Self {
            postgres: Proxy::start(Protocol::Postgres, address(&servers.postgres)?).await?,
            rabbitmq: Proxy::start(Protocol::Amqp, address(&servers.rabbitmq)?).await?,
            redis: Proxy::start(Protocol::Plain, address(&servers.redis)?).await?,
        })
    }

    /// Where they begin, for a login of the program's own.
    fn urls(&self, program: &str, database: &Database) -> Urls {
        let Self { postgres, rabbitmq, redis } = self;
        Urls {
            postgres: format!("postgres://arena_{program}@127.0.0.1:{}/{}", postgres.port(), database.name()),
            rabbitmq: format!("amqp://guest:guest@127.0.0.1:{}/%2f", rabbitmq.port()),
            redis: format!("redis://127.0.0.1:{}/", redis.port()),
        }
    }
}

/// What each program reads of its environment.
pub(super) fn environment(folder: &Path, urls: &Urls) -> [(&'static str, String); 4] {
    [
        ("ONCELY_CONFIG", folder.join("oncely.toml").display().to_string()),
        ("DATABASE_URL", urls.postgres.clone()),
        ("AMQP_URL", urls.rabbitmq.clone()),
        ("REDIS_URL", urls.redis.clone()),
    ]
}

/// `127.0.0.1:<port>` of a URL.
pub(super) fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let port =
        host.split('/').next().and_then(|host| host.rsplit_once(':')).context("a URL without a port")?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port.1.parse()?)))
}

impl Member {
    /// `urls`: of the servers and of the database.
    pub(super) async fn start(
        config: &ArenaConfig,
        folder: &Path,
        program: &str,
        number: usize,
        urls: &Urls,
        database: &Database,
    ) -> anyhow::Result<Self> {
        let name = format!("{program}-{number}");
        let is_direct = config.plain || config.hosts.is_some();
        let links = if is_direct { None } else { Some(Links::start(urls).await?) };
        let urls = links.as_ref().map_or_else(|| urls.clone(), |links| links.urls(program, database));
        let hosts = config.hosts.iter().flat_map(|hosts| hosts.environment(program, database));
        // What is said last counts.
        let own: Vec<_> = environment(folder, &urls).into_iter().chain(hosts).collect();
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let metrics = match (is_direct, program) {
            (false, "worker" | "charging" | "observer" | "gateway") => Some(free_port()?),
            _ => None,
        };
        let listens = if program == "gateway" { "ONCELY_GATEWAY__METRICS" } else { "ONCELY_WORKER__LISTEN" };
        let listen = metrics.map(|port| (listens, format!("127.0.0.1:{port}")));
        let listen = listen.iter().map(|(name, address)| (*name, address.as_str()));
        let named = [("ONCELY_WORKER__NAME", name.as_str())];
        let more = config.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<(&str, &str)> = own.chain(named).chain(listen).chain(more).collect();
        let log = folder.join(format!("{name}.log"));
        let (file, arguments): (&str, &[&str]) = match program {
            "gateway" => ("oncely", &["gateway"]),
            "observer" => ("worker", &[]),
            program => (program, &[]),
        };
        let process = Process::start(&config.binaries.join(file), arguments, &all, &log)?;
        Ok(Self { name, process, metrics, links })
    }

    /// Its way to a server, which a trial can cut; [`ArenaConfig::plain`] has none.
    #[must_use]
    pub fn link(&self, server: Server) -> Option<&Proxy> {
        let links = self.links.as_ref()?;
        Some(match server {
            Server::Postgres => &links.postgres,
            Server::RabbitMq => &links.rabbitmq,
            Server::Redis => &links.redis,
        })
    }
}
