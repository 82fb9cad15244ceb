//! A page: its parts, and the frame around them.

use axum::http::StatusCode;
use maud::{DOCTYPE, Markup, html};

use super::access::{ConsoleRole, LoginSession, SignInChoice, Site};
use super::assets::{self, Asset};
use super::html::{PageLink, text};

/// Pages in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Keys,
    Failed,
    Outbox,
    Consumers,
    Doctor,
}

impl Tab {
    const ALL: [Self; 6] =
        [Self::Overview, Self::Keys, Self::Failed, Self::Outbox, Self::Consumers, Self::Doctor];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Keys => "/keys",
            Self::Failed => "/failed",
            Self::Outbox => "/outbox",
            Self::Consumers => "/consumers",
            Self::Doctor => "/doctor",
        }
    }

    /// Returns the tab's label.
    fn as_str(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Keys => "Keys & trail",
            Self::Failed => "Failed",
            Self::Outbox => "Outbox & mirror",
            Self::Consumers => "Consumers",
            Self::Doctor => "Doctor",
        }
    }
}

/// Numbers in the navigation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nav {
    /// Number of waiting dead letters, formatted.
    pub(crate) letters: Option<String>,
    pub(crate) pauses: usize,
    /// Number of findings, and whether one is a danger.
    pub(crate) findings: usize,
    pub(crate) has_danger: bool,
}

/// Equivalents of a page: SQL and commands that show the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct EquivalentCommands {
    pub(crate) sql: Vec<String>,
    pub(crate) cli: Vec<String>,
}

/// The content of a page, without its frame.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) tab: Option<Tab>,
    /// Title of the browser's window.
    pub(crate) title: String,
    pub(crate) heading: Markup,
    /// Whether the heading names the page's subject, instead of the page.
    pub(crate) is_subject: bool,
    /// Summary in one sentence; announced when it changes.
    pub(crate) verdict: Option<Markup>,
    /// Above the live part: forms, which a refresh must not replace.
    pub(crate) above: Markup,
    /// Refreshed every few seconds.
    pub(crate) live: Markup,
    /// Below the live part.
    pub(crate) below: Markup,
    pub(crate) equivalents: EquivalentCommands,
    /// Whether the live part is refreshed.
    pub(crate) is_refreshed: bool,
}

impl Page {
    /// Creates an empty page with this title.
    pub(crate) fn new(tab: Tab, title: &str) -> Self {
        Self {
            status: StatusCode::OK,
            tab: Some(tab),
            title: title.to_owned(),
            heading: html! { (title) },
            is_subject: false,
            verdict: None,
            above: Markup::default(),
            live: Markup::default(),
            below: Markup::default(),
            equivalents: EquivalentCommands::default(),
            is_refreshed: true,
        }
    }

    /// Builds a page with a single message and this status.
    pub(crate) fn notice(status: StatusCode, title: &str, message: Markup) -> Self {
        let page = Self::new(Tab::Overview, title);
        Self { status, tab: None, is_subject: true, above: message, is_refreshed: false, ..page }
    }
}

/// The user of a request, and the requested address.
#[derive(Clone, Debug)]
pub(crate) struct PageViewer {
    pub(crate) session: LoginSession,
    /// Path and query as the browser has them, for refreshes.
    pub(crate) address: String,
}

impl PageViewer {
    pub(crate) fn is_operator(&self) -> bool {
        self.session.user.role == ConsoleRole::Operator
    }
}

/// Renders the hidden field that every form carries.
pub(crate) fn csrf_field(viewer: &PageViewer) -> Markup {
    html! { input type="hidden" name="csrf" value=(viewer.session.csrf); }
}

/// Settings of htmx: no styles and scripts of its own, and "not modified" changes nothing.
const HTMX_SETTINGS: &str = r#"{"includeIndicatorStyles":false,"allowEval":false,"allowScriptTags":false,"historyEnabled":false,"selfRequestsOnly":true,"scrollBehavior":"auto","responseHandling":[{"code":"204","swap":false},{"code":"304","swap":false},{"code":"2..","swap":true},{"code":"...","swap":false,"error":true}]}"#;

/// Renders the whole document.
pub(crate) fn document(
    site: &Site,
    cell: &str,
    viewer: Option<&PageViewer>,
    nav: &Nav,
    page: &Page,
) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(site, cell, &page.title))
            body {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    p.brand { a href=(site.path("/")) { (logo()) span { "oncely" } } span.cell title="Cell" { (text(cell)) } }
                    @if viewer.is_some() { (navigation(site, nav, page.tab)) }
                    @if let Some(viewer) = viewer { (user_menu(site, viewer, page.is_refreshed)) }
                }
                p #stale role="status" hidden {}
                main #main tabindex="-1" {
                    h1.subject[page.is_subject] { (page.heading) }
                    @if let Some(verdict) = &page.verdict { p #verdict aria-live="polite" { (verdict) } }
                    (page.above)
                    @if page.is_refreshed {
                        @if let Some(viewer) = viewer { (live_part(viewer, page)) }
                    } @else {
                        div #live { (page.live) }
                    }
                    (page.below)
                    (equivalent_commands(&page.equivalents))
                }
            }
        }
    }
}

fn head(site: &Site, cell: &str, title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="htmx-config" content=(HTMX_SETTINGS);
            title { (oncely_core::shown::escape_value(title)) " · oncely " (oncely_core::shown::escape_value(cell)) }
            link rel="icon" href=(assets::path(site, Asset::Icon)) type="image/svg+xml";
            link rel="stylesheet" href=(assets::path(site, Asset::Style));
            script defer src=(assets::path(site, Asset::Htmx)) {}
            script defer src=(assets::path(site, Asset::Script)) {}
        }
    }
}

