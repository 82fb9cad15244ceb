//! Where a store's Redis is.

use secrecy::SecretString;

use crate::config::{MirrorSettings, TlsSettings};

/// Where a store's Redis is, and how to reach it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis://user:password@host:port/database`, or `rediss://` for TLS. Where Sentinels say which server that is, the host is their name for the
    /// master.
    pub url: SecretString,
    /// `redis://:password@host:26379` of the Sentinels that know where the master is; none where the URL says it.
    pub sentinels: Vec<SecretString>,
    /// Certificates.
    pub tls: Option<TlsSettings>,
    /// Without TLS a connection may go to another machine.
    pub allow_plaintext: bool,
    /// What the name of each key begins with: `oncely:lease:` by default.
    pub prefix: String,
}

impl RedisSettings {
    /// At this URL.
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

    pub(super) fn connection(self) -> MirrorSettings {
        let mut settings = MirrorSettings::at(self.url);
        settings.sentinels = self.sentinels;
        settings.tls = self.tls;
        settings.allow_plaintext = self.allow_plaintext;
        settings
    }
}
