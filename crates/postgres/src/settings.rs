//! Connection settings for PostgreSQL.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::timelines::Timelines;
use oncely_net::server_url::{mask_url, split_urls, with_host};
use oncely_net::tls::TlsSettings;
use oncely_net::url_file::{self, UrlFileError};

/// Connection settings for PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgSettings {
    /// `postgres://user:password@host:port/database`.
    pub url: SecretString,
    /// URLs of further servers, one of which may be the primary: the same user, password and database at another host or port. The one that
    /// takes writes is used.
    pub other_hosts: Vec<SecretString>,
    /// A file with the URLs, read again for each connection; `url` and `other_hosts` are its contents at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates. With these, or if the URL's `sslmode` asks for TLS, the server is always verified (`verify-full`).
    pub tls: Option<TlsSettings>,
    /// Whether a connection to another machine may go without TLS.
    pub allow_plaintext: bool,
    /// Limit of a connection attempt to one host.
    pub connect_timeout: Duration,
    /// Server-side limit of one statement; a whole batch of SQL-function handlers is one statement.
    pub statement_timeout: Duration,
    /// Server-side limit of waiting for a lock, such as for another worker's claim of the same key.
    pub lock_timeout: Duration,
    /// The process's knowledge of the hosts.
    pub host_state: HostState,
    /// Set where the tables are spread over the nodes of a Citus cluster; `None` for PostgreSQL.
    pub citus: Option<CitusSettings>,
    /// The node that is meant, if it is not the server of the URL.
    pub node: Option<NodeAddress>,
}

/// Settings of a Citus cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CitusSettings {
    /// Hosts and ports by which this process reaches nodes, by those that the nodes have for each other (`host:port`).
    pub nodes: BTreeMap<String, String>,
    /// Time for which it is remembered which node keeps a tenant.
    pub placement_ttl: Duration,
}

/// Host and port of a node. They change when another server takes over from it.
#[derive(Clone, Debug)]
pub struct NodeAddress(Arc<RwLock<(String, u16)>>);

/// Splits `host:port`; `None` if it is not of that form. An IPv6 address stands in brackets.
#[must_use]
pub fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

impl CitusSettings {
    /// Returns the host and port by which this process reaches a node with this host and port.
    #[must_use]
    pub fn reachable(&self, host: &str, port: u16) -> (String, u16) {
        let host_in_key = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let named =
            self.nodes.get(&format!("{host_in_key}:{port}")).and_then(|address| split_address(address));
        let (host, port) = named.unwrap_or((host, port));
        (host.to_owned(), port)
    }
}

impl NodeAddress {
    /// Creates the address.
    #[must_use]
    pub fn new(host: String, port: u16) -> Self {
        Self(Arc::new(RwLock::new((host, port))))
    }

    /// Changes the address, for the connections that are made from now on.
    pub fn set(&self, host: String, port: u16) {
        // A poisoned lock still holds a valid value: it is replaced as one.
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = (host, port);
    }

    fn get(&self) -> (String, u16) {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A process's knowledge of several hosts: the one to try first, which took writes last time, and the newest timeline seen.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    first: Arc<AtomicUsize>,
    timelines: Timelines,
}

impl HostState {
    /// Returns the indexes of `hosts` hosts, in the order in which they are tried.
    pub(super) fn order_hosts(&self, hosts: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.first.load(Ordering::Relaxed);
        (0..hosts).map(move |step| (first + step) % hosts)
    }

    /// Records that a host is fit: it is tried first from now on.
    pub(super) fn record_fit(&self, host: usize) {
        self.first.store(host, Ordering::Relaxed);
    }

    /// Records that a host is unfit: the next host is tried first, unless a fit one was found in the meantime.
    pub(super) fn record_unfit(&self, host: usize, hosts: usize) {
        let next = (host + 1) % hosts.max(1);
        let _ = self.first.compare_exchange(host, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records a host's timeline; returns false if a newer one of the same server was recorded before.
    pub(super) fn record_timeline(&self, timeline: &str) -> bool {
        self.timelines.record_epoch(timeline)
    }

    /// Returns whether no timeline was recorded yet.
    pub(super) fn is_new(&self) -> bool {
        self.timelines.is_empty()
    }
}

impl PgSettings {
    /// Returns the client's limit of a statement: five seconds more than the server's, so that it only ends statements of a lost server.
    pub fn client_timeout(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(5)
    }

    /// Returns the maximum time of a search for a host that takes writes.
    pub fn max_connect_time(&self) -> Duration {
        self.connect_timeout * u32::try_from(self.urls().count() * 2).unwrap_or(u32::MAX)
    }

    /// Returns the settings for a node, with this login, database and options.
    #[must_use]
    pub fn at_node(&self, node: NodeAddress) -> Self {
        Self { node: Some(node), other_hosts: Vec::new(), host_state: HostState::default(), ..self.clone() }
    }

    /// Reads the URLs from their file again, and returns the settings with them, or with that of the node that is meant; the settings
    /// unchanged without either.
    pub(crate) fn reread_urls(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        let mut settings = Cow::Borrowed(self);
        if let Some(file) = &self.url_file {
            let mut urls = split_urls(url_file::read(file)?.expose_secret()).into_iter();
            let own = settings.to_mut();
            own.url = urls.next().unwrap_or_default();
            own.other_hosts = urls.collect();
        }
        if let Some(node) = &self.node {
            let (host, port) = node.get();
            let own = settings.to_mut();
            // An unusable host is an unusable URL: the driver reports it.
            own.url = with_host(&own.url, &host, port).unwrap_or_default();
            own.other_hosts = Vec::new();
        }
        Ok(settings)
    }

    /// Returns the settings for each host alone, without the file of the URLs.
    pub fn each_host(&self) -> impl Iterator<Item = Self> + '_ {
        let alone = move |url: &SecretString| Self {
            url: url.clone(),
            other_hosts: Vec::new(),
            url_file: None,
            host_state: HostState::default(),
            ..self.clone()
        };
        self.urls().map(alone)
    }

    /// Returns the URLs of all hosts.
    fn urls(&self) -> impl Iterator<Item = &SecretString> {
        std::iter::once(&self.url).chain(&self.other_hosts)
    }

    /// Returns the URLs of all hosts without passwords, for operators.
    pub fn redacted(&self) -> String {
        self.urls().map(mask_url).collect::<Vec<_>>().join(" ")
    }
}
