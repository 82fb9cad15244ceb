//! A worker or a relay, with its own way to each server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;

use super::ArenaConfig;
use crate::Process;
use crate::proxy::{Protocol, Proxy};

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
    postgres: Proxy,
    rabbitmq: Proxy,
    redis: Proxy,
}

/// `127.0.0.1:<port>` of a URL.
pub(super) fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let port =
        host.split('/').next().and_then(|host| host.rsplit_once(':')).context("a URL without a port")?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port.1.parse()?)))
}

/// What a member connects to.
pub(super) struct Upstreams<'a> {
    pub(super) postgres: SocketAddr,
    pub(super) rabbitmq: SocketAddr,
    pub(super) redis: SocketAddr,
    pub(super) database: &'a str,
}

impl Member {
    pub(super) async fn start(
        config: &ArenaConfig,
        folder: &Path,
        program: &str,
        number: usize,
        upstreams: &Upstreams<'_>,
    ) -> anyhow::Result<Self> {
        let name = format!("{program}-{number}");
        let postgres = Proxy::start(Protocol::Postgres, upstreams.postgres).await?;
        let rabbitmq = Proxy::start(Protocol::Amqp, upstreams.rabbitmq).await?;
        let redis = Proxy::start(Protocol::Plain, upstreams.redis).await?;
        let database =
            format!("postgres://arena_{program}@127.0.0.1:{}/{}", postgres.port(), upstreams.database);
        let amqp = format!("amqp://guest:guest@127.0.0.1:{}/%2f", rabbitmq.port());
        let cache = format!("redis://127.0.0.1:{}/", redis.port());
        let file = folder.join("oncely.toml");
        let mut environment = vec![
            ("ONCELY_CONFIG", file.to_str().context("a path that is not UTF-8")?),
            ("ONCELY_WORKER__NAME", &name),
            ("DATABASE_URL", &database),
            ("AMQP_URL", &amqp),
            ("REDIS_URL", &cache),
        ];
        environment.extend(config.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let log = folder.join(format!("{name}.log"));
        let process = Process::start(&config.binaries.join(program), &[], &environment, &log)?;
        Ok(Self { name, process, postgres, rabbitmq, redis })
    }

    /// Its way to a server.
    #[must_use]
    pub fn link(&self, server: Server) -> &Proxy {
        match server {
            Server::Postgres => &self.postgres,
            Server::RabbitMq => &self.rabbitmq,
            Server::Redis => &self.redis,
        }
    }
}
