//! From a request to its answer: inputs and outputs of a page, and its time limits.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, body::Body};
use bytes::Bytes;
use futures::stream;
use tokio::sync::mpsc;

use super::app::SharedApp;
use super::error::PageError;
use super::html::PageLink;
use super::page::{Nav, Page, PageViewer, document};
use super::parameters::Parameters;
use super::pool::{ConsoleSession, spawn_limited};
use oncely_ops::status::Severity;
use oncely_postgres::Abilities;

/// Time limit of a page.
const PAGE: Duration = Duration::from_millis(2_800);
/// Time limit of an action: beyond it, the action is finished in the background.
const ACTION: Duration = Duration::from_secs(10);
/// Longest wait of the frame for its numbers, and for a probe of PostgreSQL.
const MOMENT: Duration = Duration::from_millis(200);

/// A request with its user.
#[derive(Clone)]
pub(crate) struct PageRequest {
    pub(crate) app: SharedApp,
    pub(crate) visitor: PageViewer,
    /// From the query, or from the form.
    pub(crate) parameters: Parameters,
    /// Position at which an interrupted stream resumes.
    pub(crate) last_event: Option<String>,
}

/// The answer to a request.
pub(crate) enum PageReply {
    Page(Box<Page>),
    /// The action is done: redirect there.
    SeeOther(PageLink),
    /// A response that is not a page.
    Other(Response),
}

impl From<Page> for PageReply {
    fn from(page: Page) -> Self {
        Self::Page(Box::new(page))
    }
}

impl PageReply {
    /// A page that is shown again, since nothing was done.
    pub(crate) fn undone(mut page: Page) -> Self {
        page.status = StatusCode::UNPROCESSABLE_ENTITY;
        page.into()
    }
}

/// Explains an action that the console's login may not do.
pub(crate) fn refused(login: &str, cannot: &str) -> String {
    format!("The console's login {login} {cannot}: that needs the role oncely_operator.")
}

/// Result of a page.
pub(crate) type PageResult = Result<PageReply, PageError>;

impl PageRequest {
    /// Returns a link to a page.
    pub(crate) fn link(&self, path: &str) -> PageLink {
        PageLink::new(self.app.access.site().path(path))
    }

    /// Returns the tenant, the consumer and the key that a page about one key names.
    pub(crate) fn named_key(&self) -> Result<[String; 3], PageError> {
        let of = |name: &str| {
            self.parameters
                .text(name)
                .ok_or_else(|| PageError::Wrong("Key, tenant and consumer are required.".to_owned()))
        };
        Ok([of("tenant")?, of("consumer")?, of("key")?])
    }

    /// Takes a session of a login with an ability; `cannot` is part of the refusal of one without it.
    pub(crate) async fn acquire_for(
        &self,
        has: fn(&Abilities) -> bool,
        cannot: &str,
    ) -> Result<ConsoleSession, PageError> {
        let pooled = self.app.pool.acquire().await?;
        if has(&pooled.facts) {
            return Ok(pooled);
        }
        let refusal = refused(&pooled.facts.login, cannot);
        pooled.give_back();
        Err(PageError::Refused(refusal))
    }
}

/// Routes a page.
pub(crate) fn page<F, Fut>(build: F) -> MethodRouter<SharedApp>
where
    F: Fn(PageRequest) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send + 'static,
{
    get(
        move |State(app): State<SharedApp>,
              Extension(visitor): Extension<PageViewer>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
            let ask = PageRequest { app, visitor, parameters, last_event };
            // In the background: neither a closed browser nor our time limit ends a query that PostgreSQL works on.
            let (building, _waited_for) = spawn_limited(build(ask.clone()));
            let answer = match tokio::time::timeout(PAGE, building).await {
                Ok(Ok(Ok(answer))) => answer,
                Ok(Err(_)) => Err(PageError::Failed("it broke off".to_owned())),
                Ok(Ok(Err(_))) | Err(_) => Err(too_long(&ask).await),
            };
            finish(&ask, &headers, answer).await
        },
    )
}

