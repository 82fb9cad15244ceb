//! The address of a store's Redis.

use secrecy::SecretString;

use oncely_config::{MirrorSettings, TlsSettings};

/// The address of a store's Redis, and the settings of its connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis://user:password@host:port/database`, or `rediss://` for TLS. With Sentinels, the host is their name for the master.
    pub url: SecretString,
    /// `redis://:password@host:26379` of each Sentinel; empty if the URL names the server itself.
    pub sentinels: Vec<SecretString>,
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
            tls: None,
            allow_plaintext: false,
            prefix: "oncely:lease:".to_owned(),
        }
    }

    /// Converts to the settings of a connection.
    pub(super) fn into_mirror_settings(self) -> MirrorSettings {
        let mut settings = MirrorSettings::from_url(self.url);
        settings.sentinels = self.sentinels;
        settings.tls = self.tls;
        settings.allow_plaintext = self.allow_plaintext;
        settings
    }
}
