//! The address of a store's Redis.

use secrecy::SecretString;

use oncely_config::{MirrorSettings, RedisCluster, TlsSettings};
use oncely_lease::StoreError;

/// The address of a store's Redis, and the settings of its connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis://user:password@host:port/database`, or `rediss://` for TLS. With Sentinels, the host is their name for the master.
    pub url: SecretString,
    /// `redis://:password@host:26379` of each Sentinel; empty if the URL names the server itself.
    pub sentinels: Vec<SecretString>,
    /// Whether it is a Redis Cluster: `url` is that of one of its nodes then.
    pub cluster: bool,
    /// Further nodes of the cluster that are asked where the keys are.
    pub other_nodes: Vec<SecretString>,
    /// Certificates for TLS.
    pub tls: Option<TlsSettings>,
    /// Whether a connection to another machine may go without TLS.
    pub allow_plaintext: bool,
    /// The prefix of each key's name: `oncely:lease:` by default.
    pub prefix: String,
}

impl RedisSettings {
    /// Creates the default settings for a URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            sentinels: Vec::new(),
            cluster: false,
            other_nodes: Vec::new(),
            tls: None,
            allow_plaintext: false,
            prefix: "oncely:lease:".to_owned(),
        }
    }

    /// Converts to the settings of a connection.
    ///
    /// # Errors
    /// If they contradict each other: [`StoreError::Refused`].
    pub(super) fn into_mirror_settings(self) -> Result<MirrorSettings, StoreError> {
        let refuse = |text: &str| Err(StoreError::Refused(text.to_owned()));
        if self.cluster && !self.sentinels.is_empty() {
            return refuse("RedisSettings::sentinels are for one master: a cluster has none");
        }
        if !self.cluster && !self.other_nodes.is_empty() {
            return refuse("RedisSettings::other_nodes are those of a cluster: set RedisSettings::cluster");
        }
        let mut settings = MirrorSettings::from_url(self.url);
        settings.sentinels = self.sentinels;
        settings.cluster = self.cluster.then(|| RedisCluster::new(self.other_nodes, ""));
        settings.tls = self.tls;
        settings.allow_plaintext = self.allow_plaintext;
        match settings.cluster.as_ref().and_then(|_| settings.node_problems().into_iter().next()) {
            Some(problem) => refuse(&format!("RedisSettings::url {problem}")),
            None => Ok(settings),
        }
    }
}
