//! `[console]`: address, access and masking of the console.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::Problems;
use super::cell::check_key;
use super::values::{DAY, HOUR, Length, MINUTE, Secret};

/// Settings of the console.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsoleSettings {
    /// Listen address.
    pub listen: SocketAddr,
    /// URL under which users reach it, if it differs from the listen address; its path is the base of all pages.
    pub url: Option<url::Url>,
    /// File of the access tokens.
    pub tokens: Option<PathBuf>,
    /// Proxy that authenticates users.
    pub proxy: Option<ProxySettings>,
    /// Key that signs sessions; by default a random key of the process, so that sessions end with it.
    pub key: Option<SecretString>,
    /// Lifetime of a session.
    pub session: Duration,
    /// Fields of bodies, headers and responses that are never shown: JSON pointers, matched at any depth.
    pub mask: Vec<String>,
    /// With a mask: whether content without fields (no JSON, or a plain text) may be revealed.
    pub reveal_other_bodies: bool,
    /// URL of a trace, with `{trace_id}` in it.
    pub trace_url: Option<String>,
}

/// Proxy that authenticates users and sends their name in a header.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProxySettings {
    /// Header with the name, in lower case.
    pub header: String,
    /// Addresses of the proxy; connections from others are refused.
    pub from: Vec<Network>,
    /// Names of the operators; all other users are read-only.
    pub operators: Vec<String>,
    /// Secret that the proxy sends, to distinguish it from others at the same address.
    pub secret: Option<ProxySecret>,
}

/// Secret known only to the proxy and the console.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProxySecret {
    /// Header with the secret, in lower case.
    pub header: String,
    /// File with the secret, for the console.
    pub file: PathBuf,
}

/// Addresses with a common prefix, like `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    bits: u32,
}

impl Network {
    /// Parses `address/bits`, or one address; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        // An IPv4 address is mapped to the end of an IPv6 address.
        let (prefix_bits, max_bits) = if address.is_ipv4() { (96, 32) } else { (0, 128) };
        let bits = bits.unwrap_or(max_bits);
        (bits <= max_bits).then(|| Self { address: to_number(address), bits: prefix_bits + bits })
    }

    /// Returns whether the network contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let difference = to_number(address) ^ self.address;
        self.bits == 0 || difference.leading_zeros() >= self.bits
    }

    /// Returns whether the network contains a loopback address, which every local user can use.
    #[must_use]
    pub fn reaches_loopback(&self) -> bool {
        const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        // 127.0.0.0/8, as an IPv6 socket reports it.
        let loopback = Self { address: to_number(LOOPBACK[0]), bits: 96 + 8 };
        let is_loopback_subnet = (loopback.address ^ self.address).leading_zeros() >= loopback.bits;
        LOOPBACK.iter().any(|address| self.contains(*address)) || is_loopback_subnet
    }
}

/// Converts an address to its number; IPv4 addresses in their mapped IPv6 form.
fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Default listen address: reachable from this machine only.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct ConsoleTable {
    /// Address of `oncely console`. Another machine can reach it only at another address; that takes `tokens` or `proxy`, and `url`.
    listen: String,
    /// URL under which people reach it, where that is not the address itself; the path is the base of all pages.
    #[schemars(extend("x-example" = "https://ops.example.com/oncely"))]
    url: Option<String>,
    /// A file with one person a line: viewer or operator, a name, a token of 24 characters or more (openssl rand -hex 24). It belongs to root or to the
    /// user of the console; its group may read it, and no other user. It is read again when it changes. Without it a link is printed at the start, for
    /// this machine alone, and each person who follows it is an operator.
    #[schemars(extend("x-example" = "/etc/oncely/console-tokens"))]
    tokens: Option<PathBuf>,
    /// A proxy that authenticates people and sends their name in a header. Only requests from its networks are answered. All other people
    /// may look. A proxy on the same machine adds a secret, which is in a file (24 bytes or more, private as `tokens` is): secret = { header =
    /// "x-oncely-proxy", file = "/etc/oncely/proxy-secret" }. It is required where a loopback address is in `from`: every local user has one.
    #[schemars(extend("x-example" = { "header": "x-forwarded-user", "from": ["10.1.2.0/24"], "operators": ["ana@example.com"] }))]
    proxy: Option<ProxyTable>,
    /// Signs sessions (16 bytes or more); by default a key of the process's own, so that a restart ends them, and each of several consoles has sessions of
    /// its own. With it a sign-out is known to the console where it was done, until that is started again: a session ends after `session` at the latest,
    /// and when its token is taken out of `tokens`.
    #[schemars(extend("x-example" = "…"))]
    key: Option<Secret>,
    /// Lifetime of a session.
    #[garde(range(min = MINUTE, max = DAY.times(30)))]
    session: Length,
    /// Fields of bodies, headers and responses that are never shown, by JSON pointer, at any depth: "/card/number" is the field number
    /// of every field card. * stands for any name or index. Upper and lower case are the same. A text that begins as JSON and can't be parsed is hidden,
    /// too, and so is a text that holds JSON.
    mask: Vec<String>,
    /// With a mask: reveal bodies that have no fields, because they are no JSON, or a text alone.
    reveal_other_bodies: bool,
    /// URL of a trace.
    #[schemars(extend("x-example" = "https://tempo.example.com/trace/{trace_id}"))]
    trace_url: Option<String>,
}

