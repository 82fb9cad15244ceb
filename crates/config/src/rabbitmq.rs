//! `[rabbitmq]`: connection to RabbitMQ and its time limits.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::Problems;
use super::given_url::UrlSetting;
use super::tls::{TlsTable, report_refused_connection};
use super::values::{Length, SECOND, Secret, Urls};
use oncely_net::server_url::{
    AMBIGUOUS_PASSWORD, differ_by_host_alone, is_password_ambiguous, mask_url, split_urls,
};
use oncely_net::tls::{TlsError, TlsSettings, tls_for_scheme};
use oncely_net::url_file::{self, UrlFileError};

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct RabbitTable {
    /// URL of the broker; required, here or as AMQP_URL. Several URLs, where they are nodes of a cluster, are a list, or have blanks in between.
    /// Connections are spread over them, and a node that does not answer is passed over.
    #[schemars(extend("x-example" = "amqp://user:password@host:5672/vhost", "x-required" = true))]
    pub(crate) url: Option<Urls>,
    /// As in `[postgres]`, or AMQP_URL_FILE; one URL a line.
    #[schemars(extend("x-example" = "/run/secrets/amqp-url"))]
    pub(crate) url_file: Option<PathBuf>,
    /// As in `[postgres]`, for amqps:// and for https:// of management. server_name is the name in the certificate, where that is not the URL's host;
    /// management is verified by its own.
    #[schemars(extend("x-example" = { "ca": "/etc/oncely/ca.pem", "cert": "/etc/oncely/cert.pem", "key": "/etc/oncely/key.pem", "server_name": "broker.internal" }))]
    pub(crate) tls: Option<TlsTable>,
    /// As in `[postgres]`, for amqp:// and http://.
    pub(crate) allow_plaintext: bool,
    /// A peer that is silent for two heartbeats is gone. RabbitMQ's own default of 60s notices a dead peer after two minutes.
    #[garde(range(min = SECOND, max = SECOND.times(600)))]
    pub(crate) heartbeat: Length,
    /// Limit of a connection, a declaration, a publisher confirm. A relay waits for the confirm of an event for at most a third of
    /// postgres.statement_timeout.
    #[garde(range(min = SECOND, max = SECOND.times(600)))]
    pub(crate) timeout: Length,
    /// URL of RabbitMQ's HTTP API (plugin rabbitmq_management), with the user of url where none is named; the user needs the tag `management`.
    /// `oncely doctor` asks it for the facts that AMQP does not show: policies, bindings, limits. Without it those checks are skipped.
    #[schemars(extend("x-example" = "http://user:password@host:15672"))]
    pub(crate) management: Option<Secret>,
}

impl Default for RabbitTable {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            tls: None,
            allow_plaintext: false,
            heartbeat: SECOND.times(10),
            timeout: SECOND.times(30),
            management: None,
        }
    }
}

/// Connection to RabbitMQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RabbitSettings {
    /// `amqp://user:password@host:port/vhost`.
    pub url: SecretString,
    /// The URLs of a cluster's other nodes: the same user and virtual host at another host or port. Connections are spread over all of them.
    pub other_nodes: Vec<SecretString>,
    /// File that holds the URLs, read again for each connection; `url` and `other_nodes` are its content at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates, for the HTTP API as well.
    pub tls: Option<TlsSettings>,
    /// Whether a connection to another machine may go without TLS.
    pub allow_plaintext: bool,
    /// Heartbeat interval; a peer that is silent for two of them is considered lost.
    pub heartbeat: Duration,
    /// Time limit of a connection, a declaration or a confirm.
    pub timeout: Duration,
    /// `http://user:password@host:port` of the HTTP API, for facts that AMQP does not report. `None`: it is not used.
    pub management: Option<SecretString>,
}

impl RabbitSettings {
    /// Reads the URLs from their file again, and returns the settings with them; unchanged settings without a file.
    ///
    /// # Errors
    /// If the file can't be read.
    #[doc(hidden)]
    pub fn reread_urls(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        let Some(file) = &self.url_file else { return Ok(Cow::Borrowed(self)) };
        let mut urls = split_urls(url_file::read(file)?.expose_secret()).into_iter();
        let url = urls.next().unwrap_or_default();
        Ok(Cow::Owned(Self { url, other_nodes: urls.collect(), ..self.clone() }))
    }

