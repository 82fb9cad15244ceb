//! Checks before any page: whether the request may be answered, and who its user is.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use chrono::Utc;
use maud::html;

use super::access::{ConsoleRole, LoginSession, LoginSessions, Offer};
use super::app::App;
use super::ask::{respond, see_other};
use super::assets;
use super::connection_slots::ConnectionSlot;
use super::html::PageLink;
use super::page::{Nav, Page, PageViewer, document, redirect_page, sign_in, sign_in_page};
use super::parameters::Parameters;

/// Maximum size of a form in bytes, and the time limit to receive it.
const FORM: usize = 64 << 10;
const FORM_TIME: Duration = Duration::from_secs(10);

/// An answer to a refused request, or a request that may proceed.
pub(super) enum GuardDecision {
    Answer(Response),
    Pass(Request),
}

/// A request before its page.
struct GuardedRequest<'a> {
    app: &'a App,
    headers: HeaderMap,
    /// Below the base.
    path: String,
    query: Option<String>,
}

/// Checks a request: Host, Origin, session, the form's token, the role.
pub(super) async fn check(
    app: &App,
    peer: IpAddr,
    slot: &ConnectionSlot,
    mut request: Request,
) -> GuardDecision {
    let headers = request.headers().clone();
    let query = request.uri().query().map(str::to_owned);
    let mut coming = GuardedRequest { app, headers, path: String::new(), query };
    if !app.access.answers(peer) {
        return coming.refuse(StatusCode::FORBIDDEN, "Only requests of the proxy in front are accepted.");
    }
    if let Some(refused) = coming.strangers(request.uri()) {
        return refused;
    }
    match request.uri().path().strip_prefix(&app.access.site().base) {
        Some("") => return GuardDecision::Answer(see_other(&coming.link("/"))),
        Some(path) if is_own(path) => coming.path = path.to_owned(),
        _ => return coming.refuse(StatusCode::NOT_FOUND, "There is no such page."),
    }
    let is_post = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::POST => true,
        _ => {
            return coming.refuse(StatusCode::METHOD_NOT_ALLOWED, "Only GET, HEAD and POST are allowed.");
        }
    };
    if !is_post && let Some(file) = coming.path.strip_prefix("/assets/") {
        return GuardDecision::Answer(assets::serve(file));
    }
    let form = if is_post {
        if let Some(refused) = coming.foreign_form() {
            return refused;
        }
        match coming.form(std::mem::take(request.body_mut())).await {
            Ok(form) => Some(form),
            Err(refused) => return refused,
        }
    } else {
        None
    };
    if coming.path == "/login" {
        return coming.login(form.as_ref());
    }
    let Some(session) = app.access.session(&coming.headers, Utc::now()) else { return coming.sign_in() };
    if !slot.assign_to(&session.user.name) {
        let said = "You have forty connections to this console: close some of its pages.";
        return coming.refuse(StatusCode::TOO_MANY_REQUESTS, said);
    }
    if let Some(refused) = form.as_ref().and_then(|form| coming.act(form, &session)) {
        return refused;
    }
    let here = coming.here();
    let parameters =
        form.unwrap_or_else(|| Parameters::parse(coming.query.as_deref().unwrap_or_default().as_bytes()));
    if let Ok(uri) = Uri::builder().path_and_query(coming.path.as_str()).build() {
        *request.uri_mut() = uri;
    }
    request.extensions_mut().insert(PageViewer { session, here });
    request.extensions_mut().insert(parameters);
    GuardDecision::Pass(request)
}

