//! `[gateway]`: a proxy in front of a service, in which a request with a key takes effect once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::Problems;
use super::console::Network;
use super::tasks::parse_listen_address;
use super::tls::{ServedTlsTable, TlsTable};
use super::values::{DAY, HOUR, Length, MILLISECOND, MINUTE, SECOND};
use oncely_net::tls::{TlsSettings, tls_for_scheme};

/// Settings of the gateway.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GatewaySettings {
    /// Listen address for clients.
    pub listen: SocketAddr,
    /// Certificate and key for clients; `None` for plaintext.
    pub listen_tls: Option<TlsSettings>,
    /// Origin of the service; `None` if only the command line names it.
    pub upstream: Option<Url>,
    /// TLS settings for the service; `None` for plaintext.
    pub tls: Option<TlsSettings>,
    /// Listen address for metrics and health.
    pub metrics: Option<SocketAddr>,
    /// Consumer, part of each key's identity.
    pub consumer: String,
    /// Tenant of the requests.
    pub tenant: GatewayTenant,
    /// Headers, in lower case, that identify the sender of a request.
    pub principal: Option<Vec<String>>,
    /// Methods of requests with a key.
    pub methods: Vec<String>,
    /// Whether such a request is refused without a key.
    pub required: bool,
    /// How long a request waits for the first one of its key.
    pub wait: Duration,
    /// Length of a key's lease without renewal.
    pub lease: Duration,
    /// Maximum length of a call of the service, from its connection to the last byte of the answer.
    pub max_run: Duration,
    /// How long keys and answers are kept.
    pub retention: Duration,
    /// Maximum body size of a request with a key, in bytes.
    pub max_request: u32,
    /// How long such a body may take to arrive.
    pub read_limit: Duration,
    /// Maximum body size of an answer that is kept, in bytes.
    pub max_response: u32,
    /// Treatment of a request with an unknown outcome.
    pub unknown: UnknownOutcomePolicy,
    /// Statuses by which the service reports that nothing was done, in addition to the built-in ones.
    pub not_done: Vec<u16>,
    /// Maximum number of client connections.
    pub connections: u32,
    /// Proxies with trusted `X-Forwarded-…` headers.
    pub trusted_proxies: Vec<Network>,
}

/// Tenant of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayTenant {
    /// One tenant for all requests.
    Fixed(String),
    /// Name of the header with the tenant, in lower case; every client that reaches the gateway can set it.
    Header(String),
}

/// Treatment of a request with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOutcomePolicy {
    /// The key is held until an operator has resolved it.
    Hold,
    /// A retry is sent on with the same key.
    Forward,
}

