//! Authentication: by one-time link, by token, or by a trusted proxy.

mod link;
mod private;
mod session;
mod site;
mod tokens;
mod user;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use axum::http::{HeaderMap, HeaderValue, header};
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret as _;

pub(crate) use session::{LoginSession, LoginSessions};
pub(crate) use site::Site;
pub(crate) use user::{ConsoleRole, User};

use link::SignInLinks;
use oncely_config::{ConsoleSettings, Problems, ProxySettings};
use tokens::TokenFile;

/// The configured sign-in method.
enum SignInMethod {
    /// A link, printed where the console was started; signs in with the name of the operating system's user.
    Link(SignInLinks, User),
    Tokens(TokenFile),
    /// A trusted proxy, with the name of its secret header and the secret's hash.
    Proxy(ProxySettings, Option<(String, blake3::Hash)>),
}

impl SignInMethod {
    /// Returns the word of the method, to which the signing key of the sessions is bound.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Link(..) => "link",
            Self::Tokens(_) => "tokens",
            Self::Proxy(..) => "proxy",
        }
    }
}

/// Minimum length of a proxy's secret, in bytes.
const MIN_SECRET_BYTES: usize = 24;

/// The credential that sessions from a link carry.
const LINK_CREDENTIAL: &[u8] = b"link";

/// Signs users in and authenticates their requests.
pub(crate) struct Access {
    method: SignInMethod,
    sessions: LoginSessions,
    site: Site,
    /// Contains the port, since cookies ignore it: two consoles on one machine need different names, in order not to sign each other out.
    cookie_name: String,
}

/// The choice that the sign-in page offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignInChoice {
    /// Have a new link printed.
    Link,
    /// Enter a token.
    Token,
    /// None: the proxy did not name the user.
    Proxy,
}

/// Checks whether the settings allow the console to listen on an address; returns the problems.
pub(crate) fn check_listen_address(
    settings: &ConsoleSettings,
    listen: SocketAddr,
    insecure_plaintext: bool,
) -> Problems {
    let mut problems = Problems::default();
    if settings.tokens.is_some() && settings.proxy.is_some() {
        problems.add("console.proxy", "and console.tokens exclude each other: leave one out");
    }
    if listen.ip().is_loopback() {
        return problems;
    }
    if settings.tokens.is_none() && settings.proxy.is_none() {
        let what = format!(
            "{listen} is open to other machines without authentication: set console.tokens or console.proxy, or \
             listen on 127.0.0.1"
        );
        problems.add("console.listen", what);
    }
    if settings.url.is_none() {
        let what = format!(
            "is missing: set the URL under which browsers reach {listen}; requests for another name are refused"
        );
        problems.add("console.url", what);
    }
    if !insecure_plaintext {
        let what = format!(
            "{listen} is open to other machines in plaintext: sessions and messages can be read on the network. Put a \
             proxy with TLS in front of it; if the network behind the proxy is trusted, use --insecure-plaintext"
        );
        problems.add("console.listen", what);
    }
    problems
}

impl Access {
    /// Sets up the configured sign-in method. `listen`: the listening address. `user`: the owner of the one-time link. Also returns the
    /// link's first token, `None` unless links are used.
    ///
    /// # Errors
    /// If a file of secrets is invalid.
    pub(crate) fn open(
        settings: &ConsoleSettings,
        cell: &str,
        listen: SocketAddr,
        user: &str,
    ) -> Result<(Self, Option<String>), Problems> {
        let (method, token) = match (&settings.proxy, &settings.tokens) {
            (Some(proxy), _) => (SignInMethod::Proxy(proxy.clone(), read_secret(proxy)?), None),
            (None, Some(file)) => (SignInMethod::Tokens(TokenFile::open(file)?), None),
            (None, None) => {
                let nameless = || User { name: "operator".to_owned(), role: ConsoleRole::Operator };
                let user = User::new(user, ConsoleRole::Operator).unwrap_or_else(nameless);
                let (link, token) = SignInLinks::new(Instant::now());
                (SignInMethod::Link(link, user), Some(token))
            }
        };
        let key = settings.key.as_ref().map(|key| key.expose_secret().as_bytes());
        let site = Site::new(listen, settings.url.as_ref());
        let access = Self {
            sessions: LoginSessions::new(key, &[cell, &site.address(), method.as_str()], settings.session),
            method,
            site,
            cookie_name: format!("oncely_console_{}", listen.port()),
        };
        Ok((access, token))
    }

    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the choice that the sign-in page offers.
    pub(crate) fn sign_in_choice(&self) -> SignInChoice {
        match self.method {
            SignInMethod::Link(..) => SignInChoice::Link,
            SignInMethod::Tokens(_) => SignInChoice::Token,
            SignInMethod::Proxy(..) => SignInChoice::Proxy,
        }
    }

