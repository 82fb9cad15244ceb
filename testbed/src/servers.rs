//! The three servers together.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};
use url::Url;

use crate::install::{self, Server};
use crate::link::Forward;
use crate::{Postgres, RabbitMq, RawConnection, Redis, ports};

/// Where the three servers are.
#[derive(Clone, Debug)]
pub struct Urls {
    /// A PostgreSQL database whose user may create databases.
    pub postgres: String,
    /// A RabbitMQ virtual host.
    pub rabbitmq: String,
    /// A Redis or Valkey server.
    pub redis: String,
}

/// A URL that the environment names.
fn url_from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|url| !url.is_empty())
}

/// The three servers: given by their URLs, or private ones that end with this value.
#[derive(Debug)]
pub struct Servers {
    urls: Urls,
    /// Ours, unless `DATABASE_URL` named one.
    pub postgres: Option<Postgres>,
    /// Ours, unless `AMQP_URL` named one.
    pub rabbitmq: Option<RabbitMq>,
    /// Ours, unless `REDIS_URL` named one.
    pub redis: Option<Redis>,
}

impl Servers {
    /// Takes the servers named by `DATABASE_URL`, `AMQP_URL` and `REDIS_URL`, and starts private ones for the rest.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same; a PostgreSQL of ours has these settings (`name=value`) beside its defaults.
    pub async fn start_with(settings: &[&str]) -> anyhow::Result<Self> {
        Self::with(
            url_from_environment("DATABASE_URL"),
            url_from_environment("AMQP_URL"),
            url_from_environment("REDIS_URL"),
            settings,
            false,
        )
        .await
    }

    /// The same, and a broker of ours has its HTTP API.
    pub async fn start_with_management() -> anyhow::Result<Self> {
        Self::with(
            url_from_environment("DATABASE_URL"),
            url_from_environment("AMQP_URL"),
            url_from_environment("REDIS_URL"),
            &[],
            true,
        )
        .await
    }

    /// Starts three private servers, whatever the environment says: for what kills them.
    pub async fn start_private() -> anyhow::Result<Self> {
        Self::with(None, None, None, &[], false).await
    }

    /// Starts a private PostgreSQL and Redis, and uses the broker at `rabbitmq`: it takes the longest to start.
    pub async fn start_private_except_rabbitmq(rabbitmq: &str) -> anyhow::Result<Self> {
        Self::with(None, Some(rabbitmq.to_owned()), None, &[], false).await
    }

    /// Starts three private servers, PostgreSQL with these settings (`name=value`) beside its defaults.
    pub async fn start_private_with(settings: &[&str]) -> anyhow::Result<Self> {
        Self::with(None, None, None, settings, false).await
    }

    async fn with(
        database: Option<String>,
        amqp: Option<String>,
        redis: Option<String>,
        settings: &[&str],
        has_management: bool,
    ) -> anyhow::Result<Self> {
        let mut needed = Vec::new();
        for (url, server) in
            [(&database, Server::Postgres), (&amqp, Server::RabbitMq), (&redis, Server::Redis)]
        {
            if url.is_none() {
                needed.push(server);
            }
        }
        // All packages in one go, before anything starts.
        tokio::task::spawn_blocking(move || install::ensure(&needed)).await??;
        let (own_postgres, own_rabbitmq, own_redis) = tokio::try_join!(
            async {
                match database {
                    None => Postgres::start(settings).await.map(Some),
                    Some(_) => Ok(None),
                }
            },
            async {
                match amqp {
                    None if has_management => RabbitMq::start_with_management().await.map(Some),
                    None => RabbitMq::start().await.map(Some),
                    Some(_) => Ok(None),
                }
            },
            async {
                match redis {
                    None => Redis::start().await.map(Some),
                    Some(_) => Ok(None),
                }
            },
        )?;
        let pick = |given: Option<String>, own: Option<String>| given.or(own).context("no URL");
        Ok(Self {
            urls: Urls {
                postgres: pick(database, own_postgres.as_ref().map(Postgres::url))?,
                rabbitmq: pick(amqp, own_rabbitmq.as_ref().map(RabbitMq::url))?,
                redis: pick(redis, own_redis.as_ref().map(Redis::url))?,
            },
            postgres: own_postgres,
            rabbitmq: own_rabbitmq,
            redis: own_redis,
        })
    }

    /// Servers that somebody else has, and starts and ends.
    pub(crate) fn of_another(urls: Urls) -> Self {
        Self { urls, postgres: None, rabbitmq: None, redis: None }
    }

    /// Where they are.
    #[must_use]
    pub fn urls(&self) -> &Urls {
        &self.urls
    }

    /// Returns the servers' URLs at another `host`, and the forwards that lead from there to the servers.
    ///
    /// # Errors
    /// If there is no free port, or a URL has no IPv4 address.
    pub fn behind(&self, host: Ipv4Addr) -> anyhow::Result<(Urls, Vec<Forward>)> {
        let mut forwards = Vec::new();
        let mut behind = |text: &str| {
            let mut url = Url::parse(text)?;
            let server = url.host_str().zip(url.port()).context("a server without host or port")?;
            let server = SocketAddr::from((server.0.parse::<Ipv4Addr>()?, server.1));
            let listen = SocketAddr::from((host, ports::free_port()?));
            forwards.push(Forward { listen, server });
            url.set_host(Some(&host.to_string()))?;
            url.set_port(Some(listen.port())).ok().context("a URL that can't have a port")?;
            anyhow::Ok(url.to_string())
        };
        let Urls { postgres, rabbitmq, redis } = &self.urls;
        let urls = Urls { postgres: behind(postgres)?, rabbitmq: behind(rabbitmq)?, redis: behind(redis)? };
        Ok((urls, forwards))
    }

    /// What they say they are: `PostgreSQL 17.6, RabbitMQ 4.0.5, Valkey 8.1.1`.
    pub async fn versions(&self) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(&self.urls.postgres).await?;
        let postgres: String = sqlx::query_scalar("show server_version").fetch_one(&mut connection).await?;
        connection.close().await?;
        // Debian adds its package's version.
        let postgres = postgres.split_whitespace().next().unwrap_or_default();
        let url = self.urls.rabbitmq.clone();
        let rabbitmq = tokio::task::spawn_blocking(move || RawConnection::version(&url)).await?;
        // A foreign broker behind TLS does not answer a few plain bytes.
        let rabbitmq = rabbitmq.unwrap_or_else(|_| "of an unknown version".to_owned());
        let mut connection =
            redis::Client::open(self.urls.redis.as_str())?.get_multiplexed_async_connection().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        // Valkey says a version of Redis, too, for old clients.
        let redis = ["valkey_version:", "redis_version:"]
            .into_iter()
            .zip(["Valkey", "Redis"])
            .find_map(|(field, name)| {
                let version = info.lines().find_map(|line| line.strip_prefix(field))?;
                Some(format!("{name} {}", version.trim()))
            })
            .context("the Redis server does not say its version")?;
        Ok(format!("PostgreSQL {postgres}, RabbitMQ {rabbitmq}, {redis}"))
    }
}