/// Default listen address: reachable from this machine only.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7430);

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct GatewayTable {
    /// Address for clients.
    listen: String,
    /// The certificate that clients are shown, with those between it and an authority, and its key, in PEM. Enables TLS for clients. The files are read
    /// again every ten seconds; if they can't be loaded, the previous certificate stays in use.
    #[schemars(extend("x-example" = { "cert": "/etc/oncely/gateway.pem", "key": "/etc/oncely/gateway.key.pem" }))]
    listen_tls: Option<ServedTlsTable>,
    /// The service: scheme, host and port. Or --upstream.
    #[schemars(extend("x-example" = "http://127.0.0.1:8080"))]
    upstream: Option<String>,
    /// As in `[rabbitmq]`, for https:// of upstream. Read at the start.
    #[schemars(extend("x-example" = { "ca": "/etc/oncely/ca.pem", "cert": "/etc/oncely/cert.pem", "key": "/etc/oncely/key.pem", "server_name": "shop.internal" }))]
    tls: Option<TlsTable>,
    /// Without TLS requests stay on this machine, on both sides, unless this is true.
    allow_plaintext: bool,
    /// As worker.listen. By default none.
    #[schemars(extend("x-example" = "127.0.0.1:9466"))]
    metrics: Option<String>,
    /// Part of the identity of each key: choose it once, one for each service.
    consumer: String,
    /// Tenant of the requests: { fixed = "acme" }, or { header = "x-tenant-id" }. A header is believed: each client that reaches the gateway can name
    /// another's, unless something in front of it sets it.
    tenant: TenantSource,
    /// Headers that identify the sender of a request; no default. The same key with others is refused (422); a part of a hash of them is kept. A header
    /// that changes from try to try (a token that is renewed) makes a retry another request. []: all clients of a tenant may be given each other's
    /// answers. Often ["authorization"], ["cookie"] or ["x-api-key"].
    #[schemars(extend("x-example" = ["authorization"]))]
    principal: Option<Vec<String>>,
    /// Methods of requests that have a key: some of "POST", "PATCH", "PUT", "DELETE". All others stream through.
    methods: Vec<String>,
    /// false: such a request without a key streams through, too. true: it is refused (400).
    required: bool,
    /// Longest wait of a request for the first one with its key, at most 1m; then 409.
    #[garde(range(min = MILLISECOND, max = MINUTE))]
    wait: Length,
    /// Time for which a key waits for a gateway that has died: it is held for this time, and renewed every third of it.
    #[garde(range(min = SECOND, max = HOUR))]
    lease: Length,
    /// Longest call of the service, to the last byte of the answer; of a request without a key, to the answer's head. Below worker.shutdown, so that a
    /// gateway that stops cuts none off.
    #[garde(range(min = MILLISECOND.times(100), max = HOUR))]
    max_run: Length,
    /// Time for which keys and answers are kept. A retry that comes later is a new request.
    #[garde(range(min = DAY, max = DAY.times(3_650)))]
    retention: Length,
    /// Longest body of a request with a key, in bytes. It is held in memory.
    #[garde(range(min = 0, max = 268_435_456))]
    max_request: u32,
    /// Longest time in which the body of a request with a key arrives, at most 10m; then it is refused (408).
    #[garde(range(min = MILLISECOND.times(100), max = MINUTE.times(10)))]
    read_limit: Length,
    /// Longest body of an answer with a key that is held in memory, in bytes. A longer one is passed on. Stored, and given again, are about 48 KiB at most:
    /// a retry gets no body of a longer one.
    #[garde(range(min = 0, max = 67_108_864))]
    max_response: u32,
    /// Answer to a retry where it is unknown whether the first request took effect, because the gateway died or the answer was torn, late or a server's
    /// error: "hold" (409 until an operator has looked) or "forward" (it is sent on, with the same Idempotency-Key).
    unknown: UnknownOutcomePolicy,
    /// Statuses by which the service says that nothing was done, from 400 to 599, like `[503]`: a retry is sent on. 401, 403 to 407, 409, 411 to 417, 421, 423
    /// to 426, 428, 429, 431, 501 and 505 say so anyway; the other 4xx but 408 are final.
    #[schemars(extend("x-advice" = STATUSES_ADVICE))]
    #[garde(custom(check_error_statuses))]
    not_done: Vec<u16>,
    /// Concurrent connections of clients, of which one address has nine tenths at most. The next one displaces an idle one; without one, it gets
    /// 503.
    #[garde(range(min = 1, max = 100_000))]
    connections: u32,
    /// Networks of proxies in front of it: their X-Forwarded-For, -Host and -Proto are kept. Those of all others are replaced. They may have all
    /// connections.
    trusted_proxies: Vec<String>,
}

impl Default for GatewayTable {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.to_string(),
            listen_tls: None,
            upstream: None,
            tls: None,
            allow_plaintext: false,
            metrics: None,
            consumer: "gateway".to_owned(),
            tenant: TenantSource::Fixed("main".to_owned()),
            principal: None,
            methods: METHODS[..2].iter().map(|name| (*name).to_owned()).collect(),
            required: true,
            wait: SECOND.times(2),
            lease: SECOND.times(15),
            max_run: SECOND.times(20),
            retention: DAY.times(7),
            max_request: 1 << 20,
            read_limit: SECOND.times(30),
            max_response: 1 << 18,
            unknown: UnknownOutcomePolicy::Hold,
            not_done: Vec::new(),
            connections: 250,
            trusted_proxies: Vec::new(),
        }
    }
}

/// Source of the tenant of a request.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-kind" = "table", "x-advice" = "must be like { fixed = \"acme\" } or { header = \"x-tenant-id\" }"))]
enum TenantSource {
    Fixed(String),
    Header(String),
}

