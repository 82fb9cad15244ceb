//! Checks of a request before its page: whether it is allowed, and who its user is.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use chrono::Utc;
use maud::html;

use super::access::{ConsoleRole, LoginSession, LoginSessions, SignInChoice};
use super::app::App;
use super::ask::{build_document_response, build_redirect_response};
use super::assets;
use super::connection_slots::ConnectionSlot;
use super::html::PageLink;
use super::page::{
    Nav, Page, PageViewer, build_link_sign_in_page, build_redirect_page, build_sign_in_page, document,
};
use super::parameters::Parameters;

/// Maximum size of a form in bytes, and the time limit to receive it.
const MAX_FORM_BYTES: usize = 64 << 10;
const FORM_TIMEOUT: Duration = Duration::from_secs(10);

/// The response to a request, or the request that continues to its page.
pub(super) enum GuardDecision {
    Respond(Response),
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
    let mut guard = GuardedRequest { app, headers, path: String::new(), query };
    if !app.access.is_allowed_peer(peer) {
        return guard.refuse(StatusCode::FORBIDDEN, "Only requests of the proxy in front are accepted.");
    }
    if let Some(decision) = guard.check_origin(request.uri()) {
        return decision;
    }
    match request.uri().path().strip_prefix(&app.access.site().base) {
        Some("") => return GuardDecision::Respond(build_redirect_response(&guard.link("/"))),
        Some(path) if is_own_path(path) => guard.path = path.to_owned(),
        _ => return guard.refuse(StatusCode::NOT_FOUND, "There is no such page."),
    }
    let is_post = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::POST => true,
        _ => {
            return guard.refuse(StatusCode::METHOD_NOT_ALLOWED, "Only GET, HEAD and POST are allowed.");
        }
    };
    if !is_post && let Some(file) = guard.path.strip_prefix("/assets/") {
        return GuardDecision::Respond(assets::build_response(file));
    }
    let form = if is_post {
        if let Some(decision) = guard.check_form_origin() {
            return decision;
        }
        match guard.read_form(std::mem::take(request.body_mut())).await {
            Ok(form) => Some(form),
            Err(decision) => return decision,
        }
    } else {
        None
    };
    if guard.path == "/login" {
        return guard.respond_to_login(form.as_ref());
    }
    let Some(session) = app.access.authenticate(&guard.headers, Utc::now()) else {
        return guard.respond_without_session();
    };
    if !slot.assign_to(&session.user.name) {
        let message = "You have forty connections to this console: close some of its pages.";
        return guard.refuse(StatusCode::TOO_MANY_REQUESTS, message);
    }
    if let Some(decision) = form.as_ref().and_then(|form| guard.check_action(form, &session)) {
        return decision;
    }
    let address = guard.requested_address();
    let parameters =
        form.unwrap_or_else(|| Parameters::parse(guard.query.as_deref().unwrap_or_default().as_bytes()));
    if let Ok(uri) = Uri::builder().path_and_query(guard.path.as_str()).build() {
        *request.uri_mut() = uri;
    }
    request.extensions_mut().insert(PageViewer { session, address });
    request.extensions_mut().insert(parameters);
    GuardDecision::Pass(request)
}

