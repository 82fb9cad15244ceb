//! `[redis]` and `[mirror]`: connection and use of Redis.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::Problems;
use super::cell::check_key;
use super::given_url::{GivenUrl, UrlSetting};
use super::tls::{TlsTable, report_refused_connection};
use super::values::{DAY, HOUR, Length, MILLISECOND, SECOND, Secret, Urls};
use oncely_core::decide::PrecheckMode;
use oncely_net::server_url::{differ_by_host_alone, mask_url, split_urls};
use oncely_net::tls::{TlsError, TlsSettings, describe_plaintext_refusal, tls_for_scheme};
use oncely_net::url_file::{self, UrlFileError};

#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedisTable {
    /// URL of Redis, or REDIS_URL. Without one PostgreSQL answers for all duplicates. Of a cluster several nodes may be named, as a list or with
    /// blanks in between.
    #[schemars(extend("x-example" = "redis://host:6379/0"))]
    pub(crate) url: Option<Urls>,
    /// As in `[postgres]`, or REDIS_URL_FILE.
    #[schemars(extend("x-example" = "/run/secrets/redis-url"))]
    pub(crate) url_file: Option<PathBuf>,
    /// URLs of the Sentinels that know the master, as a list or with blanks in between. The host of url is then their name for it, without a port
    /// (redis://user:password@mymaster/0). They are asked for each connection, and a server that they name is used if it says that it is a master.
    #[schemars(extend("x-example" = ["redis://:password@sentinel-1:26379", "redis://:password@sentinel-2:26379"]))]
    pub(crate) sentinels: Option<Urls>,
    /// A file that holds them instead, read again for each connection.
    #[schemars(extend("x-example" = "/run/secrets/redis-sentinels"))]
    pub(crate) sentinels_file: Option<PathBuf>,
    /// Is it a Redis Cluster? url names nodes then, which are asked for the others. All entries of a cell are in one slot, so on one master.
    pub(crate) cluster: bool,
    /// As in `[rabbitmq]`, for rediss://. A Sentinel is verified by the host of its own URL, not by server_name.
    #[schemars(extend("x-example" = { "ca": "/etc/oncely/ca.pem", "cert": "/etc/oncely/cert.pem", "key": "/etc/oncely/key.pem", "server_name": "cache.internal" }))]
    pub(crate) tls: Option<TlsTable>,
    /// As in `[postgres]`, for redis://.
    pub(crate) allow_plaintext: bool,
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct MirrorTable {
    /// Longest lifetime of an entry (entries live between half of it and all of it). Not longer than any retention. It only needs to cover the time in
    /// which most duplicates come; PostgreSQL knows the rest.
    #[garde(range(min = SECOND.times(10), max = DAY.times(30)))]
    pub(crate) ttl: Length,
    /// Longest wait for the one question per batch; then PostgreSQL decides alone.
    #[garde(range(min = MILLISECOND, max = SECOND.times(10)))]
    pub(crate) budget: Length,
    /// Hash buckets per half ttl. An entry costs least (21 bytes) where a bucket holds about 100 and never more than Redis's
    /// hash-max-listpack-entries: divide the keys of half a ttl by 100. Worker and relay must agree, else every look-up misses.
    #[garde(range(min = 1, max = 1_048_576))]
    pub(crate) buckets: u32,
    /// Trust in a hit: "trust" acknowledges without asking PostgreSQL, as long as its history was confirmed within the last second; "verify" confirms
    /// the hits of a batch by one look-up; "off" asks nothing; "auto" is trust where no standby is connected that could take over without the latest
    /// commits, else verify.
    pub(crate) precheck: PrecheckWord,
    /// Key of the tags, the same for workers and relays; by default the database's own, which `oncely secrets rotate mirror` replaces.
    #[schemars(extend("x-example" = "a secret of 16 bytes or more"))]
    pub(crate) key: Option<Secret>,
}

impl Default for MirrorTable {
    fn default() -> Self {
        Self {
            ttl: HOUR,
            budget: MILLISECOND.times(20),
            buckets: 16_384,
            precheck: PrecheckWord::Auto,
            key: None,
        }
    }
}

