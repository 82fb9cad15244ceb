//! Metrics common to all processes.

use metrics::{Counter, Gauge, counter, gauge};

oncely_core::words! {
    array;
    /// A server that a process needs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Server {
        Postgres = "postgres",
        Rabbitmq = "rabbitmq",
        Redis = "redis",
    }
}

/// Handles of a worker's mirror connection and the database's epoch.
#[derive(Clone, Debug)]
pub struct MirrorMetrics {
    pub breaker_open: Gauge,
    pub epoch_changes: Counter,
}

impl Default for MirrorMetrics {
    fn default() -> Self {
        Self::register()
    }
}

impl MirrorMetrics {
    /// Registers the series with the current recorder.
    pub fn register() -> Self {
        Self {
            breaker_open: gauge!("oncely_mirror_breaker_open"),
            epoch_changes: counter!("oncely_epoch_changes_total"),
        }
    }
}

/// Handles of a process.
#[derive(Clone, Debug)]
pub struct ProcessMetrics {
    connected: [Gauge; 3],
    reconnects: [Counter; 3],
    pub(crate) ready: Gauge,
}

impl ProcessMetrics {
    /// Registers the series for the servers that the process needs, and for the configuration's digest, with the current recorder.
    pub(crate) fn register(digest: &str, servers: &[Server]) -> Self {
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

    pub fn set_connected(&self, server: Server, connected: bool) {
        self.connected[server as usize].set(if connected { 1.0 } else { 0.0 });
    }

    pub fn count_reconnection(&self, server: Server) {
        self.reconnects[server as usize].increment(1);
    }
}
