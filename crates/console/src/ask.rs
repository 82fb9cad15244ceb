//! From a request to its response: inputs and results of a page, and its time limits.

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
const PAGE_TIMEOUT: Duration = Duration::from_millis(2_800);
/// Time limit of an action: beyond it, the action is finished in the background.
const ACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait of the frame for its numbers, and for a probe of PostgreSQL.
const FRAME_TIMEOUT: Duration = Duration::from_millis(200);

/// A request with its user.
#[derive(Clone)]
pub(crate) struct PageRequest {
    pub(crate) app: SharedApp,
    pub(crate) viewer: PageViewer,
    /// From the query, or from the form.
    pub(crate) parameters: Parameters,
    /// Position at which an interrupted stream resumes.
    pub(crate) last_event: Option<String>,
}

/// The reply of a page or an action to a request.
pub(crate) enum PageReply {
    Page(Box<Page>),
    /// A redirect to a page, after an action.
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
    /// Creates the reply of an action that did nothing: a page with the status 422.
    pub(crate) fn from_rejected_action(mut page: Page) -> Self {
        page.status = StatusCode::UNPROCESSABLE_ENTITY;
        page.into()
    }
}

/// Describes an action that the console's login may not do. `inability`: continues the login's name, like `may not pause consumers`.
pub(crate) fn describe_refusal(login: &str, inability: &str) -> String {
    format!("The console's login {login} {inability}: that needs the role oncely_operator.")
}

/// Result of a page.
pub(crate) type PageResult = Result<PageReply, PageError>;

impl PageRequest {
    /// Returns a link to a page.
    pub(crate) fn link(&self, path: &str) -> PageLink {
        PageLink::new(self.app.access.site().path(path))
    }

    /// Returns the parameters `tenant`, `consumer` and `key`.
    ///
    /// # Errors
    /// If one of them is missing.
    pub(crate) fn key_parameters(&self) -> Result<[String; 3], PageError> {
        let require = |name: &str| {
            self.parameters
                .get_owned(name)
                .ok_or_else(|| PageError::Wrong("Key, tenant and consumer are required.".to_owned()))
        };
        Ok([require("tenant")?, require("consumer")?, require("key")?])
    }

    /// Takes a session of a login with an ability. `inability`: as in [`describe_refusal`].
    ///
    /// # Errors
    /// If PostgreSQL does not answer, or the login lacks the ability.
    pub(crate) async fn acquire_for(
        &self,
        has_ability: fn(&Abilities) -> bool,
        inability: &str,
    ) -> Result<ConsoleSession, PageError> {
        let pooled = self.app.pool.acquire().await?;
        if has_ability(&pooled.facts) {
            return Ok(pooled);
        }
        let refusal = describe_refusal(&pooled.facts.login, inability);
        pooled.give_back();
        Err(PageError::Refused(refusal))
    }
}

/// Returns the route of a page, which `build` renders within the time limit.
pub(crate) fn page_route<F, Fut>(build: F) -> MethodRouter<SharedApp>
where
    F: Fn(PageRequest) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send + 'static,
{
    get(
        move |State(app): State<SharedApp>,
              Extension(viewer): Extension<PageViewer>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
            let request = PageRequest { app, viewer, parameters, last_event };
            // In the background: neither a closed browser nor the page's time limit ends a query that PostgreSQL works on.
            let (page_task, _guard) = spawn_limited(build(request.clone()));
            let result = match tokio::time::timeout(PAGE_TIMEOUT, page_task).await {
                Ok(Ok(Ok(result))) => result,
                Ok(Err(_)) => Err(PageError::Failed("it broke off".to_owned())),
                Ok(Ok(Err(_))) | Err(_) => Err(find_timeout_cause(&request).await),
            };
            build_response(&request, &headers, result).await
        },
    )
}