/// Routes an action. Requests of users who may not act are refused before.
pub(crate) fn action<F, Fut>(build: F) -> MethodRouter<SharedApp>
where
    F: Fn(PageRequest) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send + 'static,
{
    post(
        move |State(app): State<SharedApp>,
              Extension(visitor): Extension<PageViewer>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let ask = PageRequest { app, visitor, parameters, last_event: None };
            // In the background: a closed browser does not interrupt it.
            let doing = tokio::spawn(build(ask.clone()));
            let answer = match tokio::time::timeout(ACTION, doing).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(PageError::Failed("it broke off; look whether it was done".to_owned())),
                Err(_) => {
                    Err(PageError::Away(format!("no answer within {ACTION:?}; look whether it was done")))
                }
            };
            ask.app.watch.forget().await;
            finish(&ask, &headers, answer).await
        },
    )
}

/// Returns the cause of a page's time-out: the query, or PostgreSQL.
async fn too_long(ask: &PageRequest) -> PageError {
    match tokio::time::timeout(MOMENT, ask.app.pool.acquire()).await {
        Ok(Ok(pooled)) => {
            pooled.give_back();
            PageError::TooWide
        }
        // All sessions are in use by others, so PostgreSQL answers.
        Err(_) if ask.app.pool.is_busy() => PageError::TooWide,
        Ok(Err(error)) => error.into(),
        Err(_) => PageError::Away(format!("no answer within {PAGE:?}")),
    }
}

async fn finish(ask: &PageRequest, headers: &HeaderMap, answer: PageResult) -> Response {
    let page = match answer {
        Ok(PageReply::Page(page)) => *page,
        Ok(PageReply::SeeOther(link)) => return see_other(&link),
        Ok(PageReply::Other(response)) => return response,
        Err(error) => {
            if let PageError::Failed(why) = &error {
                tracing::error!(page = ask.visitor.here.split('?').next(), "{why}");
            }
            error.page(&ask.app.config.postgres)
        }
    };
    let nav = nav(ask).await;
    let app = &ask.app;
    let text = document(app.access.site(), &app.config.cell, Some(&ask.visitor), &nav, &page).into_string();
    // Over the replaced part, without its surroundings, which may contain the time.
    let tag = [format!("{nav:?}"), page.live.into_string(), page.verdict.unwrap_or_default().into_string()]
        .concat();
    respond(page.status, headers, text, &tag)
}

/// Returns the content of the frame: current, or the last known.
async fn nav(ask: &PageRequest) -> Nav {
    let view = tokio::time::timeout(MOMENT, ask.app.view()).await.ok().or_else(|| ask.app.watch.latest());
    let Some(view) = view else { return Nav::default() };
    let failed = view.lately.as_ref().map(|lately| lately.open_letters).filter(|count| *count > 0);
    Nav {
        failed: failed.map(super::html::capped),
        paused: view.picture.postgres.as_ref().map_or(0, |database| database.overview.pauses.len()),
        findings: view.findings.iter().filter(|finding| !finding.has_page).count(),
        danger: view.findings.iter().any(|finding| finding.severity == Severity::Danger),
    }
}

/// Returns a document, or "not modified" if the client has it: judged by `tagged`, the part that is requested repeatedly.
pub(crate) fn respond(status: StatusCode, headers: &HeaderMap, text: String, tagged: &str) -> Response {
    let tag = format!("\"{}\"", &blake3::hash(tagged.as_bytes()).to_hex()[..32]);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if status == StatusCode::OK && known == Some(tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (header::ETAG, tag)];
    (status, kind, text).into_response()
}

/// Redirects after an action.
pub(crate) fn see_other(link: &PageLink) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    // A link is always a valid header: its query is encoded.
    if let Ok(value) = HeaderValue::from_str(&link.to_string()) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// Streams parts that are made in the background, one ahead of the reader: a reader that stops ends the stream between two parts, not
/// within one.
pub(crate) fn parts<F, Fut>(make: F) -> Body
where
    F: FnOnce(mpsc::Sender<std::io::Result<Bytes>>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(make(sender));
    Body::from_stream(stream::unfold(receiver, |mut receiver| async move {
        let part = receiver.recv().await?;
        Some((part, receiver))
    }))
}

/// Answers that the user has reached a limit.
pub(crate) fn too_many(said: &str) -> PageReply {
    Page::notice(StatusCode::TOO_MANY_REQUESTS, "Too many at once", maud::html! { p { (said) } }).into()
}
