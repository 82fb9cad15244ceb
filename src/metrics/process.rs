//! What processes have in common.

use metrics::{Counter, Gauge, counter, gauge};

/// A server that a process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    Rabbitmq,
    Redis,
}

impl Server {
    pub(crate) const ALL: [Self; 3] = [Self::Postgres, Self::Rabbitmq, Self::Redis];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Rabbitmq => "rabbitmq",
            Self::Redis => "redis",
        }
    }
}

/// Handles of a worker's look at the mirror and the database behind it.
#[derive(Clone, Debug)]
pub(crate) struct MirrorMetrics {
    pub(crate) breaker_open: Gauge,
    pub(crate) epoch_changes: Counter,
}

impl MirrorMetrics {
    /// Makes the series.
    pub(crate) fn new() -> Self {
        Self {
            breaker_open: gauge!("oncely_mirror_breaker_open"),
            epoch_changes: counter!("oncely_epoch_changes_total"),
        }
    }
}

/// Handles of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessMetrics {
    connected: [Gauge; 3],
    reconnects: [Counter; 3],
    pub(crate) ready: Gauge,
}

impl ProcessMetrics {
    /// Makes the series, of servers that the process needs; the configuration is named by its digest.
    pub(crate) fn new(digest: &str, servers: &[Server]) -> Self {
        gauge!("oncely_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        gauge!("oncely_config_info", "digest" => digest.to_owned()).set(1.0);
        Self {
            connected: Server::ALL.map(|server| match servers.contains(&server) {
                true => gauge!("oncely_connected", "server" => server.as_str()),
                false => Gauge::noop(),
            }),
            reconnects: Server::ALL.map(|server| match servers.contains(&server) {
                true => counter!("oncely_reconnects_total", "server" => server.as_str()),
                false => Counter::noop(),
            }),
            ready: gauge!("oncely_ready"),
        }
    }

    pub(crate) fn set_connected(&self, server: Server, connected: bool) {
        self.connected[server as usize].set(if connected { 1.0 } else { 0.0 });
    }

    pub(crate) fn reconnected(&self, server: Server) {
        self.reconnects[server as usize].increment(1);
    }
}
