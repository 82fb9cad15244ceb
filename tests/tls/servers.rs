//! Three servers that demand certificates, and what programs need to reach them.

use std::path::{Path, PathBuf};

use sqlx::{Connection as _, PgConnection};
use testbed::{Authority, Credentials, Postgres, RabbitMq, Redis, Scratch, Urls, free_port};

/// A password that a wrong server must never see.
pub(crate) const PASSWORD: &str = "S3CR3T-of-app";
/// The name by which programs call the servers.
pub(crate) const HOST: &str = "localhost";

/// PostgreSQL, RabbitMQ with its HTTP API, and Redis: in plaintext for the test's books, with TLS and certificates of clients for programs.
pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) rabbitmq: RabbitMq,
    pub(crate) redis: Redis,
    /// What RabbitMQ and Redis present.
    folder: Scratch,
    pub(crate) ports: Ports,
}

/// Where they speak TLS.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) postgres: u16,
    pub(crate) rabbitmq: u16,
    pub(crate) management: u16,
    pub(crate) redis: u16,
}

pub(crate) fn port(url: &str) -> u16 {
    url::Url::parse(url).unwrap().port().unwrap()
}

impl Servers {
    pub(crate) async fn start(credentials: &Credentials) -> Self {
        let folder = Scratch::new("certificates").unwrap();
        credentials.write(folder.path()).unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
        let (amqps, https, rediss) = (free_port().unwrap(), free_port().unwrap(), free_port().unwrap());
        let options = |prefix: &str| {
            format!(
                "{prefix}.cacertfile = {ca}\n{prefix}.certfile = {cert}\n{prefix}.keyfile = {key}\n{prefix}.verify = verify_peer\n\
                 {prefix}.fail_if_no_peer_cert = true\n"
            )
        };
        let settings = format!(
            "listeners.ssl.1 = 127.0.0.1:{amqps}\n{}management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {https}\n{}",
            options("ssl_options"),
            options("management.ssl")
        );
        let tls_port = rediss.to_string();
        let redis = [
            "--tls-port",
            &tls_port,
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            "yes",
        ];
        let (postgres, rabbitmq, redis) = tokio::join!(
            Postgres::start(&[]),
            RabbitMq::start_with_settings(&settings),
            Redis::start_with(&redis)
        );
        let (postgres, rabbitmq, redis) = (postgres.unwrap(), rabbitmq.unwrap(), redis.unwrap());
        let ports =
            Ports { postgres: port(&postgres.url()), rabbitmq: amqps, management: https, redis: rediss };
        let mut servers = Self { postgres, rabbitmq, redis, folder, ports };
        let hba = "host all postgres 127.0.0.1/32 trust\nhostssl all app 127.0.0.1/32 trust clientcert=verify-full\n";
        servers.postgres.write("pg_hba.conf", hba).unwrap();
        let mut sql = servers.sql().await;
        for statement in [
            "create role app superuser login",
            "alter system set ssl_cert_file = 'cert.pem'",
            "alter system set ssl_key_file = 'key.pem'",
            "alter system set ssl_ca_file = 'ca.pem'",
        ] {
            sqlx::raw_sql(statement).execute(&mut sql).await.unwrap();
        }
        sql.close().await.unwrap();
        servers.encrypt(true).await;
        servers.write_to_postgres(credentials);
        servers.postgres.restart().await.unwrap();
        servers
    }

    fn write_to_postgres(&self, credentials: &Credentials) {
        for (name, text) in
            [("ca.pem", &credentials.ca), ("cert.pem", &credentials.cert), ("key.pem", &credentials.key)]
        {
            self.postgres.write(name, text).unwrap();
        }
    }

    /// As superuser.
    pub(crate) async fn sql(&self) -> PgConnection {
        PgConnection::connect(&self.postgres.url()).await.unwrap()
    }

    /// Turns PostgreSQL's TLS on or off, from its next start on.
    pub(crate) async fn encrypt(&self, on: bool) {
        let mut sql = self.sql().await;
        let setting = if on { "alter system set ssl = on" } else { "alter system set ssl = off" };
        sqlx::raw_sql(setting).execute(&mut sql).await.unwrap();
        sql.close().await.unwrap();
    }

    /// Gives them other certificates; connections to PostgreSQL and Redis are lost.
    pub(crate) async fn present(&mut self, credentials: &Credentials) {
        credentials.write(self.folder.path()).unwrap();
        self.write_to_postgres(credentials);
        // Erlang keeps what it has read for two minutes.
        let (postgres, rabbitmq, redis) = tokio::join!(
            self.postgres.restart(),
            self.rabbitmq.ctl(&["eval", "ssl:clear_pem_cache()."]),
            self.redis.restart()
        );
        postgres.unwrap();
        rabbitmq.unwrap();
        redis.unwrap();
    }

    /// In plaintext.
    pub(crate) fn urls(&self) -> Urls {
        Urls { postgres: self.postgres.url(), rabbitmq: self.rabbitmq.url(), redis: self.redis.url() }
    }
}

/// The files of a program.
pub(crate) struct Files(Scratch);

impl Files {
    pub(crate) fn new(credentials: &Credentials) -> Self {
        let folder = Scratch::new("program").unwrap();
        credentials.write(folder.path()).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The settings of all sections, as the environment has them.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let file = |name: &str| self.path(name).display().to_string();
        [
            ["ONCELY_POSTGRES__TLS__CA", "ONCELY_POSTGRES__TLS__CERT", "ONCELY_POSTGRES__TLS__KEY"],
            ["ONCELY_RABBITMQ__TLS__CA", "ONCELY_RABBITMQ__TLS__CERT", "ONCELY_RABBITMQ__TLS__KEY"],
            ["ONCELY_REDIS__TLS__CA", "ONCELY_REDIS__TLS__CERT", "ONCELY_REDIS__TLS__KEY"],
        ]
        .into_iter()
        .flat_map(|[ca, cert, key]| [(ca, file("ca.pem")), (cert, file("cert.pem")), (key, file("key.pem"))])
        .collect()
    }
}

/// An authority, and what its servers present.
pub(crate) fn authority(name: &str) -> (Authority, Credentials) {
    let authority = Authority::new(name).unwrap();
    let server = authority.issue("server", &[HOST]).unwrap();
    (authority, server)
}

/// The URLs of programs, by variable.
pub(crate) fn urls(ports: Ports, database: &str) -> Vec<(&'static str, String)> {
    let Ports { postgres, rabbitmq, redis, .. } = ports;
    vec![
        ("DATABASE_URL", format!("postgres://app:{PASSWORD}@{HOST}:{postgres}/{database}?sslmode=require")),
        ("AMQP_URL", format!("amqps://guest:guest@{HOST}:{rabbitmq}/%2f")),
        // REDIS_URL is kept from the programs of a test.
        ("ONCELY_REDIS__URL", format!("rediss://{HOST}:{redis}/")),
    ]
}
