//! How to reach PostgreSQL.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::timelines::Timelines;
use crate::server_url::{masked, several};
use crate::tls::TlsSettings;
use crate::url_file::{self, UrlFileError};

/// How to connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PgSettings {
    /// `postgres://user:password@host:port/database`.
    pub url: SecretString,
    /// The URLs of further servers, one of which may be the primary: the same user, password and database at another host or port. The
    /// one that takes writes is used.
    pub other_hosts: Vec<SecretString>,
    /// A file that holds the URLs, read again for each connection; `url` and `other_hosts` are what it held at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates. Where there are some, or the URL's `sslmode` asks for TLS, the server is verified (`verify-full`), always.
    pub tls: Option<TlsSettings>,
    /// Without TLS a connection may go to another machine.
    pub allow_plaintext: bool,
    /// For a connection attempt, to one host.
    pub connect_timeout: Duration,
    /// Server-side limit of one statement; a whole batch of SQL-function handlers is one statement.
    pub statement_timeout: Duration,
    /// Server-side limit of waiting for a lock, such as for another worker's claim of the same key.
    pub lock_timeout: Duration,
    pub(crate) turn: Turn,
}

/// What a process knows of several hosts: which of them is asked first, the one that was right the last time, and the newest timeline that
/// it has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    first: Arc<AtomicUsize>,
    timelines: Timelines,
}

impl Turn {
    /// All of so many hosts, in the order in which they are asked.
    pub(super) fn order(&self, hosts: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.first.load(Ordering::Relaxed);
        (0..hosts).map(move |step| (first + step) % hosts)
    }

    /// This one is right.
    pub(super) fn keep(&self, host: usize) {
        self.first.store(host, Ordering::Relaxed);
    }

    /// This one is not: where nobody has found another one meanwhile, the next one is asked first.
    pub(super) fn pass(&self, host: usize, hosts: usize) {
        let next = (host + 1) % hosts.max(1);
        let _ = self.first.compare_exchange(host, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Is nothing older than what was seen before? Notes it.
    pub(super) fn admits(&self, timeline: &str) -> bool {
        self.timelines.admits(timeline)
    }

    /// Was no host reached yet?
    pub(super) fn is_new(&self) -> bool {
        self.timelines.is_empty()
    }
}

impl PgSettings {
    /// Longer than any statement may take on a server that is there.
    pub(crate) fn client_timeout(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(5)
    }

    /// How long it may take to find none of the hosts.
    pub(crate) fn longest_connect(&self) -> Duration {
        self.connect_timeout * u32::try_from(self.urls().count() * 2).unwrap_or(u32::MAX)
    }

    /// With the URLs that the file holds now, where there is one.
    pub(crate) fn current(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        let Some(file) = &self.url_file else { return Ok(Cow::Borrowed(self)) };
        let mut urls = several(url_file::read(file)?.expose_secret()).into_iter();
        let url = urls.next().unwrap_or_default();
        Ok(Cow::Owned(Self { url, other_hosts: urls.collect(), ..self.clone() }))
    }

    /// The same settings for each of the hosts alone.
    pub(crate) fn each_host(&self) -> impl Iterator<Item = Self> + '_ {
        let alone = move |url: &SecretString| Self {
            url: url.clone(),
            other_hosts: Vec::new(),
            url_file: None,
            turn: Turn::default(),
            ..self.clone()
        };
        self.urls().map(alone)
    }

    fn urls(&self) -> impl Iterator<Item = &SecretString> {
        std::iter::once(&self.url).chain(&self.other_hosts)
    }

    /// Where PostgreSQL is, for people.
    pub(crate) fn shown(&self) -> String {
        self.urls().map(masked).collect::<Vec<_>>().join(" ")
    }
}