const STATUSES_ADVICE: &str = "must list statuses from 400 to 599, like [503]";

/// Checks that all statuses are those of errors.
fn check_error_statuses(statuses: &[u16], _: &()) -> garde::Result {
    match statuses.iter().all(|status| (400..600).contains(status)) {
        true => Ok(()),
        false => Err(garde::Error::new(STATUSES_ADVICE)),
    }
}

impl GatewayTable {
    /// Checks the table, and converts it; a value with a problem is left out or has its default.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> GatewaySettings {
        let address = self.listen.parse().unwrap_or_else(|_| {
            problems.add("gateway.listen", "must be an address and a port, like \"127.0.0.1:7430\"");
            DEFAULT_LISTEN
        });
        let upstream = self.upstream.and_then(|text| parse_origin(&text, "gateway.upstream", problems));
        let listen_tls = self.listen_tls.map(|tls| tls.into_settings("gateway.listen_tls", problems));
        let configured_tls = self.tls.map(|tls| tls.into_settings("gateway.tls", problems));
        let allow_plaintext = self.allow_plaintext;
        if !address.ip().is_loopback() && listen_tls.is_none() && !allow_plaintext {
            let message = format!(
                "{address} is reached from other machines, in plaintext: write listen_tls, put something that has TLS in front of it on this machine, \
                 or write allow_plaintext = true in [gateway] if nobody else is on the way"
            );
            problems.add("gateway.listen", message);
        }
        let effective_tls = upstream
            .as_ref()
            .map(|url| tls_for_scheme(url, "https", configured_tls.as_ref(), allow_plaintext, "gateway"));
        if configured_tls.is_some() && matches!(effective_tls, Some(Ok(None))) {
            let message = "configures TLS, but upstream does not use it: write https://";
            problems.add("gateway.tls", message);
        }
        let tls = match effective_tls {
            Some(Ok(tls)) => tls,
            Some(Err(error)) => {
                problems.add("gateway.upstream", error.to_string());
                None
            }
            None => None,
        };
        if self.methods.is_empty() || self.methods.iter().any(|method| !METHODS.contains(&method.as_str())) {
            problems.add("gateway.methods", format!("must name some of {}", METHODS.join(", ")));
        }
        problems.parse_identity_part(&self.consumer, "gateway.consumer");
        GatewaySettings {
            listen: address,
            listen_tls,
            upstream,
            tls,
            metrics: parse_listen_address(self.metrics, "gateway.metrics", problems),
            consumer: self.consumer,
            tenant: check_tenant(self.tenant, problems),
            principal: self.principal.map(|names| check_principal(names, problems)),
            methods: self.methods,
            required: self.required,
            wait: self.wait.0,
            lease: self.lease.0,
            max_run: self.max_run.0,
            retention: self.retention.0,
            max_request: self.max_request,
            read_limit: self.read_limit.0,
            max_response: self.max_response,
            unknown: self.unknown,
            not_done: self.not_done,
            connections: self.connections,
            trusted_proxies: parse_networks(&self.trusted_proxies, problems),
        }
    }
}

/// Parses the service's origin; `None` if it is no URL. Problems don't quote it, as it may hold a password.
fn parse_origin(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
    let Ok(url) = Url::parse(text) else {
        problems.add(place, "is not a URL like http://127.0.0.1:8080");
        return None;
    };
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        problems.add(place, "must begin with http:// or https:// and name a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        problems.add(place, "must hold no user and no password: each request brings its own");
    }
    // A path would be no restriction: services resolve /api/../admin to /admin.
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        problems.add(place, "must end with its host and port: requests keep their paths");
    }
    Some(url)
}

/// Checks the source of the tenant, and converts it.
fn check_tenant(source: TenantSource, problems: &mut Problems) -> GatewayTenant {
    match source {
        TenantSource::Fixed(text) => {
            problems.parse_identity_part(&text, "gateway.tenant");
            GatewayTenant::Fixed(text)
        }
        TenantSource::Header(name) => {
            if !is_header_name(&name) {
                problems.add("gateway.tenant", format!("{name:?} can't be the name of a header"));
            }
            GatewayTenant::Header(name.to_ascii_lowercase())
        }
    }
}