    /// Returns the settings of each node alone, with the URLs at the start.
    #[doc(hidden)]
    pub fn each_node(&self) -> impl Iterator<Item = Self> + '_ {
        let to_single_node =
            move |url: &SecretString| Self { url: url.clone(), other_nodes: Vec::new(), ..self.clone() };
        self.urls().map(to_single_node)
    }

    fn urls(&self) -> impl Iterator<Item = &SecretString> {
        std::iter::once(&self.url).chain(&self.other_nodes)
    }

    /// Returns the URLs of RabbitMQ's nodes without passwords, for output.
    #[doc(hidden)]
    pub fn redacted(&self) -> String {
        self.urls().map(mask_url).collect::<Vec<_>>().join(" ")
    }

    /// Returns the TLS settings for AMQP; `None` for plaintext connections.
    #[doc(hidden)]
    pub fn amqp_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        // All nodes use the same scheme.
        let others = self.other_nodes.iter().map(|url| self.tls_for_url(url, "amqps"));
        others.fold(self.tls_for_url(&self.url, "amqps"), |first, next| {
            first.and_then(|first| next.map(|_| first))
        })
    }

    /// Returns the TLS settings for the HTTP API; `None` for a plaintext connection, or if the API is not configured.
    #[doc(hidden)]
    pub fn management_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        self.management.as_ref().map_or(Ok(None), |url| self.tls_for_url(url, "https"))
    }

    fn tls_for_url(&self, url: &SecretString, tls_scheme: &str) -> Result<Option<TlsSettings>, TlsError> {
        match Url::parse(url.expose_secret()) {
            Ok(url) => tls_for_scheme(&url, tls_scheme, self.tls.as_ref(), self.allow_plaintext, "rabbitmq"),
            // Reported elsewhere.
            Err(_) => Ok(None),
        }
    }
}

const URL: UrlSetting<'_> = UrlSetting {
    place: "rabbitmq.url",
    schemes: if cfg!(feature = "tls") { &["amqp", "amqps"] } else { &["amqp"] },
    example: "amqp://user:password@host:5672/vhost",
    variable: "AMQP_URL",
    has_several: true,
};

impl RabbitTable {
    /// Checks the table, and converts it.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> RabbitSettings {
        let given_url = URL.read(self.url, self.url_file, problems);
        let problem_count = problems.list().len();
        let management = self.management.map(|url| url.0);
        if let Some(url) = &management {
            check_management(url, problems);
        }
        let is_management_valid = problems.list().len() == problem_count;
        let settings = RabbitSettings {
            url: given_url.url,
            other_nodes: given_url.others,
            url_file: given_url.file,
            management,
            tls: self.tls.map(|tls| tls.into_settings("rabbitmq.tls", problems)),
            allow_plaintext: self.allow_plaintext,
            heartbeat: self.heartbeat.0,
            timeout: self.timeout.0,
        };
        let is_one_cluster = given_url.is_valid && check_one_cluster(&settings, &given_url.place, problems);
        let amqp = is_one_cluster.then(|| settings.amqp_tls());
        let http = is_management_valid.then(|| settings.management_tls());
        if settings.tls.is_some() && matches!((&amqp, &http), (Some(Ok(None)), Some(Ok(None)))) {
            let message = "configures TLS, but no URL uses it: write amqps:// (and https:// for management)";
            problems.add("rabbitmq.tls", message);
        }
        report_refused_connection(amqp, &given_url.place, problems);
        report_refused_connection(http, MANAGEMENT_SETTING, problems);
        settings
    }
}

const MANAGEMENT_SETTING: &str = "rabbitmq.management";

/// Checks that the URLs differ by host and port only, as those of one cluster's nodes do; returns whether they do.
fn check_one_cluster(settings: &RabbitSettings, place: &str, problems: &mut Problems) -> bool {
    let is_one = differ_by_host_alone(settings.urls());
    if !is_one {
        let message = "has URLs that differ in more than host and port: they must be nodes of one cluster, with the same user, password, \
                    virtual host and scheme";
        problems.add(place, message);
    }
    is_one
}

/// Checks the URL of the HTTP API. Problems don't quote it, as it may hold a password.
fn check_management(url: &SecretString, problems: &mut Problems) {
    let text = url.expose_secret();
    let schemes: &[&str] = if cfg!(feature = "tls") { &["http", "https"] } else { &["http"] };
    let is_valid = Url::parse(text).is_ok_and(|url| schemes.contains(&url.scheme()) && url.has_host());
    if is_password_ambiguous(text) {
        problems.add(MANAGEMENT_SETTING, format!("has an '@' where none can be; {AMBIGUOUS_PASSWORD}"));
    } else if !is_valid {
        let hint = if cfg!(feature = "tls") { "" } else { " (https:// needs the feature `tls`)" };
        problems.add(MANAGEMENT_SETTING, format!("is not a URL like http://user:password@host:15672{hint}"));
    }
}