    /// Returns whether a peer may connect: behind a proxy only the proxy may.
    pub(crate) fn is_allowed_peer(&self, peer: IpAddr) -> bool {
        match &self.method {
            SignInMethod::Proxy(proxy, _) => proxy.from.iter().any(|network| network.contains(peer)),
            SignInMethod::Link(..) | SignInMethod::Tokens(_) => true,
        }
    }

    /// Returns whether all users come from a proxy's few addresses.
    pub(crate) fn is_behind_proxy(&self) -> bool {
        matches!(self.method, SignInMethod::Proxy(..))
    }

    /// Authenticates a request by its cookie, or by the headers of a trusted proxy. Returns its session; `None` if it has no valid one.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, now: DateTime<Utc>) -> Option<LoginSession> {
        if let SignInMethod::Proxy(proxy, secret) = &self.method {
            if let Some((header, expected_hash)) = secret {
                // Compared by hash, in constant time.
                let hash = blake3::hash(single_header(headers, header)?.as_bytes());
                if hash != *expected_hash {
                    return None;
                }
            }
            let name = single_header(headers, &proxy.header)?.to_str().ok()?;
            let is_operator = proxy.operators.iter().any(|operator| operator == name.trim());
            let role = if is_operator { ConsoleRole::Operator } else { ConsoleRole::Viewer };
            return User::new(name, role).map(|user| self.sessions.new_proxy_session(user));
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let cookie = pairs.find_map(|(name, value)| {
            (name == self.cookie_name).then(|| self.sessions.verify_cookie(value, now)).flatten()
        })?;
        let user = self.find_user(&cookie)?;
        Some(self.sessions.new_session(cookie, user))
    }

    /// Returns whether a session is still valid, for work that outlasts its request.
    pub(crate) fn is_still_valid(&self, session: &LoginSession, now: DateTime<Utc>) -> bool {
        self.sessions.is_valid(session, now)
            && session
                .cookie
                .as_ref()
                .is_none_or(|cookie| self.find_user(cookie).as_ref() == Some(&session.user))
    }

    /// Finds the owner of a cookie, with the current role; `None` if its credential is no longer valid, or a proxy names the users.
    fn find_user(&self, cookie: &session::SessionCookie) -> Option<User> {
        match &self.method {
            SignInMethod::Link(_, user) => {
                self.sessions.is_opened_with(cookie, LINK_CREDENTIAL).then(|| user.clone())
            }
            SignInMethod::Tokens(file) => file
                .read_tokens()
                .find_by_hash(|hash| self.sessions.is_opened_with(cookie, hash.as_bytes()))
                .cloned(),
            SignInMethod::Proxy(..) => None,
        }
    }

    /// Signs in by a one-time link or a token. Returns the `Set-Cookie` value; `None` if the token is invalid.
    pub(crate) fn sign_in(&self, token: &str, now: DateTime<Utc>) -> Option<String> {
        let value = match &self.method {
            SignInMethod::Link(link, _) => {
                link.use_up(token, Instant::now()).then(|| self.sessions.open(LINK_CREDENTIAL, now))?
            }
            SignInMethod::Tokens(file) => {
                self.sessions.open(file.read_tokens().find_entry(token)?.0.as_bytes(), now)
            }
            SignInMethod::Proxy(..) => return None,
        };
        Some(self.cookie_header(&value, self.sessions.lifetime().as_secs()))
    }

    /// Ends a session; returns the `Set-Cookie` value.
    pub(crate) fn sign_out(&self, session: &LoginSession, now: DateTime<Utc>) -> String {
        self.sessions.close(session, now);
        self.cookie_header("", 0)
    }

    /// Creates another link, and returns its token; `None` if no links are used, or within five seconds of the last one.
    pub(crate) fn renew_link(&self) -> Option<String> {
        match &self.method {
            SignInMethod::Link(link, _) => link.renew(Instant::now()),
            SignInMethod::Tokens(_) | SignInMethod::Proxy(..) => None,
        }
    }

    /// Returns the sign-in URL of a token.
    pub(crate) fn sign_in_url(&self, token: &str) -> String {
        format!("{}login?token={token}", self.site.address())
    }

    /// Returns the `Set-Cookie` value of a cookie with this value and lifetime.
    fn cookie_header(&self, value: &str, seconds: u64) -> String {
        let secure = if self.site.secure { "; Secure" } else { "" };
        let path = if self.site.base.is_empty() { "/" } else { &self.site.base };
        format!(
            "{}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}",
            self.cookie_name
        )
    }
}

/// Returns a header that occurs once; `None` if it occurs never or more often: of two, one may be the client's own.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value),
        _ => None,
    }
}