/// Trust in a hit.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrecheckWord {
    Auto,
    Trust,
    Verify,
    Off,
}

impl From<PrecheckWord> for PrecheckMode {
    fn from(precheck: PrecheckWord) -> Self {
        match precheck {
            PrecheckWord::Auto => Self::Auto,
            PrecheckWord::Trust => Self::Trust,
            PrecheckWord::Verify => Self::Verify,
            PrecheckWord::Off => Self::Off,
        }
    }
}

/// Connection and use of Redis.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MirrorSettings {
    /// `redis://host:port/database`. With Sentinels the host is their name for the master.
    pub url: SecretString,
    /// File that holds the URL, read again for each connection; `url` is its content at the start.
    pub url_file: Option<PathBuf>,
    /// `redis://:password@host:26379` of the Sentinels; empty if `url` names the server itself.
    pub sentinels: Vec<SecretString>,
    /// File that holds them, read again for each connection; `sentinels` is its content at the start.
    pub sentinels_file: Option<PathBuf>,
    /// The cluster, if `url` is that of one of its nodes.
    pub cluster: Option<RedisCluster>,
    /// Certificates.
    pub tls: Option<TlsSettings>,
    /// Whether a connection to another machine may go without TLS.
    pub allow_plaintext: bool,
    /// Maximum lifetime of an entry; entries live between half of it and all of it.
    pub ttl: Duration,
    /// Limit of the one round trip of a batch; past it PostgreSQL decides alone.
    pub budget: Duration,
    /// Number of hash buckets per time window.
    pub buckets: u32,
    /// Trust in a hit, unless the consumer overrides it.
    pub precheck: PrecheckMode,
    /// Key of the tags; by default the database's random secret.
    pub key: Option<SecretString>,
}

/// A Redis Cluster.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RedisCluster {
    /// URLs of further nodes that are asked where the keys are.
    pub other_nodes: Vec<SecretString>,
    /// Name of the cell, which decides about the slot of the mirror's entries.
    pub cell: String,
}

impl RedisCluster {
    /// Creates a cluster without further nodes, for a cell.
    #[doc(hidden)]
    #[must_use]
    pub fn new(other_nodes: Vec<SecretString>, cell: &str) -> Self {
        Self { other_nodes, cell: cell.to_owned() }
    }

    /// Returns the part of all entries' names that decides about their slot.
    #[doc(hidden)]
    #[must_use]
    pub fn slot_key(&self) -> String {
        // Braces of its own would be taken for the end of it, or for none.
        format!("{{{}}}", self.cell.replace(['{', '}'], "_"))
    }
}

impl MirrorSettings {
    /// Creates settings for the Redis at this URL, with defaults otherwise.
    #[doc(hidden)]
    pub fn from_url(url: SecretString) -> Self {
        Self {
            url,
            url_file: None,
            sentinels: Vec::new(),
            sentinels_file: None,
            cluster: None,
            tls: None,
            allow_plaintext: false,
            ttl: HOUR.0,
            budget: Duration::from_millis(20),
            buckets: 16_384,
            precheck: PrecheckMode::Auto,
            key: None,
        }
    }

    /// Reads the URLs from their files again, and returns the settings with them; unchanged settings without files.
    ///
    /// # Errors
    /// If a file can't be read.
    #[doc(hidden)]
    pub fn reread_urls(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        let mut settings = Cow::Borrowed(self);
        if let Some(file) = &self.url_file {
            let settings = settings.to_mut();
            let text = url_file::read(file)?;
            match &mut settings.cluster {
                None => settings.url = text,
                Some(cluster) => {
                    let mut urls = split_urls(text.expose_secret()).into_iter();
                    settings.url = urls.next().unwrap_or_default();
                    cluster.other_nodes = urls.collect();
                }
            }
        }
        if let Some(file) = &self.sentinels_file {
            settings.to_mut().sentinels = split_urls(url_file::read(file)?.expose_secret());
        }
        Ok(settings)
    }

