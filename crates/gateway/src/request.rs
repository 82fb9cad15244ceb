//! Prepares a request for the service: refusals, headers of this hop, and the client's address.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, Uri, Version};

use super::problem::GatewayProblemKind;

/// Headers of one hop (RFC 9110, 7.6.1), besides those that `Connection` names.
const HOP_HEADERS: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Prefix of headers that only proxies set and services trust.
const X_FORWARDED_PREFIX: &str = "x-forwarded-";
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Refusal of a request.
pub(super) type RequestRefusal = (GatewayProblemKind, &'static str);

/// Sender of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    /// Whether its forwarding headers are trusted.
    pub(super) is_trusted: bool,
    /// Whether it uses TLS.
    pub(super) is_secure: bool,
}

/// Turns a received request into the one that is sent on: removes the headers of its hop, adds those of a proxy, and makes its target a path.
/// Refuses tunnels, upgrades, unknown codings, and a malformed host or target.
pub(super) fn prepare_upstream(parts: &mut Parts, peer: Peer) -> Result<(), RequestRefusal> {
    if parts.method == Method::CONNECT {
        return Err((GatewayProblemKind::Unsupported, "Tunnels are not made"));
    }
    refuse_upgrade(&parts.headers)?;
    check_transfer_coding(&parts.headers)?;
    let host = parse_host(parts)?;
    parts.uri = parse_target(&parts.uri)?;
    strip_hop_headers(&mut parts.headers);
    let headers = &mut parts.headers;
    // The server on this side has answered it; the length is set again.
    headers.remove(EXPECT);
    headers.remove(CONTENT_LENGTH);
    let protocol = if parts.version == Version::HTTP_10 { "1.0 oncely" } else { "1.1 oncely" };
    headers.append(VIA, HeaderValue::from_static(protocol));
    if !peer.is_trusted {
        // Many services read `x_forwarded_for` as the same name.
        let forwarding = headers.keys().filter(|name| {
            let name = name.as_str().replace('_', "-");
            name.starts_with(X_FORWARDED_PREFIX) || name == X_REAL_IP.as_str() || name == FORWARDED.as_str()
        });
        for name in forwarding.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
    }
    let addresses: Vec<&str> =
        headers.get_all(X_FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
    let mut chain = addresses.join(", ");
    if !chain.is_empty() {
        chain.push_str(", ");
    }
    chain.push_str(&peer.address.to_canonical().to_string());
    if let Ok(chain) = HeaderValue::try_from(chain) {
        headers.insert(X_FORWARDED_FOR, chain);
    }
    let protocol = if peer.is_secure { "https" } else { "http" };
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(protocol));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host.clone());
        headers.insert(HOST, host);
    }
    parts.version = Version::HTTP_11;
    Ok(())
}

/// Removes the headers of one hop, of requests and answers.
pub(super) fn strip_hop_headers(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> =
        tokens(headers, CONNECTION).filter_map(|token| HeaderName::try_from(token).ok()).collect();
    for name in names.iter().chain(&HOP_HEADERS) {
        headers.remove(name);
    }
}

/// Returns the items of a list header.
fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// Refuses protocol upgrades. An offer of HTTP/2 is ignored: such a client continues with HTTP/1.1.
fn refuse_upgrade(headers: &HeaderMap) -> Result<(), RequestRefusal> {
    let is_upgrade =
        headers.get_all(UPGRADE).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"h2c"));
    match is_upgrade {
        true => Err((GatewayProblemKind::Unsupported, "No other protocol is spoken through the gateway")),
        false => Ok(()),
    }
}

/// Refuses transfer codings besides chunked: the header that names them is removed, so the service would misread the body.
fn check_transfer_coding(headers: &HeaderMap) -> Result<(), RequestRefusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    match is_known {
        true => Ok(()),
        false => Err((GatewayProblemKind::Unsupported, "Of transfer codings only chunked is known")),
    }
}

/// Parses the host that the client addresses: that of the target, or the only `Host` header; `None` if a request of HTTP/1.0 omits it.
fn parse_host(parts: &Parts) -> Result<Option<HeaderValue>, RequestRefusal> {
    let refusal = (
        GatewayProblemKind::Malformed,
        "A request has one Host, a name or an address with or without a port",
    );
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(refusal);
    }
    // The target takes precedence (RFC 9112, 3.2.2).
    let authority = match (parts.uri.authority(), first) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => Authority::try_from(host.as_bytes()).map_err(|_| refusal)?,
        (None, None) if parts.version == Version::HTTP_10 => return Ok(None),
        (None, None) => return Err(refusal),
    };
    if authority.as_str().contains('@') {
        return Err(refusal);
    }
    HeaderValue::from_str(authority.as_str()).map(Some).map_err(|_| refusal)
}