/// Reads the file of the proxy's secret, and returns the secret's header and hash; `None` if no secret is configured.
fn read_secret(proxy: &ProxySettings) -> Result<Option<(String, blake3::Hash)>, Problems> {
    let Some(secret) = &proxy.secret else { return Ok(None) };
    let mut problems = Problems::default();
    let place = format!("console.proxy.secret.file {}", secret.file.display());
    match private::read(&secret.file) {
        Err(what) => problems.add(place, what),
        Ok((_, text)) if text.trim().len() < MIN_SECRET_BYTES => {
            problems.add(
                place,
                format!("holds less than {MIN_SECRET_BYTES} bytes; `openssl rand -hex 24` makes a secret"),
            );
        }
        Ok((_, text)) => {
            return Ok(Some((secret.header.clone(), blake3::hash(text.trim().as_bytes()))));
        }
    }
    Err(problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncely_config::Config;

    fn settings(text: &str) -> ConsoleSettings {
        let base = "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[console]\n";
        Config::parse(&format!("{base}{text}")).unwrap().console
    }

    fn refused(text: &str, listen: &str, insecure_plaintext: bool) -> Vec<String> {
        let problems = check_listen_address(&settings(text), listen.parse().unwrap(), insecure_plaintext);
        problems.list().iter().map(|problem| problem.place.clone()).collect()
    }

    #[test]
    fn another_machine_is_let_near_only_where_somebody_says_who_may_come_in_and_how() {
        let proxy = "proxy = { header = \"x-user\", from = [\"10.0.0.0/8\"] }\n";
        let url = "url = \"https://ops.example.com\"\n";
        assert_eq!(refused("", "127.0.0.1:7420", false), Vec::<String>::new());
        assert_eq!(refused("", "[::1]:7420", false), Vec::<String>::new());
        assert_eq!(refused("", "0.0.0.0:7420", false), ["console.listen", "console.url", "console.listen"]);
        assert_eq!(refused(url, "0.0.0.0:7420", true), ["console.listen"]);
        assert_eq!(refused(&format!("{proxy}{url}"), "0.0.0.0:7420", false), ["console.listen"]);
        assert_eq!(refused(&format!("{proxy}{url}"), "0.0.0.0:7420", true), Vec::<String>::new());
        assert_eq!(refused(&format!("{proxy}tokens = \"t\"\n"), "127.0.0.1:7420", false), ["console.proxy"]);
    }

    #[test]
    fn a_proxys_word_is_taken_from_its_networks_and_only_when_it_is_said_once() {
        let settings = settings(
            "proxy = { header = \"X-User\", from = [\"10.0.0.0/8\"], operators = [\"bo\"] }\nurl = \"https://ops.example.com\"",
        );
        let (access, token) =
            Access::open(&settings, "main", "0.0.0.0:7420".parse().unwrap(), "root").unwrap();
        assert_eq!(token, None);
        assert!(
            access.is_allowed_peer("10.1.2.3".parse().unwrap())
                && !access.is_allowed_peer("11.1.2.3".parse().unwrap())
        );
        let user = |names: &[&str]| {
            let mut headers = HeaderMap::new();
            for name in names {
                headers.append("x-user", name.parse().unwrap());
            }
            access.authenticate(&headers, Utc::now()).map(|session| (session.user.name, session.user.role))
        };
        assert_eq!(user(&["bo"]), Some(("bo".to_owned(), ConsoleRole::Operator)));
        assert_eq!(user(&["ana"]), Some(("ana".to_owned(), ConsoleRole::Viewer)));
        for names in [&[][..], &[""], &["ana", "bo"], &["bo\t\tx"]] {
            assert_eq!(user(names), None, "{names:?}");
        }
        assert_eq!(access.sign_in("anything", Utc::now()), None);
    }

    #[test]
    fn a_proxy_on_the_same_machine_is_known_by_its_secret() {
        use std::os::unix::fs::PermissionsExt as _;
        let base = "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[console]\n";
        let proxy = "header = \"x-user\", from = [\"127.0.0.0/8\"], operators = [\"bo\"]";
        let without = Config::parse(&format!("{base}proxy = {{ {proxy} }}")).unwrap_err().to_string();
        assert!(without.contains("console.proxy.secret: is missing"), "{without}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let secret = "0123456789abcdef01234567";
        std::fs::write(&file, format!("{secret}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let settings =
            settings(&format!("proxy = {{ {proxy}, secret = {{ header = \"X-Proxy\", file = {file:?} }} }}"));
        let listen = "127.0.0.1:7420".parse().unwrap();
        let (access, _) = Access::open(&settings, "main", listen, "root").unwrap();
        let is_known = |secrets: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.append("x-user", HeaderValue::from_static("bo"));
            for secret in secrets {
                headers.append("x-proxy", secret.parse().unwrap());
            }
            access.authenticate(&headers, Utc::now()).is_some()
        };
        assert!(is_known(&[secret]));
        for others in [&[][..], &[""], &[&secret[1..]], &[secret, secret]] {
            assert!(!is_known(others), "{others:?}");
        }
        std::fs::write(&file, "short").unwrap();
        let short = Access::open(&settings, "main", listen, "root").err().unwrap().to_string();
        assert!(short.contains("less than 24 bytes"), "{short}");
    }
}
