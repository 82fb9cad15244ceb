//! Following the trail: new rows are sent over a connection that stays open while the page is viewed.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use chrono::Utc;
use tokio::sync::mpsc;

use super::super::ask::{PageReply, PageRequest, PageResult, build_limit_reply, stream_parts};
use super::super::error::PageError;
use super::super::pool::TASK_TIMEOUT;
use super::super::search::Search;
use super::super::stream_limiter::StreamPermit;
use super::following::TailPosition;
use super::rows::row;
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::{self as pg, Position, TrailFilter};

/// Interval between queries.
const QUERY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of rows per query: a reader could not follow more.
const QUERY_ROWS: usize = 200;
/// Margin for decisions made during the query.
const QUERY_MARGIN: chrono::Duration = chrono::Duration::minutes(1);
/// Lifetime of a connection: browsers reconnect by themselves, and resume after the last row.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(600);

/// A follower of the trail.
struct TailStream {
    request: PageRequest,
    filter: TrailFilter,
    position: TailPosition,
    started_at: tokio::time::Instant,
    is_first: bool,
    /// A few for each user.
    _permit: StreamPermit,
}

/// Renders `/keys/tail`: the rows that appear from now on, as a stream of events. It ends with the session or the console.
///
/// # Errors
/// If the search is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let Some(permit) = request.app.tails.take(&request.viewer.session.user.name) else {
        return Ok(build_limit_reply(
            "The trail is followed three times by each user, and twenty times by all: close one of the pages that follow it.",
        ));
    };
    let mut pooled = request.app.pool.acquire().await?;
    // The server's current time, not the console's estimate, which is ahead by the latency of an answer: a row between the two would never
    // be sent.
    let now = pg::read_database_time(&mut pooled.session.connection).await?;
    pooled.give_back();
    let query = Search::parse(request.parameters.get("q").unwrap_or_default()).to_query(now);
    let filter = query.map_err(PageError::Wrong)?.filter;
    let after =
        request.last_event.as_deref().or(request.parameters.get_trimmed("after")).and_then(Position::parse);
    let position = TailPosition::new(now, after);
    let started_at = tokio::time::Instant::now();
    let mut state = TailStream { request, filter, position, started_at, is_first: true, _permit: permit };
    let rows = stream_parts(|sender| async move {
        while let Some(part) = state.next_part(&sender).await {
            if sender.send(Ok(Bytes::from(part))).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(rows);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A buffering proxy would delay the rows.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(PageReply::Other(response))
}

/// Builds the error of a query that PostgreSQL does not answer within [`TASK_TIMEOUT`].
fn build_timeout_error() -> PageError {
    PageError::Away(format!("no answer within {TASK_TIMEOUT:?}"))
}

impl TailStream {
    /// Waits for the next query, and returns its part of the stream; `None` if the stream ends: at its lifetime, with the session or the
    /// console, if the reader has left, or if PostgreSQL does not answer.
    async fn next_part(&mut self, reader: &mpsc::Sender<std::io::Result<Bytes>>) -> Option<String> {
        if std::mem::take(&mut self.is_first) {
            // The browser's delay before it reconnects, in milliseconds.
            return Some("retry: 3000\n\n".to_owned());
        }
        tokio::select! {
            () = tokio::time::sleep(QUERY_INTERVAL) => {}
            () = self.request.app.stop.cancelled() => return None,
            () = reader.closed() => return None,
        }
        // A tail ends with its session, and if its user's role is revoked.
        if self.started_at.elapsed() > CONNECTION_LIFETIME
            || !self.request.app.access.is_still_valid(&self.request.viewer.session, Utc::now())
        {
            return None;
        }
        match tokio::time::timeout(TASK_TIMEOUT, self.query_new_rows())
            .await
            .unwrap_or_else(|_| Err(build_timeout_error()))
        {
            Ok(events) if events.is_empty() => Some(": nothing new\n\n".to_owned()),
            Ok(events) => Some(events),
            // PostgreSQL is unreachable or too slow: the browser reconnects.
            Err(_) => None,
        }
    }

    /// Queries the rows that have appeared since the last call; returns them as events of the stream.
    async fn query_new_rows(&mut self) -> Result<String, PageError> {
        let mut pooled = self.request.app.pool.acquire().await?;
        let now = pooled.session.clock.now();
        let since = self.position.prepare_query(now);
        let query = TrailQuery {
            filter: self.filter.clone(),
            since,
            until: now + QUERY_MARGIN,
            after: None,
            limit: QUERY_ROWS,
        };
        let trail_page = search_trail(&mut pooled.session.connection, now, &query, None).await?;
        pooled.give_back();
        let mut events = String::new();
        for (position, decision) in self.position.take_new(now, trail_page.rows.into_iter().rev()) {
            let html = row(&self.request, &position, &decision).into_string();
            // Rows contain no line breaks: values are escaped.
            events.push_str(&format!(
                "id: {position}\nevent: row\ndata: {}\n\n",
                html.replace(['\n', '\r'], " ")
            ));
        }
        Ok(events)
    }
}