impl GuardedRequest<'_> {
    /// Refuses a form of another session, or of a user who may not act; a sign-out form signs the session out. `None` if the form may act.
    fn check_action(&self, form: &Parameters, session: &LoginSession) -> Option<GuardDecision> {
        if !form.get("csrf").is_some_and(|token| LoginSessions::is_csrf_token(session, token)) {
            let message =
                "This form is from an earlier session. Go back, reload the page, and send it again.";
            return Some(self.refuse(StatusCode::FORBIDDEN, message));
        }
        if self.path == "/logout" {
            return Some(self.respond_to_logout(session));
        }
        let may_act = session.user.role >= ConsoleRole::Operator;
        let message = "You may only read: this action needs the role operator.";
        (!may_act).then(|| self.refuse(StatusCode::FORBIDDEN, message))
    }

    /// Refuses requests for another host name, or from another site's page; `None` for all others.
    fn check_origin(&self, uri: &Uri) -> Option<GuardDecision> {
        let site = self.app.access.site();
        let mut hosts = self.headers.get_all(header::HOST).iter();
        let host = match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
            (Some(Ok(host)), None) => host,
            _ => return Some(self.refuse(StatusCode::BAD_REQUEST, "A request needs one Host.")),
        };
        let is_own =
            site.is_host(host) && uri.authority().is_none_or(|authority| site.is_host(authority.as_str()));
        if !is_own {
            let message = format!("This console answers only under {}.", site.address());
            return Some(self.refuse(StatusCode::MISDIRECTED_REQUEST, &message));
        }
        let mut origins = self.headers.get_all(header::ORIGIN).iter();
        let is_foreign = origins.any(|origin| !origin.to_str().is_ok_and(|origin| site.is_origin(origin)));
        is_foreign.then(|| self.refuse(StatusCode::FORBIDDEN, "The request came from another site."))
    }

    /// Refuses a form from another site; `None` for the console's own. Browsers send its origin with each form, so one without an origin is
    /// not from the console's pages.
    fn check_form_origin(&self) -> Option<GuardDecision> {
        let site = self.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_own = match site {
            Some(site) => site == b"same-origin",
            None => self.headers.contains_key(header::ORIGIN),
        };
        (!is_own).then(|| self.refuse(StatusCode::FORBIDDEN, "The form was not sent by this console."))
    }

    /// Reads a form, within its limits of size and time.
    async fn read_form(&self, body: Body) -> Result<Parameters, GuardDecision> {
        let content_type = self
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|content_type| content_type.to_str().ok())
            .unwrap_or_default();
        if content_type.split(';').next().map(str::trim) != Some("application/x-www-form-urlencoded") {
            return Err(self.refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Forms must be application/x-www-form-urlencoded.",
            ));
        }
        match tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, MAX_FORM_BYTES)).await {
            Ok(Ok(bytes)) => Ok(Parameters::parse(&bytes)),
            Ok(Err(_)) => Err(self.refuse(StatusCode::PAYLOAD_TOO_LARGE, "The form is too large.")),
            Err(_) => Err(self.refuse(StatusCode::REQUEST_TIMEOUT, "The form did not arrive.")),
        }
    }

    /// Responds to a request of the sign-in page, or to its form: a one-time link, a token, or a request for another link.
    fn respond_to_login(&self, form: Option<&Parameters>) -> GuardDecision {
        let access = &self.app.access;
        let now = Utc::now();
        let Some(form) = form else {
            let query = Parameters::parse(self.query.as_deref().unwrap_or_default().as_bytes());
            let Some(token) = query.get("token") else { return self.respond_without_session() };
            // Only one-time links may be in a URL; permanent tokens come by a form, so that no browser history contains them.
            return match access.sign_in_choice() {
                // A mere GET (a preview, an image on another site) does not use up the link: the page's form does.
                SignInChoice::Link => self.respond_with_page(&build_link_sign_in_page(access.site(), token)),
                SignInChoice::Token | SignInChoice::Proxy => self.respond_without_session(),
            };
        };
        if form.has("renew") {
            return match access.renew_link() {
                Some(token) => {
                    (self.app.announce)(&access.sign_in_url(&token));
                    self.respond_with_sign_in(Some("A new link was printed."))
                }
                None => self.respond_with_sign_in(Some("A link was printed a moment ago.")),
            };
        }
        match form.get_trimmed("token").and_then(|token| access.sign_in(token, now)) {
            Some(cookie) => self.respond_signed_in(&cookie, self.next_link(form)),
            None if access.sign_in_choice() == SignInChoice::Link => {
                self.respond_with_sign_in(Some("This link was used before, or has expired."))
            }
            None => self.respond_with_sign_in(Some("Unknown token.")),
        }
    }

    /// Returns the link to the page that was requested before the sign-in, if it is on this site; otherwise to the first page.
    fn next_link(&self, form: &Parameters) -> PageLink {
        let base = &self.app.access.site().base;
        let address = form.get("next").and_then(|next| next.strip_prefix(base.as_str()));
        let next = address.filter(|next| is_own_path(next));
        match next.and_then(|next| next.split_once('?').or(Some((next, "")))) {
            Some((path, query)) => {
                let pairs = url::form_urlencoded::parse(query.as_bytes());
                pairs.fold(self.link(path), |link, (name, value)| link.with(&name, value))
            }
            None => self.link("/"),
        }
    }

    /// Responds to a sign-in: sets the cookie on a page that redirects. After a navigation from another site's link, a browser would not
    /// send it with a redirect.
    fn respond_signed_in(&self, cookie: &str, link: PageLink) -> GuardDecision {
        let text = build_redirect_page(self.app.access.site(), &link).into_string();
        let mut response = build_document_response(StatusCode::OK, &HeaderMap::new(), text, "");
        if let Ok(cookie) = HeaderValue::from_str(cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        GuardDecision::Respond(response)
    }

    /// Signs the session out, deletes its cookie, and redirects to the sign-in page.
    fn respond_to_logout(&self, session: &LoginSession) -> GuardDecision {
        let cookie = self.app.access.sign_out(session, Utc::now());
        let mut response = build_redirect_response(&self.link("/login"));
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        GuardDecision::Respond(response)
    }

    /// Responds to a request without a session: by a page that repeats a navigation from another site, or by the sign-in page.
    fn respond_without_session(&self) -> GuardDecision {
        // A link on another site's page: the browser omits the cookie in this one request.
        if self.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site")
            && self.headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
            && self.path != "/login"
        {
            let link = PageLink::new(self.requested_address());
            let text = build_redirect_page(self.app.access.site(), &link).into_string();
            return GuardDecision::Respond(build_document_response(
                StatusCode::OK,
                &HeaderMap::new(),
                text,
                "",
            ));
        }
        self.respond_with_sign_in(None)
    }

    /// Responds with the sign-in page, which leads to the requested page.
    fn respond_with_sign_in(&self, message: Option<&str>) -> GuardDecision {
        let access = &self.app.access;
        let address = self.requested_address();
        let next = (self.path != "/login" && self.path != "/logout").then_some(address.as_str());
        self.respond_with_page(&build_sign_in_page(access.site(), access.sign_in_choice(), message, next))
    }

    /// Responds with a page that explains the refusal.
    fn refuse(&self, status: StatusCode, message: &str) -> GuardDecision {
        self.respond_with_page(&Page::notice(status, "Refused", html! { p { (message) } }))
    }

    /// Responds with a page in a frame without navigation.
    fn respond_with_page(&self, page: &Page) -> GuardDecision {
        // Reveals nothing about the installation to users who are not signed in.
        let text = document(self.app.access.site(), "", None, &Nav::default(), page).into_string();
        GuardDecision::Respond(build_document_response(page.status, &HeaderMap::new(), text, ""))
    }

    fn link(&self, path: &str) -> PageLink {
        PageLink::new(self.app.access.site().path(path))
    }

    /// Returns the requested path and query as the browser has them.
    fn requested_address(&self) -> String {
        let path = self.app.access.site().path(&self.path);
        match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path,
        }
    }
}

/// Returns whether a browser takes a text for a path of this site: two slashes begin another host name, a backslash counts as a slash, and
/// control characters are ignored.
fn is_own_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(|character: char| character == '\\' || character.is_control())
}

/// Sets the security headers, which every response has.
pub(super) fn add_security_headers(response: &mut Response) {
    let security_headers = [
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
    for (name, value) in security_headers {
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
        assert!(is_own_path("/") && is_own_path("/keys?q=http://x//y") && is_own_path("/key/a%2Fb"));
        for other in [
            "",
            "keys",
            "//evil.example/x",
            "/\\evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "https://evil.example",
        ] {
            assert!(!is_own_path(other), "{other:?}");
        }
    }
}
