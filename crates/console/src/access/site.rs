//! Addresses of the console: valid Host and Origin headers, and the base path of its pages.

use std::net::SocketAddr;

use url::Url;

/// The console's own addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Prefix of every path: empty, or `/something`.
    pub(crate) base: String,
    /// Whether the browser reaches it by TLS.
    pub(crate) secure: bool,
    /// Such as `http://127.0.0.1:7420`; the first is used in links.
    origins: Vec<String>,
}

impl Site {
    /// Builds the addresses. `url`: the public URL, if it differs from the listening address.
    pub(crate) fn new(listen: SocketAddr, url: Option<&Url>) -> Self {
        if let Some(url) = url {
            let origin = url.origin().ascii_serialization();
            let base = url.path().trim_end_matches('/').to_owned();
            return Self { base, secure: url.scheme() == "https", origins: vec![origin] };
        }
        let mut origins = vec![format!("http://{listen}")];
        if listen.ip().is_loopback() {
            origins.push(format!("http://localhost:{}", listen.port()));
        }
        // A browser omits the scheme's default port.
        let short = origins.iter().filter_map(|origin| origin.strip_suffix(":80").map(str::to_owned));
        let origins = origins.iter().cloned().chain(short).collect();
        Self { base: String::new(), secure: false, origins }
    }

    /// Returns the public address.
    pub(crate) fn address(&self) -> String {
        let origin = self.origins.first().map_or("", String::as_str);
        format!("{origin}{}/", self.base)
    }

    /// Returns whether a host name is one of the console's own. A foreign name server can point another name here (DNS rebinding), and then
    /// its pages would have the same origin as the console's.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        let authorities = self.origins.iter().filter_map(|origin| Some(origin.split_once("://")?.1));
        authorities.into_iter().any(|authority| authority.eq_ignore_ascii_case(host))
    }

    /// Returns whether an origin is one of the console's own.
    pub(crate) fn is_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin))
    }

    /// Returns the path of a page.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_names_are_known() {
        let site = Site::new("127.0.0.1:7420".parse().unwrap(), None);
        assert!(site.is_host("127.0.0.1:7420") && site.is_host("LocalHost:7420"));
        for host in
            ["", "evil.example", "127.0.0.1", "127.0.0.1:7421", "localhost:7420.evil.example", "[::1]:7420"]
        {
            assert!(!site.is_host(host), "{host}");
        }
        assert!(site.is_origin("http://localhost:7420") && !site.is_origin("https://localhost:7420"));
        assert!(!site.is_origin("null"));
        assert_eq!(site.address(), "http://127.0.0.1:7420/");
    }

    #[test]
    fn a_url_says_the_name_the_base_and_whether_it_is_secure() {
        let url = Url::parse("https://Ops.example.com/oncely/").unwrap();
        let site = Site::new("0.0.0.0:7420".parse().unwrap(), Some(&url));
        assert!(site.is_host("ops.example.com") && !site.is_host("ops.example.com:7420"));
        assert!(site.is_origin("https://ops.example.com") && site.secure);
        assert_eq!(
            (site.address().as_str(), site.path("/keys").as_str()),
            ("https://ops.example.com/oncely/", "/oncely/keys")
        );
    }
}