    /// Returns the URL of the server, or those of the configured nodes of a cluster.
    #[doc(hidden)]
    pub fn node_urls(&self) -> impl Iterator<Item = &SecretString> {
        std::iter::once(&self.url).chain(self.cluster.iter().flat_map(|cluster| &cluster.other_nodes))
    }

    /// Lists the problems of the URLs of a cluster's nodes.
    #[doc(hidden)]
    pub fn node_problems(&self) -> Vec<&'static str> {
        let has_database = |url: &SecretString| {
            Url::parse(url.expose_secret()).is_ok_and(|url| !["", "/", "/0"].contains(&url.path()))
        };
        let mut problems = Vec::new();
        if !differ_by_host_alone(self.node_urls()) {
            problems
                .push("has URLs that differ in more than host and port: they must be nodes of one cluster");
        }
        if self.node_urls().any(has_database) {
            problems.push("has a database: a cluster has the one without a number");
        }
        problems
    }

    /// Returns the TLS settings for the server; `None` for a plaintext connection.
    #[doc(hidden)]
    pub fn redis_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        match Url::parse(self.url.expose_secret()) {
            // The Sentinels may name a master on another machine, and so may a node.
            Ok(url) if self.is_found() && url.scheme() != "rediss" && !self.allow_plaintext => {
                let host = url.host_str().unwrap_or_default();
                let master = match self.cluster {
                    None => format!("the master {host}"),
                    Some(_) => format!("the cluster of {host}"),
                };
                Err(TlsError::Refused(describe_plaintext_refusal(&master, "rediss://", "redis")))
            }
            Ok(url) => tls_for_scheme(&url, "rediss", self.tls.as_ref(), self.allow_plaintext, "redis"),
            // Reported elsewhere.
            Err(_) => Ok(None),
        }
    }

    /// Returns whether other servers are asked for the address of the server.
    fn is_found(&self) -> bool {
        !self.sentinels.is_empty() || self.cluster.is_some()
    }

    /// Returns the TLS settings for a Sentinel, which is addressed by the host of its own URL and must have that name; `None` for a
    /// plaintext connection.
    #[doc(hidden)]
    pub fn sentinel_tls(&self, url: &SecretString) -> Result<Option<TlsSettings>, TlsError> {
        let tls = self.tls.clone().map(|tls| TlsSettings { server_name: None, ..tls });
        match Url::parse(url.expose_secret()) {
            Ok(url) => tls_for_scheme(&url, "rediss", tls.as_ref(), self.allow_plaintext, "redis"),
            Err(_) => Ok(None),
        }
    }

    /// Returns the URLs of Redis and its Sentinels without passwords, for output.
    #[doc(hidden)]
    pub fn redacted(&self) -> String {
        let url = self.node_urls().map(mask_url).collect::<Vec<_>>().join(" ");
        match (&self.cluster, self.sentinels.is_empty()) {
            (Some(_), _) => format!("{url} (cluster)"),
            (None, true) => url,
            (None, false) => {
                let sentinels: Vec<String> = self.sentinels.iter().map(mask_url).collect();
                format!("{url}, as {} say", sentinels.join(" "))
            }
        }
    }
}

const SCHEMES: &[&str] = if cfg!(feature = "tls") { &["redis", "rediss"] } else { &["redis"] };

const URL: UrlSetting<'_> = UrlSetting {
    place: "redis.url",
    schemes: SCHEMES,
    example: "redis://host:6379/0",
    variable: "REDIS_URL",
    has_several: false,
};

const SENTINELS: UrlSetting<'_> = UrlSetting {
    place: "redis.sentinels",
    schemes: SCHEMES,
    example: "redis://:password@host:26379",
    variable: "ONCELY_REDIS__SENTINELS",
    has_several: true,
};

