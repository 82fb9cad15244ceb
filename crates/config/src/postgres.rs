//! `[postgres]`: connection to PostgreSQL and its time limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use super::given_url::UrlSetting;
use super::tls::TlsTable;
use super::values::{HOUR, Length, MILLISECOND, SECOND, Urls};
use oncely_net::server_url::differ_by_host_alone;
use oncely_net::tls::TlsSettings;
use oncely_postgres::{
    Address, AddressError, CitusSettings, HostState, PgSettings, parse_url_files, split_address,
};

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct PostgresTable {
    /// URL of the server; required, here or as DATABASE_URL. Several URLs, where one host is the primary and the others may become it, are a list, or
    /// have blanks in between. The host that takes writes is used, and of two the one on the newer timeline. An old primary that comes back must be
    /// kept from taking writes all the same (Patroni and similar systems do that): a process that starts while its successor is away does not know of
    /// that one.
    #[schemars(extend("x-example" = "postgres://user:password@host:5432/database", "x-required" = true))]
    pub(crate) url: Option<Urls>,
    /// A file that holds the URL instead, or one URL a line, read again for each connection: a password is replaced without a restart. Or
    /// DATABASE_URL_FILE.
    #[schemars(extend("x-example" = "/run/secrets/database-url"))]
    pub(crate) url_file: Option<PathBuf>,
    /// Files (PEM) that are read again for each connection: ca, the authorities that may vouch for the server (by default those that this machine
    /// trusts); cert and key, our own certificate. With any of it, or with an sslmode of require or more in the URL, the server is verified
    /// (verify-full), and never asked in plaintext. In the environment: ONCELY_POSTGRES__TLS__CA.
    #[schemars(extend("x-example" = { "ca": "/etc/oncely/ca.pem", "cert": "/etc/oncely/cert.pem", "key": "/etc/oncely/key.pem" }))]
    pub(crate) tls: Option<TlsTable>,
    /// Without TLS a connection stays on this machine, unless this is true: for a network that no other party shares.
    pub(crate) allow_plaintext: bool,
    /// Limit of a connection attempt.
    #[garde(range(min = SECOND, max = SECOND.times(300)))]
    pub(crate) connect_timeout: Length,
    /// Server-side limit of one statement. All messages of a batch that a SQL function handles are one statement: a consumer's deadline must not be
    /// longer than a limit that is set here. If oncely.toml sets none, the sessions of a consumer's lanes follow its deadline.
    #[garde(range(min = SECOND, max = HOUR))]
    pub(crate) statement_timeout: Length,
    /// Server-side limit of waiting for a lock, in a handler or a task of ours. At most statement_timeout. A message waits 100 ms for a key that
    /// another session holds, and a batch of several messages half a second at most for any lock, also with a longer limit here.
    #[garde(range(min = MILLISECOND, max = HOUR))]
    pub(crate) lock_timeout: Length,
    /// Server behind the tables. citus: they are spread over the nodes of a Citus cluster (oncely migrate --citus), and a worker sends each message to the
    /// node that keeps its tenant. url names any node; it forwards messages of tenants without a known node.
    pub(crate) engine: Engine,
    /// Addresses of nodes for workers that can't reach them by the addresses in pg_dist_node: host:port, by the host:port there.
    #[schemars(extend("x-example" = { "10.0.0.7:5432": "db7.example:5432" }))]
    pub(crate) nodes: BTreeMap<String, String>,
    /// Time for which a worker remembers the node of a tenant. After a move of the tenant's rows, its messages are forwarded for twice that time at most.
    #[garde(range(min = MILLISECOND.times(100), max = HOUR))]
    pub(crate) placement_ttl: Length,
}

/// The engine behind the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// One PostgreSQL server.
    Postgres,
    /// A Citus cluster.
    Citus,
}

impl Default for PostgresTable {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            tls: None,
            allow_plaintext: false,
            connect_timeout: SECOND.times(5),
            statement_timeout: SECOND.times(30),
            lock_timeout: SECOND.times(5),
            engine: Engine::Postgres,
            nodes: BTreeMap::new(),
            placement_ttl: SECOND.times(10),
        }
    }
}