/// Checks the names of headers, and converts them to lower case; reports invalid ones.
fn check_principal(names: Vec<String>, problems: &mut Problems) -> Vec<String> {
    for name in names.iter().filter(|name| !is_header_name(name)) {
        problems.add("gateway.principal", format!("{name:?} can't be the name of a header"));
    }
    names.into_iter().map(|name| name.to_ascii_lowercase()).collect()
}

/// Returns whether a text is a token of RFC 9110, as the name of a header is.
fn is_header_name(text: &str) -> bool {
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_token_char)
}

/// Allowed methods; the others are safe to repeat, or no requests to a service.
const METHODS: [&str; 4] = ["POST", "PATCH", "PUT", "DELETE"];

/// Parses networks; returns none of them if one is invalid.
fn parse_networks(texts: &[String], problems: &mut Problems) -> Vec<Network> {
    let networks: Option<Vec<Network>> = texts.iter().map(|text| Network::parse(text)).collect();
    networks.unwrap_or_else(|| {
        problems.add("gateway.trusted_proxies", "must list networks, like [\"10.1.2.0/24\"]");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merged::MergedValues;
    use crate::read::read as read_file;

    fn read(text: &str) -> (GatewaySettings, Vec<String>) {
        let mut problems = Problems::default();
        let merged = MergedValues::read(&format!("[gateway]\n{text}"), false).unwrap();
        let settings = read_file(&merged.values, &mut problems).gateway.into_settings(&mut problems);
        (
            settings,
            problems.list().iter().map(|problem| format!("{}: {}", problem.place, problem.message)).collect(),
        )
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once_and_no_secret_with_it() {
        let (_, problems) = read(
            "listen = \"0.0.0.0:80\"\nupstream = \"http://u:S3CR3T@shop.example.com/api\"\ntenant = { heather = \"x\" }\n\
             principal = [\"a b\"]\nmethods = [\"GET\"]\nnot_done = [200]\ntrusted_proxies = [\"10.0.0.0/33\"]\nunknown = \"guess\"\n\
             lease = \"1ms\"\nconsumer = \"\"\nmax_rum = \"1s\"\nlisten_tls = { cert = \"/nowhere/cert.pem\" }",
        );
        let report = problems.join("\n");
        for part in [
            "gateway.listen_tls.key: is missing",
            "gateway.listen_tls.cert: /nowhere/cert.pem: can't be read",
            "gateway.upstream: must hold no user",
            "gateway.upstream: must end with its host and port",
            "goes to shop.example.com in plaintext",
            "gateway.tenant.heather: unknown key; did you mean header?",
            "gateway.principal: \"a b\"",
            "gateway.methods: must name some of",
            "gateway.not_done: must list",
            "gateway.trusted_proxies: must list",
            "gateway.unknown: must be one of",
            "gateway.lease: must not be lower than 1s",
            "gateway.consumer: ",
            "gateway.max_rum: unknown key; did you mean max_run?",
        ] {
            assert!(report.contains(part), "{part}: {report}");
        }
        assert!(!report.contains("S3CR3T"), "{report}");
    }

    #[test]
    fn what_is_said_is_read_and_the_rest_has_its_defaults() {
        let (settings, problems) =
            read("upstream = \"http://127.0.0.1:8080\"\nprincipal = [\"Authorization\"]");
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!((settings.consumer.as_str(), settings.unknown), ("gateway", UnknownOutcomePolicy::Hold));
        assert_eq!(settings.principal, Some(vec!["authorization".to_owned()]));
        assert_eq!(settings.methods, ["POST", "PATCH"]);
        let (settings, problems) = read(
            "upstream = \"http://shop:8080\"\nlisten = \"[::]:80\"\nallow_plaintext = true\ntenant = { header = \"X-Tenant\" }\nprincipal = []\nnot_done = [503, 500]",
        );
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(settings.tenant, GatewayTenant::Header("x-tenant".to_owned()));
        assert_eq!(settings.principal, Some(Vec::new()));
        assert_eq!(settings.not_done, [503, 500]);
        let (_, problems) = read("listen = \"0.0.0.0:80\"");
        assert!(
            problems.join("\n").contains("gateway.listen: 0.0.0.0:80 is reached from other machines"),
            "{problems:?}"
        );
    }
}