/// Renders the logo: two messages, one effect.
fn logo() -> Markup {
    html! {
        svg.mark viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            circle cx="8" cy="8" r="6.5" {}
            circle.dot cx="8" cy="8" r="2.5" {}
        }
    }
}

fn navigation(site: &Site, nav: &Nav, current: Option<Tab>) -> Markup {
    html! {
        nav #nav aria-label="Pages" {
            ul {
                @for tab in Tab::ALL {
                    li {
                        a id=(format!("tab-{}", tab.as_str().split(' ').next().unwrap_or_default().to_lowercase()))
                            href=(site.path(tab.path())) aria-current=[(current == Some(tab)).then_some("page")] {
                            (tab.as_str())
                            (badge(nav, tab))
                        }
                    }
                }
            }
        }
    }
}

fn badge(nav: &Nav, tab: Tab) -> Markup {
    html! {
        @match tab {
            Tab::Failed => @if let Some(letters) = &nav.letters {
                " " span.badge { (letters) span.unseen { " wait" } }
            },
            Tab::Consumers => @if nav.pauses > 0 {
                " " span.badge { (nav.pauses) span.unseen { " paused" } }
            },
            Tab::Doctor => @if nav.findings > 0 {
                " " span.badge.danger[nav.has_danger] {
                    (nav.findings) @if nav.has_danger { "!" } span.unseen { " findings" }
                }
            },
            Tab::Overview | Tab::Keys | Tab::Outbox => {}
        }
    }
}

fn user_menu(site: &Site, viewer: &PageViewer, is_refreshed: bool) -> Markup {
    let user = &viewer.session.user;
    html! {
        div.who {
            span { (user.role.as_str()) " " b { (text(&user.name)) } }
            button #zone type="button" hidden {}
            @if is_refreshed { button #pause type="button" aria-pressed="false" hidden { "Stop refreshing" } }
            form method="post" action=(site.path("/logout")) { (csrf_field(viewer)) button.plain { "Sign out" } }
        }
    }
}

/// Renders the part of the page that is refreshed.
fn live_part(viewer: &PageViewer, page: &Page) -> Markup {
    let selectors = if page.verdict.is_some() { "#nav,#verdict:innerHTML" } else { "#nav" };
    html! {
        div #live hx-get=(viewer.address) hx-trigger="poll from:body" hx-select="#live" hx-swap="outerHTML" hx-select-oob=(selectors) {
            (page.live)
        }
    }
}

/// Renders the commands and the SQL that show the same.
fn equivalent_commands(equivalents: &EquivalentCommands) -> Markup {
    html! {
        @if !equivalents.cli.is_empty() || !equivalents.sql.is_empty() {
            section.elsewhere aria-labelledby="elsewhere" {
                h2 #elsewhere { "On the command line and in SQL" }
                @for (index, line) in equivalents.cli.iter().enumerate() {
                    div.copy { pre id=(format!("cli-{index}")) tabindex="0" { code { (oncely_core::shown::escape_lines(line)) } } }
                }
                @if !equivalents.sql.is_empty() {
                    details #sql {
                        summary { "SQL for this" }
                        @for (index, statement) in equivalents.sql.iter().enumerate() {
                            div.copy { pre id=(format!("sql-{index}")) tabindex="0" { code { (oncely_core::shown::escape_lines(statement)) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Builds the page of the one-time link: a form that uses it up.
pub(crate) fn build_link_sign_in_page(site: &Site, token: &str) -> Page {
    let body = html! {
        p { "This link signs you in as an operator, once." }
        form method="post" action=(site.path("/login")) {
            input type="hidden" name="token" value=(token);
            button #come-in autofocus { "Sign in" }
        }
    };
    Page::notice(StatusCode::OK, "Sign in", body)
}

/// Builds the sign-in page.
pub(crate) fn build_sign_in_page(
    site: &Site,
    choice: SignInChoice,
    message: Option<&str>,
    next: Option<&str>,
) -> Page {
    let title = "Sign in";
    let body = html! {
        @if let Some(message) = message { p.said role="alert" { (message) } }
        @match choice {
            SignInChoice::Link => {
                p {
                    "Sign in with the link that was printed where this console was started. A link works once, \
                     within ten minutes; printing another one leaves it valid."
                }
                form method="post" action=(site.path("/login")) {
                    input type="hidden" name="renew" value="1";
                    button { "Print another link" }
                }
            },
            SignInChoice::Token => form.stacked method="post" action=(site.path("/login")) {
                @if let Some(next) = next { input type="hidden" name="next" value=(next); }
                label for="token" { "Your token" }
                input #token type="password" name="token" autocomplete="current-password" required autofocus;
                button { "Sign in" }
            },
            SignInChoice::Proxy => p {
                "The proxy in front of this console did not send your name. Ask its operator."
            },
        }
    };
    Page::notice(StatusCode::UNAUTHORIZED, title, body)
}

/// Builds a page that redirects within the site by a new navigation: a same-site cookie is not sent if another site's page led here.
pub(crate) fn build_redirect_page(site: &Site, target: &PageLink) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                meta http-equiv="refresh" content=(format!("0; url={target}"));
                title { "oncely" }
                link rel="icon" href=(assets::path(site, Asset::Icon)) type="image/svg+xml";
                link rel="stylesheet" href=(assets::path(site, Asset::Style));
            }
            body { main #main { h1 { "oncely" } p { a href=(target) { "Go on" } } } }
        }
    }
}