const URL: UrlSetting<'_> = UrlSetting {
    place: "postgres.url",
    schemes: &["postgres", "postgresql"],
    example: "postgres://user:password@host:5432/database",
    variable: "DATABASE_URL",
    has_several: true,
};

impl PostgresTable {
    /// Checks the table, and converts it.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> PgSettings {
        let given_url = URL.read(self.url, self.url_file, problems);
        let settings = PgSettings {
            url: given_url.url,
            other_hosts: given_url.others,
            url_file: given_url.file,
            tls: self.tls.map(|tls| tls.into_settings("postgres.tls", problems)),
            allow_plaintext: self.allow_plaintext,
            connect_timeout: self.connect_timeout.0,
            statement_timeout: self.statement_timeout.0,
            lock_timeout: self.lock_timeout.0,
            host_state: HostState::default(),
            citus: (self.engine == Engine::Citus)
                .then(|| CitusSettings { nodes: self.nodes.clone(), placement_ttl: self.placement_ttl.0 }),
            node: None,
        };
        if self.engine != Engine::Citus && !self.nodes.is_empty() {
            problems.add(
                "postgres.nodes",
                "are those of a Citus cluster: set postgres.engine = \"citus\", or leave them out",
            );
        }
        for address in self.nodes.iter().flat_map(|(given, reached)| [given, reached]) {
            if split_address(address).is_none() {
                problems.add("postgres.nodes", format!("has {address:?}, which is not host:port"));
            }
        }
        if settings.lock_timeout > settings.statement_timeout {
            problems.add("postgres.lock_timeout", "must not be longer than statement_timeout");
        }
        if settings.tls.as_ref().is_some_and(|tls| tls.server_name.is_some()) {
            let message = "is not for PostgreSQL: its driver verifies the host of the URL; call the server by a name that is in its certificate";
            problems.add("postgres.tls.server_name", message);
        }
        if given_url.is_valid {
            if !differ_by_host_alone(std::iter::once(&settings.url).chain(&settings.other_hosts)) {
                let message = "has URLs that differ in more than host and port: they must be a primary and its standbys, with the same user, \
                            password, database and options";
                problems.add(&given_url.place, message);
            }
            check_hosts(&settings, &given_url.place, problems);
        }
        settings
    }
}

/// Checks that the connection to each host is completely specified.
fn check_hosts(settings: &PgSettings, place: &str, problems: &mut Problems) {
    for host in settings.each_host() {
        match Address::from_settings(&host) {
            Ok(_) => {}
            Err(AddressError::Url) => {
                return problems.add(place, "PostgreSQL's driver does not understand its options");
            }
            Err(AddressError::Tls(error)) => return problems.add(place, error.to_string()),
        }
    }
    check_url_files(parse_url_files(&settings.url), settings.tls.as_ref(), place, problems);
}

/// Checks the files that the URL names (`sslrootcert`, `sslcert`, `sslkey`); those of `tls` are checked elsewhere.
fn check_url_files(
    mut url_files: TlsSettings,
    table_files: Option<&TlsSettings>,
    place: &str,
    problems: &mut Problems,
) {
    if url_files.cert.is_some() != url_files.key.is_some() {
        problems.add(place, "names one of sslcert and sslkey: each is of no use without the other");
    }
    if let Some(table_files) = table_files {
        for (option, url_file, table_file) in [
            ("sslrootcert", &mut url_files.ca, &table_files.ca),
            ("sslcert", &mut url_files.cert, &table_files.cert),
            ("sslkey", &mut url_files.key, &table_files.key),
        ] {
            match (url_file.take(), table_file) {
                (Some(file), Some(other)) if file != *other => {
                    let message = format!(
                        "names another file by {option} than postgres.tls does: leave one of them out"
                    );
                    problems.add(place, message);
                }
                (file, None) => *url_file = file,
                _ => {}
            }
        }
    }
    for error in oncely_net::tls::check_files(&url_files) {
        problems.add(place, error.to_string());
    }
}