/// Returns path and query of a target, byte for byte; refuses a path without a leading slash.
fn parse_target(uri: &Uri) -> Result<Uri, RequestRefusal> {
    let refusal = (GatewayProblemKind::Malformed, "The target is a path that begins with a slash");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
    if !path.starts_with('/') {
        return Err(refusal);
    }
    // Two leading slashes would be parsed as a host.
    Uri::builder().path_and_query(path).build().map_err(|_| refusal)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn peer(is_trusted: bool) -> Peer {
        Peer { address: "203.0.113.7".parse().unwrap(), is_trusted, is_secure: false }
    }

    fn parts(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method("POST").uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn header_pairs(parts: &Parts) -> Vec<(String, String)> {
        let to_pair = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), value.to_str().unwrap().to_owned())
        };
        let mut pairs: Vec<_> = parts.headers.iter().map(to_pair).collect();
        pairs.sort();
        pairs
    }

    #[test]
    fn what_is_of_one_hop_ends_here_and_what_is_for_the_service_goes_on() {
        let mut request = parts(
            "/orders?x=1",
            &[
                ("host", "shop.example.com:8080"),
                ("connection", "close, X-Mine, authorization"),
                ("x-mine", "1"),
                ("authorization", "Bearer S3CR3T"),
                ("keep-alive", "timeout=5"),
                ("proxy-authorization", "Basic S3CR3T"),
                ("te", "trailers"),
                ("trailer", "x-sum"),
                ("expect", "100-continue"),
                ("content-length", "3"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
                ("idempotency-key", "\"a\""),
                ("cookie", "a=1"),
                ("via", "1.1 front"),
            ],
        );
        prepare_upstream(&mut request, peer(false)).unwrap();
        let expected = [
            ("cookie", "a=1"),
            ("host", "shop.example.com:8080"),
            ("idempotency-key", "\"a\""),
            ("via", "1.1 front"),
            ("via", "1.1 oncely"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-host", "shop.example.com:8080"),
            ("x-forwarded-proto", "http"),
        ];
        assert_eq!(header_pairs(&request), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(request.uri.to_string(), "/orders?x=1");
    }

    #[test]
    fn only_a_trusted_proxy_says_who_came_before_it() {
        let forged = [
            ("host", "shop"),
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example.com"),
            ("x-forwarded-prefix", "/admin"),
            ("x-real-ip", "198.51.100.1"),
            ("forwarded", "for=198.51.100.1"),
        ];
        let of = |is_trusted| {
            let mut request = parts("/", &forged);
            prepare_upstream(&mut request, peer(is_trusted)).unwrap();
            header_pairs(&request)
        };
        let has = |headers: &[(String, String)], name: &str, value: &str| {
            headers.contains(&(name.to_owned(), value.to_owned()))
        };
        let trusted = of(true);
        assert!(has(&trusted, "x-forwarded-for", "198.51.100.1, 203.0.113.7"), "{trusted:?}");
        assert!(has(&trusted, "x-forwarded-proto", "https"), "{trusted:?}");
        assert!(has(&trusted, "forwarded", "for=198.51.100.1"), "{trusted:?}");
        let untrusted = of(false);
        assert!(
            !untrusted.iter().any(|(_, value)| value.contains("198.51") || value == "/admin"),
            "{untrusted:?}"
        );
        assert!(has(&untrusted, "x-forwarded-proto", "http") && has(&untrusted, "x-forwarded-host", "shop"));
    }

    #[test]
    fn what_came_by_tls_is_said_to_have() {
        let mut request = parts("/", &[("host", "shop")]);
        prepare_upstream(&mut request, Peer { is_secure: true, ..peer(false) }).unwrap();
        assert!(header_pairs(&request).contains(&("x-forwarded-proto".to_owned(), "https".to_owned())));
    }

    #[test]
    fn a_target_is_a_path_and_names_one_host() {
        let mut absolute = parts("http://shop.example.com/a//b/../c?q=%2e", &[("host", "other")]);
        prepare_upstream(&mut absolute, peer(false)).unwrap();
        assert_eq!(absolute.uri.to_string(), "/a//b/../c?q=%2e");
        assert_eq!(absolute.headers[HOST], "shop.example.com");
        for (target, headers) in [
            ("*", &[("host", "shop")][..]),
            ("/", &[("host", "a"), ("host", "a")]),
            ("/", &[("host", "a b")]),
            ("/", &[("host", "user@a")]),
            ("/", &[("host", "")]),
            ("/", &[]),
        ] {
            let refused = prepare_upstream(&mut parts(target, headers), peer(false));
            assert!(
                matches!(refused, Err((GatewayProblemKind::Malformed, _))),
                "{target} {headers:?}: {refused:?}"
            );
        }
        for headers in [
            &[("host", "a"), ("upgrade", "websocket")][..],
            &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
            &[("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ] {
            let refused = prepare_upstream(&mut parts("/", headers), peer(false));
            assert!(matches!(refused, Err((GatewayProblemKind::Unsupported, _))), "{headers:?}: {refused:?}");
        }
    }
}
