//! From a question to an answer: what a page gets, what it gives, and how long it may take.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, body::Body};
use bytes::Bytes;
use futures::stream;
use tokio::sync::mpsc;

use super::app::Shared;
use super::error::PageError;
use super::html::Link;
use super::page::{Nav, Page, Visitor, document};
use super::parameters::Parameters;
use super::pool::beside;
use crate::status::Severity;

/// How long a page may take.
const PAGE: Duration = Duration::from_millis(2_800);
/// How long one that changes something may: what it began is finished beside it.
const ACTION: Duration = Duration::from_secs(10);
/// How long the frame waits for its numbers, and for a sign of life of PostgreSQL.
const MOMENT: Duration = Duration::from_millis(200);

/// Who asks for what.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) app: Shared,
    pub(crate) visitor: Visitor,
    /// Of the query, or of the form.
    pub(crate) parameters: Parameters,
    /// Where a stream that was broken off is to go on.
    pub(crate) last_event: Option<String>,
}

/// What somebody gets.
pub(crate) enum Reply {
    Page(Box<Page>),
    /// It is done: look there.
    SeeOther(Link),
    /// Something else than a page.
    Other(Response),
}

impl From<Page> for Reply {
    fn from(page: Page) -> Self {
        Self::Page(Box::new(page))
    }
}

/// What a page gives.
pub(crate) type Answer = Result<Reply, PageError>;

impl Ask {
    /// A link to a page.
    pub(crate) fn link(&self, path: &str) -> Link {
        Link::new(self.app.access.site().path(path))
    }
}

/// A page to look at.
pub(crate) fn page<F, Fut>(build: F) -> MethodRouter<Shared>
where
    F: Fn(Ask) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    get(
        move |State(app): State<Shared>,
              Extension(visitor): Extension<Visitor>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
            let ask = Ask { app, visitor, parameters, last_event };
            // Beside the request: neither a browser that goes away nor our patience ends a question that PostgreSQL works on.
            let (building, _waited_for) = beside(build(ask.clone()));
            let answer = match tokio::time::timeout(PAGE, building).await {
                Ok(Ok(Ok(answer))) => answer,
                Ok(Err(_)) => Err(PageError::Failed("it broke off".to_owned())),
                Ok(Ok(Err(_))) | Err(_) => Err(too_long(&ask).await),
            };
            finish(&ask, &headers, answer).await
        },
    )
}

/// Something that is done. Who may not act does not come here.
pub(crate) fn action<F, Fut>(build: F) -> MethodRouter<Shared>
where
    F: Fn(Ask) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    post(
        move |State(app): State<Shared>,
              Extension(visitor): Extension<Visitor>,
              Extension(parameters): Extension<Parameters>,
              headers: HeaderMap| async move {
            let ask = Ask { app, visitor, parameters, last_event: None };
            // Beside the request: a browser that goes away does not cut it off in the middle.
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

/// Whose fault it is that a page took too long.
async fn too_long(ask: &Ask) -> PageError {
    match tokio::time::timeout(MOMENT, ask.app.pool.lease()).await {
        Ok(Ok(lease)) => {
            lease.give_back();
            PageError::TooWide
        }
        // All sessions are at work for others, so it answers.
        Err(_) if ask.app.pool.is_busy() => PageError::TooWide,
        Ok(Err(error)) => error.into(),
        Err(_) => PageError::Away(format!("no answer within {PAGE:?}")),
    }
}

async fn finish(ask: &Ask, headers: &HeaderMap, answer: Answer) -> Response {
    let page = match answer {
        Ok(Reply::Page(page)) => *page,
        Ok(Reply::SeeOther(link)) => return see_other(&link),
        Ok(Reply::Other(response)) => return response,
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
    // Of what is put in its place, and not of what stands round it: that may name the time.
    let tag = [format!("{nav:?}"), page.live.into_string(), page.verdict.unwrap_or_default().into_string()]
        .concat();
    respond(page.status, headers, text, &tag)
}

/// What the frame says: as it is now, or as it was last known.
async fn nav(ask: &Ask) -> Nav {
    let view = tokio::time::timeout(MOMENT, ask.app.view()).await.ok().or_else(|| ask.app.watch.latest());
    let Some(view) = view else { return Nav::default() };
    let failed = view.lately.as_ref().map(|lately| lately.open_letters).filter(|count| *count > 0);
    Nav {
        failed: failed.map(super::html::capped),
        paused: view.picture.postgres.as_ref().map_or(0, |database| database.pauses.len()),
        findings: view.findings.iter().filter(|finding| !finding.has_page).count(),
        danger: view.findings.iter().any(|finding| finding.severity == Severity::Danger),
    }
}

/// A document, or that it is the one that is known already: by `tagged`, the part of it that is asked for again and again.
pub(crate) fn respond(status: StatusCode, headers: &HeaderMap, text: String, tagged: &str) -> Response {
    let tag = format!("\"{}\"", &blake3::hash(tagged.as_bytes()).to_hex()[..32]);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if status == StatusCode::OK && known == Some(tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (header::ETAG, tag)];
    (status, kind, text).into_response()
}

/// Leads on after something was done.
pub(crate) fn see_other(link: &Link) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    // A link holds nothing that a header can't: its query is encoded.
    if let Ok(value) = HeaderValue::from_str(&link.to_string()) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// Parts that are made beside the request, one ahead of what is read: whoever stops reading ends it between two parts, and not in the middle
/// of one.
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

/// Somebody has as much of something as they may have.
pub(crate) fn too_many(said: &str) -> Reply {
    Page::notice(StatusCode::TOO_MANY_REQUESTS, "Too many at once", maud::html! { p { (said) } }).into()
}
