//! `[gateway]`: a proxy in front of a service, in which a request with a key takes effect once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use figment::value::{Dict, Value};
use url::Url;

use super::console::Network;
use super::section::Section;
use super::tls::{allow_plaintext, served, tls};
use super::{LogSettings, Problems, WorkerSettings, digest, postgres, tasks, values};
use oncely_core::identity::IdentityPart;
use oncely_net::tls::{TlsSettings, of_scheme};
use oncely_postgres::PgSettings;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownOutcomePolicy {
    /// The key is held until an operator has resolved it.
    Hold,
    /// A retry is sent on with the same key.
    Forward,
}

/// The part of a configuration that the gateway reads.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    #[doc(hidden)]
    pub digest: String,
    #[doc(hidden)]
    pub cell: String,
    #[doc(hidden)]
    pub postgres: PgSettings,
    #[doc(hidden)]
    pub worker: WorkerSettings,
    #[doc(hidden)]
    pub log: LogSettings,
    #[doc(hidden)]
    pub gateway: GatewaySettings,
    /// Origin of the service.
    #[doc(hidden)]
    pub upstream: Url,
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Default listen address: reachable from this machine only.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7430);

/// Sections of other processes, which a gateway ignores.
const OTHERS: [&str; 12] = [
    "rabbitmq",
    "redis",
    "mirror",
    "relay",
    "events",
    "gc",
    "audit",
    "dead_letters",
    "encryption",
    "traces",
    "console",
    "consumers",
];

/// Reads a gateway's settings from `file`, which may be missing, and the environment. The command line takes precedence over both.
///
/// # Errors
/// All problems, at once.
pub fn load(
    file: &Path,
    upstream: Option<&str>,
    listen: Option<SocketAddr>,
) -> Result<GatewayConfig, Problems> {
    let mut problems = Problems::default();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            problems.add(file.display().to_string(), format!("cannot be read ({error})"));
            return Err(problems);
        }
    };
    let mut values = match values(&text, true) {
        Ok(values) => values,
        Err(error) => {
            problems.add(file.display().to_string(), error);
            return Err(problems);
        }
    };
    let said = [("upstream", upstream.map(str::to_owned)), ("listen", listen.map(|at| at.to_string()))];
    for (key, said) in said {
        let Some(said) = said else { continue };
        let table = values.entry("gateway".to_owned()).or_insert_with(|| Value::from(Dict::new()));
        if let Value::Dict(_, table) = table {
            table.insert(key.to_owned(), Value::from(said));
        }
    }
    match gateway_config(values, &mut problems) {
        Some(config) => problems.or(config),
        None => Err(problems),
    }
}

fn gateway_config(values: Dict, problems: &mut Problems) -> Option<GatewayConfig> {
    let digest = digest(&values);
    let mut root = Section::new("", values);
    let mut cell = root.table("cell", problems);
    let name = cell.text("name", problems).unwrap_or_else(|| "main".to_owned());
    // Not needed: a gateway signs nothing.
    let _ = (cell.take("signing_key"), cell.take("known_keys"));
    cell.finish(problems);
    let postgres = postgres::postgres(root.table("postgres", problems), problems);
    let worker = tasks::worker(root.table("worker", problems), problems);
    let log = tasks::log(root.table("log", problems), problems);
    let gateway = gateway(root.table("gateway", problems), problems);
    for other in OTHERS {
        root.take(other);
    }
    root.finish(problems);
    // No default: without the header that distinguishes clients, one of them could get another's answer.
    let is_well = problems.is_empty();
    if gateway.principal.is_none() && is_well {
        problems.add(
            "gateway.principal",
            "is missing: which headers say who sends a request? [\"authorization\"], [\"cookie\"], [\"x-api-key\"]: the same key with others is \
             refused. [] where all clients of a tenant may be given each other's answers",
        );
    }
    if gateway.upstream.is_none() && is_well {
        problems.add(
            "gateway.upstream",
            "is missing: say it here or with --upstream, like http://127.0.0.1:8080",
        );
    }
    let upstream = gateway.upstream.clone()?;
    Some(GatewayConfig { digest, cell: name, postgres, worker, log, gateway, upstream })
}