/// Returns the route of an action. Requests of users who may not act are refused before.
pub(crate) fn action_route<F, Fut>(build: F) -> MethodRouter<SharedApp>
where
    F: Fn(PageRequest) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send + 'static,
{
    post(
        move |State(app): State<SharedApp>,
              Extension(viewer): Extension<PageViewer>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let request = PageRequest { app, viewer, parameters, last_event: None };
            // In the background: a closed browser does not interrupt it.
            let action_task = tokio::spawn(build(request.clone()));
            let result = match tokio::time::timeout(ACTION_TIMEOUT, action_task).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(PageError::Failed("it broke off; look whether it was done".to_owned())),
                Err(_) => Err(PageError::Away(format!(
                    "no answer within {ACTION_TIMEOUT:?}; look whether it was done"
                ))),
            };
            request.app.watch.invalidate().await;
            build_response(&request, &headers, result).await
        },
    )
}

/// Finds the cause of a page's time-out by a probe: the query takes too long, or PostgreSQL does not answer.
async fn find_timeout_cause(request: &PageRequest) -> PageError {
    match tokio::time::timeout(FRAME_TIMEOUT, request.app.pool.acquire()).await {
        Ok(Ok(pooled)) => {
            pooled.give_back();
            PageError::TooWide
        }
        // All sessions are in use by other requests, so PostgreSQL answers.
        Err(_) if request.app.pool.is_busy() => PageError::TooWide,
        Ok(Err(error)) => error.into(),
        Err(_) => PageError::Away(format!("no answer within {PAGE_TIMEOUT:?}")),
    }
}

/// Builds the response from the result of a page, with navigation and ETag; logs internal errors.
async fn build_response(request: &PageRequest, headers: &HeaderMap, result: PageResult) -> Response {
    let page = match result {
        Ok(PageReply::Page(page)) => *page,
        Ok(PageReply::SeeOther(link)) => return build_redirect_response(&link),
        Ok(PageReply::Other(response)) => return response,
        Err(error) => {
            if let PageError::Failed(why) = &error {
                tracing::error!(page = request.viewer.address.split('?').next(), "{why}");
            }
            error.to_page(&request.app.config.postgres)
        }
    };
    let nav = build_nav(request).await;
    let app = &request.app;
    let text =
        document(app.access.site(), &app.config.cell, Some(&request.viewer), &nav, &page).into_string();
    // Over the replaced part, without its surroundings, which may contain the time.
    let etag_source =
        [format!("{nav:?}"), page.live.into_string(), page.verdict.unwrap_or_default().into_string()]
            .concat();
    build_document_response(page.status, headers, text, &etag_source)
}

/// Builds the content of the frame from the current state, or after a short wait from the last known one.
async fn build_nav(request: &PageRequest) -> Nav {
    let view = tokio::time::timeout(FRAME_TIMEOUT, request.app.query_status())
        .await
        .ok()
        .or_else(|| request.app.watch.latest());
    let Some(view) = view else { return Nav::default() };
    let letters = view.activity.as_ref().map(|activity| activity.open_letters).filter(|count| *count > 0);
    Nav {
        letters: letters.map(super::html::format_capped),
        pauses: view.snapshot.postgres.as_ref().map_or(0, |database| database.overview.pauses.len()),
        findings: view.findings.iter().filter(|finding| !finding.has_page).count(),
        has_danger: view.findings.iter().any(|finding| finding.severity == Severity::Danger),
    }
}

/// Builds the response with a document, or "not modified" if the client has it. `etag_source`: the part of the document that the ETag
/// stands for.
pub(crate) fn build_document_response(
    status: StatusCode,
    headers: &HeaderMap,
    text: String,
    etag_source: &str,
) -> Response {
    let tag = format!("\"{}\"", &blake3::hash(etag_source.as_bytes()).to_hex()[..32]);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if status == StatusCode::OK && known == Some(tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let response_headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (header::ETAG, tag)];
    (status, response_headers, text).into_response()
}

/// Builds the response that redirects after an action.
pub(crate) fn build_redirect_response(link: &PageLink) -> Response {
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
pub(crate) fn stream_parts<F, Fut>(make: F) -> Body
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

/// Builds the reply to a user who has reached a limit.
pub(crate) fn build_limit_reply(message: &str) -> PageReply {
    Page::notice(StatusCode::TOO_MANY_REQUESTS, "Too many at once", maud::html! { p { (message) } }).into()
}