impl Default for ConsoleTable {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.to_string(),
            url: None,
            tokens: None,
            proxy: None,
            key: None,
            session: HOUR.times(12),
            mask: Vec::new(),
            reveal_other_bodies: false,
            trace_url: None,
        }
    }
}

/// A proxy that authenticates people.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ProxyTable {
    header: Option<String>,
    from: Vec<String>,
    operators: Vec<String>,
    secret: Option<ProxySecretTable>,
}

/// A secret that the proxy sends.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ProxySecretTable {
    header: Option<String>,
    file: Option<PathBuf>,
}

impl ConsoleTable {
    /// Checks the table, and converts it; a value with a problem is left out or has its default.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> ConsoleSettings {
        let listen = self.listen.parse().unwrap_or_else(|_| {
            problems.add("console.listen", "must be an address and a port, like \"127.0.0.1:7420\"");
            DEFAULT_LISTEN
        });
        let url = self.url.and_then(|text| parse_base_url(&text, problems));
        check_key(self.key.as_ref(), "console.key", problems);
        for (index, pointer) in self.mask.iter().enumerate() {
            if !pointer.starts_with('/') || pointer == "/" {
                let message =
                    "must be a JSON pointer, like \"/card/number\" (* stands for any name or index)";
                problems.add(format!("console.mask[{index}]"), message);
            }
        }
        if let Some(text) = &self.trace_url
            && !(text.contains("{trace_id}") && (text.starts_with("https://") || text.starts_with("http://")))
        {
            problems.add("console.trace_url", "must be a URL with {trace_id} in it");
        }
        ConsoleSettings {
            listen,
            url,
            tokens: self.tokens,
            proxy: self.proxy.and_then(|proxy| proxy.into_settings(problems)),
            key: self.key.map(|key| key.0),
            session: self.session.0,
            mask: self.mask,
            reveal_other_bodies: self.reveal_other_bodies,
            trace_url: self.trace_url,
        }
    }
}

/// Parses the URL of the console, which has no user, no query and no fragment; `None` if it is invalid, which is reported.
fn parse_base_url(text: &str, problems: &mut Problems) -> Option<url::Url> {
    match url::Url::parse(text) {
        Ok(url)
            if ["http", "https"].contains(&url.scheme())
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
                && url.password().is_none() =>
        {
            Some(url)
        }
        _ => {
            problems.add("console.url", "must be a URL like https://ops.example.com/oncely");
            None
        }
    }
}

impl ProxyTable {
    /// Checks the table, and converts it; `None` if the header or the networks are invalid.
    fn into_settings(self, problems: &mut Problems) -> Option<ProxySettings> {
        let header = self.header.filter(|text| is_header_name(text));
        if header.is_none() {
            let message = "must be the header with a person's name, like \"x-forwarded-user\"";
            problems.add("console.proxy.header", message);
        }
        let from: Option<Vec<Network>> = self.from.iter().map(|text| Network::parse(text)).collect();
        let from = from.filter(|networks| !networks.is_empty());
        if from.is_none() {
            let message = "must list the networks that the proxy is in, like [\"10.1.2.0/24\"]";
            problems.add("console.proxy.from", message);
        }
        if self.secret.is_none() && from.iter().flatten().any(Network::reaches_loopback) {
            let message = "is missing: `from` includes loopback addresses, so every user of this machine could send any \
                        name. Let the proxy add a header with a secret, and set { header = …, file = … }";
            problems.add("console.proxy.secret", message);
        }
        let secret = self.secret.and_then(|secret| secret.into_settings(problems));
        Some(ProxySettings {
            header: header?.to_ascii_lowercase(),
            from: from?,
            operators: self.operators,
            secret,
        })
    }
}

impl ProxySecretTable {
    fn into_settings(self, problems: &mut Problems) -> Option<ProxySecret> {
        let header = self.header.filter(|text| is_header_name(text));
        if header.is_none() {
            let message = "must be the header with the secret, like \"x-oncely-proxy\"";
            problems.add("console.proxy.secret.header", message);
        }
        if self.file.is_none() {
            problems.add("console.proxy.secret.file", "must be the file with the secret");
        }
        Some(ProxySecret { header: header?.to_ascii_lowercase(), file: self.file? })
    }
}

/// Returns whether a text may be the name of a header.
fn is_header_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_knows_whether_local_users_are_in_it() {
        for (network, is_local) in [
            ("127.0.0.0/8", true),
            ("127.3.2.1", true),
            ("0.0.0.0/0", true),
            ("64.0.0.0/2", true),
            ("::/0", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.0/8", false),
            ("fd00::/8", false),
            ("128.0.0.0/1", false),
        ] {
            assert_eq!(Network::parse(network).unwrap().reaches_loopback(), is_local, "{network}");
        }
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        let contains = |network: &str, address: &str| {
            Network::parse(network).unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.1.0.0/16", "10.1.255.3"));
        assert!(!contains("10.1.0.0/16", "10.2.0.0"));
        assert!(contains("10.1.0.0/16", "::ffff:10.1.0.9"), "as an IPv6 socket shows it");
        assert!(!contains("0.0.0.0/0", "fe80::1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe00::1"));
        assert!(contains("::/0", "1.2.3.4"));
        for junk in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "x", "10.0.0.0/-1"] {
            assert_eq!(Network::parse(junk), None, "{junk}");
        }
    }
}