impl GuardedRequest<'_> {
    /// Refuses a form of another session or of a user who may not act; signs out.
    fn act(&self, form: &Parameters, session: &LoginSession) -> Option<GuardDecision> {
        if !form.get("csrf").is_some_and(|token| LoginSessions::is_from(session, token)) {
            let text = "This form is from an earlier session. Go back, reload the page, and send it again.";
            return Some(self.refuse(StatusCode::FORBIDDEN, text));
        }
        if self.path == "/logout" {
            return Some(self.logout(session));
        }
        let may_act = session.user.role >= ConsoleRole::Operator;
        let text = "You may only read: this action needs the role operator.";
        (!may_act).then(|| self.refuse(StatusCode::FORBIDDEN, text))
    }

    /// Refuses requests for another host name, or from another site's page.
    fn strangers(&self, uri: &Uri) -> Option<GuardDecision> {
        let site = self.app.access.site();
        let mut hosts = self.headers.get_all(header::HOST).iter();
        let host = match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
            (Some(Ok(host)), None) => host,
            _ => return Some(self.refuse(StatusCode::BAD_REQUEST, "A request needs one Host.")),
        };
        let is_own =
            site.is_host(host) && uri.authority().is_none_or(|authority| site.is_host(authority.as_str()));
        if !is_own {
            let said = format!("This console answers only under {}.", site.address());
            return Some(self.refuse(StatusCode::MISDIRECTED_REQUEST, &said));
        }
        let mut origins = self.headers.get_all(header::ORIGIN).iter();
        let is_foreign = origins.any(|origin| !origin.to_str().is_ok_and(|origin| site.is_origin(origin)));
        is_foreign.then(|| self.refuse(StatusCode::FORBIDDEN, "The request came from another site."))
    }

    /// Refuses a form from another site: browsers send its origin with each form, so one without an origin is not from our pages.
    fn foreign_form(&self) -> Option<GuardDecision> {
        let site = self.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_ours = match site {
            Some(site) => site == b"same-origin",
            None => self.headers.contains_key(header::ORIGIN),
        };
        (!is_ours).then(|| self.refuse(StatusCode::FORBIDDEN, "The form was not sent by this console."))
    }

    async fn form(&self, body: Body) -> Result<Parameters, GuardDecision> {
        let kind =
            self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/x-www-form-urlencoded") {
            return Err(self.refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Forms must be application/x-www-form-urlencoded.",
            ));
        }
        match tokio::time::timeout(FORM_TIME, to_bytes(body, FORM)).await {
            Ok(Ok(bytes)) => Ok(Parameters::parse(&bytes)),
            Ok(Err(_)) => Err(self.refuse(StatusCode::PAYLOAD_TOO_LARGE, "The form is too large.")),
            Err(_) => Err(self.refuse(StatusCode::REQUEST_TIMEOUT, "The form did not arrive.")),
        }
    }

    fn login(&self, form: Option<&Parameters>) -> GuardDecision {
        let access = &self.app.access;
        let now = Utc::now();
        let Some(form) = form else {
            let query = Parameters::parse(self.query.as_deref().unwrap_or_default().as_bytes());
            let Some(token) = query.get("token") else { return self.sign_in() };
            // Only one-time links may be in a URL; permanent tokens come by a form, so that no browser history contains them.
            return match access.offer() {
                // A mere GET (a preview, an image on another site) does not use up the link: the page's form does.
                Offer::Link => self.show(&sign_in_page(access.site(), token)),
                Offer::Token | Offer::Proxy => self.sign_in(),
            };
        };
        if form.has("renew") {
            return match access.renew_link() {
                Some(token) => {
                    (self.app.announce)(&access.link(&token));
                    self.ask_to_sign_in(Some("A new link was printed."))
                }
                None => self.ask_to_sign_in(Some("A link was printed a moment ago.")),
            };
        }
        match form.word("token").and_then(|token| access.let_in(token, now)) {
            Some(cookie) => self.sign_in_response(&cookie, self.next(form)),
            None if access.offer() == Offer::Link => {
                self.ask_to_sign_in(Some("This link was used before, or has expired."))
            }
            None => self.ask_to_sign_in(Some("Unknown token.")),
        }
    }

    /// Returns the path that the user wanted, if it is on this site.
    fn next(&self, form: &Parameters) -> PageLink {
        let base = &self.app.access.site().base;
        let within = form.get("next").and_then(|next| next.strip_prefix(base.as_str()));
        let own = within.filter(|next| is_own(next));
        match own.and_then(|next| next.split_once('?').or(Some((next, "")))) {
            Some((path, query)) => {
                let pairs = url::form_urlencoded::parse(query.as_bytes());
                pairs.fold(self.link(path), |link, (name, value)| link.with(&name, value))
            }
            None => self.link("/"),
        }
    }

    /// Sets the cookie on a page that redirects: after a navigation from another site's link, a browser would not send it with a redirect.
    fn sign_in_response(&self, cookie: &str, to: PageLink) -> GuardDecision {
        let text = redirect_page(self.app.access.site(), &to).into_string();
        let mut response = respond(StatusCode::OK, &HeaderMap::new(), text, "");
        if let Ok(cookie) = HeaderValue::from_str(cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        GuardDecision::Answer(response)
    }

    fn logout(&self, session: &LoginSession) -> GuardDecision {
        let cookie = self.app.access.let_out(session, Utc::now());
        let mut response = see_other(&self.link("/login"));
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        GuardDecision::Answer(response)
    }

    /// Answers a request without a session.
    fn sign_in(&self) -> GuardDecision {
        // A link on another site's page: the browser omits the cookie in this one request.
        if self.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site")
            && self.headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
            && self.path != "/login"
        {
            let to = PageLink::new(self.here());
            let text = redirect_page(self.app.access.site(), &to).into_string();
            return GuardDecision::Answer(respond(StatusCode::OK, &HeaderMap::new(), text, ""));
        }
        self.ask_to_sign_in(None)
    }

    fn ask_to_sign_in(&self, said: Option<&str>) -> GuardDecision {
        let access = &self.app.access;
        let here = self.here();
        let next = (self.path != "/login" && self.path != "/logout").then_some(here.as_str());
        self.show(&sign_in(access.site(), access.offer(), said, next))
    }

    fn refuse(&self, status: StatusCode, said: &str) -> GuardDecision {
        self.show(&Page::notice(status, "Refused", html! { p { (said) } }))
    }

    fn show(&self, page: &Page) -> GuardDecision {
        // Reveals nothing about the installation to users who are not signed in.
        let text = document(self.app.access.site(), "", None, &Nav::default(), page).into_string();
        GuardDecision::Answer(respond(page.status, &HeaderMap::new(), text, ""))
    }

    fn link(&self, path: &str) -> PageLink {
        PageLink::new(self.app.access.site().path(path))
    }

    /// Returns path and query as the browser has them.
    fn here(&self) -> String {
        let path = self.app.access.site().path(&self.path);
        match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path,
        }
    }
}

/// Returns whether a browser takes it for a path of this site: two slashes begin another host name, a backslash counts as a slash, and
/// control characters are ignored.
fn is_own(path: &str) -> bool {
    path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(|character: char| character == '\\' || character.is_control())
}

/// Sets the security headers of every answer.
pub(super) fn add_security_headers(response: &mut Response) {
    let fixed = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not stricter: without a referrer, browsers also omit the origin of a form.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sites_address_is_no_path_of_ours() {
        assert!(is_own("/") && is_own("/keys?q=http://x//y") && is_own("/key/a%2Fb"));
        for other in [
            "",
            "keys",
            "//evil.example/x",
            "/\\evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "https://evil.example",
        ] {
            assert!(!is_own(other), "{other:?}");
        }
    }
}
