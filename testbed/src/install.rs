//! How the servers' programs come onto a bare Debian machine.

use std::path::Path;

use anyhow::Context as _;

use crate::apt::{Failure, install};
use crate::life::User;
use crate::program::Program;
use crate::root::Root;

/// One of the three servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    RabbitMq,
    Redis,
}

impl Server {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::RabbitMq => "RabbitMQ",
            Self::Redis => "Redis",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::RabbitMq => "rabbitmq-server",
            Self::Redis => "redis-server",
        }
    }

    /// The program that starts the server.
    ///
    /// # Errors
    /// Where it is not installed.
    pub(crate) fn program(self) -> anyhow::Result<Program> {
        match self {
            Self::Postgres => Program::postgres("postgres"),
            // Not the one in PATH: Debian's wrapper there switches to the user `rabbitmq` and its own folders.
            Self::RabbitMq => Program::at(&[
                "/usr/lib/rabbitmq/bin/rabbitmq-server",
                "/opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server",
            ])
            .context("rabbitmq-server not found"),
            Self::Redis => Program::in_path("redis-server").or_else(|_| Program::in_path("valkey-server")),
        }
    }

    fn is_installed(self) -> bool {
        self.program().is_ok_and(|program| match self {
            // A package half removed leaves programs without their share files; initdb needs those.
            Self::Postgres => program.beside("initdb").exists() && share_files(&program),
            Self::RabbitMq | Self::Redis => true,
        })
    }
}

fn share_files(postgres: &Program) -> bool {
    let output = postgres.beside("pg_config").command(User::Same).arg("--sharedir").output();
    match output {
        Ok(output) if output.status.success() => {
            Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("postgres.bki").exists()
        }
        // Without pg_config nothing can be said against the installation.
        _ => true,
    }
}

/// Sees to it that the programs of all `servers` are there, installing Debian's packages where they are not, or the root that
/// they are in.
pub(crate) fn ensure(servers: &[Server]) -> anyhow::Result<()> {
    if servers.is_empty() {
        return Ok(());
    }
    if let Some(root) = Root::current()? {
        return root.make();
    }
    let missing = || -> Vec<Server> { servers.iter().copied().filter(|s| !s.is_installed()).collect() };
    let names = |servers: &[Server]| servers.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ");
    let packages: fn(&[Server]) -> Vec<&'static str> =
        |servers| servers.iter().map(|s| s.package()).collect();
    install(|| {
        let missing = missing();
        (!missing.is_empty()).then(|| (names(&missing), packages(&missing)))
    })
    .map_err(|failure| anyhow::anyhow!(choices(&failure)))
}

/// One clear message with what the user can do.
fn choices(Failure { missing, why }: &Failure) -> String {
    format!(
        "{missing} needed, and {why}. One of these helps:\n  \
         - run as root on Debian or Ubuntu, so that the packages can be installed;\n  \
         - install them yourself: postgresql (15 or later), rabbitmq-server, redis-server or valkey-server;\n  \
         - docker compose up --detach --wait postgres rabbitmq redis, then export the three URLs that \
         docker-compose.yml names in its first lines;\n  \
         - export DATABASE_URL, AMQP_URL and REDIS_URL of servers that may be used for tests."
    )
}
