//! Several hosts of each server, as a process's configuration names them.

use crate::Database;

/// Where servers are of which there are several.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// Ports of PostgreSQL's primary and its standbys.
    pub postgres: Vec<u16>,
    /// Ports of RabbitMQ's nodes.
    pub rabbitmq: Vec<u16>,
    /// URLs of the Sentinels that know a Redis by the name `mymaster`.
    pub sentinels: Vec<String>,
    /// URLs of the nodes of a Redis Cluster, instead.
    pub redis_cluster: Vec<String>,
}

impl Hosts {
    /// What a program reads of its environment.
    pub(super) fn environment(&self, program: &str, database: &Database) -> [(&'static str, String); 5] {
        let redis = match self.redis_cluster.as_slice() {
            [] => ("REDIS_URL", "redis://mymaster".to_owned()),
            nodes => ("REDIS_URL", nodes.join(" ")),
        };
        let kind = match self.redis_cluster.as_slice() {
            [] => ("ONCELY_REDIS__SENTINELS", self.sentinels.join(" ")),
            _ => ("ONCELY_REDIS__CLUSTER", "true".to_owned()),
        };
        let postgres = self
            .postgres
            .iter()
            .map(|port| format!("postgres://arena_{program}@127.0.0.1:{port}/{}", database.name()));
        [
            ("DATABASE_URL", joined(postgres)),
            ("AMQP_URL", joined(self.rabbitmq_urls(""))),
            redis,
            kind,
            ("ONCELY_REDIS__ALLOW_PLAINTEXT", "true".to_owned()),
        ]
    }

    /// RabbitMQ's nodes, each with these options.
    pub(super) fn rabbitmq_urls(&self, options: &str) -> impl Iterator<Item = String> {
        self.rabbitmq.iter().map(move |port| format!("amqp://guest:guest@127.0.0.1:{port}/%2f{options}"))
    }
}

fn joined(urls: impl Iterator<Item = String>) -> String {
    urls.collect::<Vec<_>>().join(" ")
}