/// Checks the two tables, and converts them; `None` without a Redis. They are checked also then, so that they stay valid.
pub(crate) fn into_settings(
    redis: RedisTable,
    table: MirrorTable,
    cell: &str,
    problems: &mut Problems,
) -> Option<MirrorSettings> {
    let has_url = redis.url.is_some() || redis.url_file.is_some();
    let has_sentinels = redis.sentinels.is_some() || redis.sentinels_file.is_some();
    let sentinels = has_sentinels.then(|| SENTINELS.read(redis.sentinels, redis.sentinels_file, problems));
    let given_url = match (has_url, has_sentinels) {
        (_, true) => {
            let by_name = UrlSetting { example: "redis://:password@mymaster/0", ..URL };
            by_name.read(redis.url, redis.url_file, problems)
        }
        (true, false) => {
            UrlSetting { has_several: redis.cluster, ..URL }.read(redis.url, redis.url_file, problems)
        }
        (false, false) => GivenUrl::default(),
    };
    if redis.cluster && has_sentinels {
        problems.add(
            "redis.cluster",
            "is for a cluster, and redis.sentinels for a master: leave one of them out",
        );
    }
    if !redis.cluster && !given_url.others.is_empty() {
        problems.add(
            &given_url.place,
            "names several servers: several nodes are for a cluster (redis.cluster = true)",
        );
    }
    let sentinels = sentinels.unwrap_or_default();
    check_key(table.key.as_ref(), "mirror.key", problems);
    let settings = MirrorSettings {
        url: given_url.url,
        url_file: given_url.file,
        sentinels: std::iter::once(sentinels.url).chain(sentinels.others).filter(|_| has_sentinels).collect(),
        sentinels_file: sentinels.file,
        cluster: redis.cluster.then(|| RedisCluster::new(given_url.others, cell)),
        tls: redis.tls.map(|tls| tls.into_settings("redis.tls", problems)),
        allow_plaintext: redis.allow_plaintext,
        ttl: table.ttl.0,
        budget: table.budget.0,
        buckets: table.buckets,
        precheck: table.precheck.into(),
        key: table.key.map(|key| key.0),
    };
    let redis_tls = given_url.is_valid.then(|| settings.redis_tls());
    let sentinel_tls: Vec<_> = match sentinels.is_valid {
        true => settings.sentinels.iter().map(|url| settings.sentinel_tls(url)).collect(),
        false => Vec::new(),
    };
    let is_plaintext = |tls: &Result<Option<TlsSettings>, TlsError>| matches!(tls, Ok(None));
    if settings.tls.is_some()
        && redis_tls.as_ref().is_some_and(is_plaintext)
        && sentinel_tls.iter().all(is_plaintext)
        && (!has_sentinels || sentinels.is_valid)
    {
        problems.add("redis.tls", "configures TLS, but no URL uses it: write rediss://");
    }
    report_refused_connection(redis_tls, &given_url.place, problems);
    for tls in sentinel_tls {
        report_refused_connection(Some(tls), &sentinels.place, problems);
    }
    if given_url.is_valid && settings.cluster.is_some() {
        check_node_urls(&settings, &given_url.place, problems);
    }
    if given_url.is_valid && sentinels.is_valid {
        check_sentinel_urls(&settings, &given_url.place, &sentinels.place, problems);
    }
    has_url.then_some(settings)
}

/// Reports nodes of a cluster with different users or schemes, or with a database: a cluster has one.
fn check_node_urls(settings: &MirrorSettings, place: &str, problems: &mut Problems) {
    for problem in settings.node_problems() {
        problems.add(place, problem);
    }
}

/// Reports a port in the URL of the mirror (its host is the Sentinels' name of the master), and a database or options in a Sentinel's URL.
/// `place` and `sentinels_place` name the settings in the problems.
fn check_sentinel_urls(
    settings: &MirrorSettings,
    place: &str,
    sentinels_place: &str,
    problems: &mut Problems,
) {
    let port = |url: &SecretString| Url::parse(url.expose_secret()).ok().and_then(|url| url.port());
    if port(&settings.url).is_some() {
        let message =
            "has a port: with sentinels its host is the name of the master, and they give its address";
        problems.add(place, format!("{message} (redis://:password@mymaster/0)"));
    }
    let has_path = |url: &SecretString| {
        Url::parse(url.expose_secret())
            .is_ok_and(|url| !["", "/"].contains(&url.path()) || url.query().is_some())
    };
    if settings.sentinels.iter().any(has_path) {
        problems.add(sentinels_place, "has a database or options behind a host: a Sentinel has none");
    }
}