pub(super) fn gateway(mut section: Section, problems: &mut Problems) -> GatewaySettings {
    let listen = match section.text("listen", problems) {
        None => LISTEN,
        Some(text) => text.parse().unwrap_or_else(|_| {
            problems.add(section.place("listen"), "must be an address and a port, like \"127.0.0.1:7430\"");
            LISTEN
        }),
    };
    let upstream = section.text("upstream", problems);
    let upstream = upstream.and_then(|text| origin(&text, &section.place("upstream"), problems));
    let listen_tls = served("listen_tls", &mut section, problems);
    let given = tls(&mut section, problems);
    let allowed = allow_plaintext(&mut section, problems);
    if !listen.ip().is_loopback() && listen_tls.is_none() && !allowed {
        let what = format!(
            "{listen} is reached from other machines, in plaintext: write listen_tls, put something that has TLS in front of it on this machine, or \
             write allow_plaintext = true in [gateway] if nobody else is on the way"
        );
        problems.add(section.place("listen"), what);
    }
    let meant = upstream.as_ref().map(|url| of_scheme(url, "https", given.as_ref(), allowed, "gateway"));
    if given.is_some() && matches!(meant, Some(Ok(None))) {
        problems
            .add(section.place("tls"), "says how TLS is done, and upstream asks for none: write https://");
    }
    let tls = match meant {
        Some(Ok(tls)) => tls,
        Some(Err(error)) => {
            problems.add(section.place("upstream"), error.to_string());
            None
        }
        None => None,
    };
    let consumer = section.text("consumer", problems).unwrap_or_else(|| "gateway".to_owned());
    let settings = GatewaySettings {
        listen,
        listen_tls,
        upstream,
        tls,
        metrics: tasks::listen(&mut section, "metrics", problems),
        consumer: part(consumer, &section.place("consumer"), problems),
        tenant: tenant(&mut section, problems),
        principal: principal(&mut section, problems),
        methods: methods(&mut section, problems),
        required: section.boolean("required", true, problems),
        wait: section.duration("wait", 2 * SECOND, SECOND / 1_000..=60 * SECOND, problems),
        lease: section.duration("lease", 15 * SECOND, SECOND..=3_600 * SECOND, problems),
        max_run: section.duration("max_run", 20 * SECOND, SECOND / 10..=3_600 * SECOND, problems),
        retention: section.duration("retention", 7 * DAY, DAY..=3_650 * DAY, problems),
        max_request: section.integer("max_request", 1 << 20, 0..=(256 << 20), problems),
        read_limit: section.duration("read_limit", 30 * SECOND, SECOND / 10..=600 * SECOND, problems),
        max_response: section.integer("max_response", 1 << 18, 0..=(64 << 20), problems),
        unknown: section.choice(
            "unknown",
            UnknownOutcomePolicy::Hold,
            &[("hold", UnknownOutcomePolicy::Hold), ("forward", UnknownOutcomePolicy::Forward)],
            problems,
        ),
        not_done: statuses(&mut section, problems),
        connections: section.integer("connections", 1_000, 1..=100_000, problems),
        trusted_proxies: networks(&mut section, problems),
    };
    section.finish(problems);
    settings
}

