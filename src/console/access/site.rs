//! Under which addresses people reach the console: what Host and Origin may be, and where its pages are.

use std::net::SocketAddr;

use url::Url;

/// The console's own addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// In front of every path: empty, or `/something`.
    pub(crate) base: String,
    /// Reached by TLS, at least as far as the browser sees.
    pub(crate) secure: bool,
    /// `http://127.0.0.1:7420`, the first for links.
    origins: Vec<String>,
}

impl Site {
    /// `url`: as people write it, where it is not the address itself.
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
        // A browser leaves the scheme's own port out.
        let short = origins.iter().filter_map(|origin| origin.strip_suffix(":80").map(str::to_owned));
        let origins = origins.iter().cloned().chain(short).collect();
        Self { base: String::new(), secure: false, origins }
    }

    /// Where people reach it.
    pub(crate) fn address(&self) -> String {
        let origin = self.origins.first().map_or("", String::as_str);
        format!("{origin}{}/", self.base)
    }

    /// Is it one of our names? Another one leads here too where somebody else's name server says so, and then a page of theirs would
    /// be one origin with ours.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        let authorities = self.origins.iter().filter_map(|origin| Some(origin.split_once("://")?.1));
        authorities.into_iter().any(|authority| authority.eq_ignore_ascii_case(host))
    }

    /// Is it one of our origins?
    pub(crate) fn is_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin))
    }

    /// The path of a page.
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
