//! `[console]`: address, access and masking of the console.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use figment::value::Value;
use secrecy::SecretString;

use super::{Problems, Section};

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
    /// Parses `address/bits`, or one address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        // An IPv4 address is mapped to the end of an IPv6 address.
        let (before, most) = if address.is_ipv4() { (96, 32) } else { (0, 128) };
        let bits = bits.unwrap_or(most);
        (bits <= most).then(|| Self { address: number(address), bits: before + bits })
    }

    /// Returns whether the network contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let differs = number(address) ^ self.address;
        self.bits == 0 || differs.leading_zeros() >= self.bits
    }

    /// Returns whether the network contains a loopback address, which every local user can use.
    #[must_use]
    pub fn reaches_loopback(&self) -> bool {
        const OWN: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        // 127.0.0.0/8, as an IPv6 socket reports it.
        let loopback = Self { address: number(OWN[0]), bits: 96 + 8 };
        let within = (loopback.address ^ self.address).leading_zeros() >= loopback.bits;
        OWN.iter().any(|own| self.contains(*own)) || within
    }
}

/// Returns the number of an address; IPv4 addresses in their mapped IPv6 form.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Default listen address: reachable from this machine only.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);

pub(super) fn console(mut section: Section, problems: &mut Problems) -> ConsoleSettings {
    let listen = match section.text("listen", problems) {
        None => LISTEN,
        Some(text) => text.parse().unwrap_or_else(|_| {
            problems.add(section.place("listen"), "must be an address and a port, like \"127.0.0.1:7420\"");
            LISTEN
        }),
    };
    let url = section.text("url", problems).and_then(|text| match url::Url::parse(&text) {
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
            problems.add(section.place("url"), "must be a URL like https://ops.example.com/oncely");
            None
        }
    });
    let tokens = section.text("tokens", problems).map(PathBuf::from);
    let proxy = section.has("proxy").then(|| section.table("proxy", problems));
    let proxy = proxy.and_then(|section| self::proxy(section, problems));
    let key = section.text("key", problems).map(|key| {
        if key.len() < 16 {
            problems.add(section.place("key"), "must have at least 16 bytes, or be left out");
        }
        SecretString::from(key)
    });
    let session = section.duration("session", DAY / 2, Duration::from_secs(60)..=30 * DAY, problems);
    let mask = section.texts("mask", problems).unwrap_or_default();
    for (index, pointer) in mask.iter().enumerate() {
        if !pointer.starts_with('/') || pointer == "/" {
            let place = format!("{}[{index}]", section.place("mask"));
            problems
                .add(place, "must be a JSON pointer, like \"/card/number\" (* stands for any name or index)");
        }
    }
    let reveal_other_bodies = section.boolean("reveal_other_bodies", false, problems);
    let trace_url = section.text("trace_url", problems);
    if let Some(text) = &trace_url
        && !(text.contains("{trace_id}") && (text.starts_with("https://") || text.starts_with("http://")))
    {
        problems.add(section.place("trace_url"), "must be a URL with {trace_id} in it");
    }
    section.finish(problems);
    ConsoleSettings { listen, url, tokens, proxy, key, session, mask, reveal_other_bodies, trace_url }
}

fn proxy(mut section: Section, problems: &mut Problems) -> Option<ProxySettings> {
    let header = section.text("header", problems);
    if !header.as_ref().is_some_and(|text| is_name(text)) {
        problems.add(
            section.place("header"),
            "must be the header with a person's name, like \"x-forwarded-user\"",
        );
    }
    let place = section.place("from");
    let from: Option<Vec<Network>> = match section.take("from") {
        Some(Value::Array(_, values)) if !values.is_empty() => {
            values.iter().map(|value| Network::parse(value.as_str()?)).collect()
        }
        _ => None,
    };
    if from.is_none() {
        problems.add(place, "must list the networks that the proxy is in, like [\"10.1.2.0/24\"]");
    }
    let operators = section.texts("operators", problems).unwrap_or_default();
    let secret = section.has("secret").then(|| section.table("secret", problems));
    let has_secret = secret.is_some();
    let secret = secret.and_then(|section| self::secret(section, problems));
    if !has_secret && from.iter().flatten().any(Network::reaches_loopback) {
        let what = "is missing: every user of this machine has a loopback address that is in `from`, and could say who they are. Let the \
                    proxy add a header with a secret, and say { header = …, file = … }";
        problems.add(section.place("secret"), what);
    }
    section.finish(problems);
    Some(ProxySettings { header: header?.to_ascii_lowercase(), from: from?, operators, secret })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn secret(mut section: Section, problems: &mut Problems) -> Option<ProxySecret> {
    let header = section.text("header", problems);
    if !header.as_ref().is_some_and(|text| is_name(text)) {
        problems.add(section.place("header"), "must be the header with the secret, like \"x-oncely-proxy\"");
    }
    let file = section.text("file", problems).map(PathBuf::from);
    if file.is_none() {
        problems.add(section.place("file"), "must be the file with the secret");
    }
    section.finish(problems);
    Some(ProxySecret { header: header?.to_ascii_lowercase(), file: file? })
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