/// Parses the service's origin. Problems don't quote it, as it may hold a password.
fn origin(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
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

/// Checks a part of an identity.
fn part(text: String, place: &str, problems: &mut Problems) -> String {
    if let Err(error) = IdentityPart::new(text.as_bytes()) {
        problems.add(place, error.to_string());
    }
    text
}

fn tenant(section: &mut Section, problems: &mut Problems) -> GatewayTenant {
    let place = section.place("tenant");
    let table = match section.take("tenant") {
        None => return GatewayTenant::Fixed("main".to_owned()),
        Some(Value::Dict(_, values)) => Section::new(&place, values),
        Some(_) => Section::new(&place, Dict::new()),
    };
    match table.only(&["fixed", "header"], problems) {
        Some((key, Value::String(_, text))) if key == "fixed" => {
            GatewayTenant::Fixed(part(text, &place, problems))
        }
        Some((_, Value::String(_, text))) if is_name(&text) => {
            GatewayTenant::Header(text.to_ascii_lowercase())
        }
        Some(_) => {
            problems.add(&place, "must be like { fixed = \"acme\" } or { header = \"x-tenant-id\" }");
            GatewayTenant::Fixed(String::new())
        }
        None => GatewayTenant::Fixed(String::new()),
    }
}

fn principal(section: &mut Section, problems: &mut Problems) -> Option<Vec<String>> {
    let place = section.place("principal");
    let names = section.texts("principal", problems)?;
    for name in names.iter().filter(|name| !is_name(name)) {
        problems.add(&place, format!("{name:?} can't be the name of a header"));
    }
    Some(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
}

fn is_name(text: &str) -> bool {
    let is_sign = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_sign)
}

/// Allowed methods; the others are safe to repeat, or no requests to a service.
const METHODS: [&str; 4] = ["POST", "PATCH", "PUT", "DELETE"];

fn methods(section: &mut Section, problems: &mut Problems) -> Vec<String> {
    let place = section.place("methods");
    let methods = section.texts("methods", problems);
    let methods = methods.unwrap_or_else(|| METHODS[..2].iter().map(|name| (*name).to_owned()).collect());
    if methods.is_empty() || methods.iter().any(|method| !METHODS.contains(&method.as_str())) {
        problems.add(place, format!("must name some of {}", METHODS.join(", ")));
    }
    methods
}

fn statuses(section: &mut Section, problems: &mut Problems) -> Vec<u16> {
    let place = section.place("not_done");
    let found = match section.take("not_done") {
        None => Some(Vec::new()),
        Some(Value::Array(_, values)) => values
            .iter()
            .map(|value| {
                // Numbers in the file are signed, those in the environment are not.
                let number = value.to_i128().or_else(|| value.to_u128().and_then(|n| i128::try_from(n).ok()));
                number.and_then(|n| u16::try_from(n).ok()).filter(|status| (400..600).contains(status))
            })
            .collect(),
        Some(_) => None,
    };
    found.unwrap_or_else(|| {
        problems.add(place, "must list statuses from 400 to 599, like [503]");
        Vec::new()
    })
}

fn networks(section: &mut Section, problems: &mut Problems) -> Vec<Network> {
    let place = section.place("trusted_proxies");
    let texts = section.texts("trusted_proxies", problems).unwrap_or_default();
    let networks: Option<Vec<Network>> = texts.iter().map(|text| Network::parse(text)).collect();
    networks.unwrap_or_else(|| {
        problems.add(place, "must list networks, like [\"10.1.2.0/24\"]");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format as _, Toml};

    use super::*;

    fn read(text: &str) -> (GatewaySettings, Vec<String>) {
        let values = Figment::from(Toml::string(text)).extract().unwrap();
        let mut problems = Problems::default();
        let settings = gateway(Section::new("gateway", values), &mut problems);
        (settings, problems.list().iter().map(|one| format!("{}: {}", one.place, one.message)).collect())
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once_and_no_secret_with_it() {
        let (_, problems) = read(
            "listen = \"0.0.0.0:80\"\nupstream = \"http://u:S3CR3T@shop.example.com/api\"\ntenant = { heather = \"x\" }\n\
             principal = [\"a b\"]\nmethods = [\"GET\"]\nnot_done = [200]\ntrusted_proxies = [\"10.0.0.0/33\"]\nunknown = \"guess\"\n\
             lease = \"1ms\"\nconsumer = \"\"\nmax_rum = \"1s\"\nlisten_tls = { cert = \"/nowhere/cert.pem\" }",
        );
        let told = problems.join("\n");
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
            "gateway.lease: must be from",
            "gateway.consumer: ",
            "gateway.max_rum: unknown key; did you mean max_run?",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("S3CR3T"), "{told}");
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
