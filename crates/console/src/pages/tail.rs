//! Following the trail: new rows are sent over a connection that stays open while the page is viewed.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use chrono::Utc;
use tokio::sync::mpsc;

use super::super::ask::{PageReply, PageRequest, PageResult, parts, too_many};
use super::super::error::PageError;
use super::super::pool::DEAD;
use super::super::search::Search;
use super::super::stream_limiter::StreamPermit;
use super::following::TailPosition;
use super::rows::row;
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::{self as pg, Position, TrailFilter};

/// Interval between queries.
const EVERY: Duration = Duration::from_secs(2);
/// Rows per query: more can't be read.
const ROWS: usize = 200;
/// Margin for decisions made during the query.
const AHEAD: chrono::Duration = chrono::Duration::minutes(1);
/// Lifetime of a connection: browsers reconnect by themselves, and resume after the last row.
const LIFE: Duration = Duration::from_secs(600);

/// A follower of the trail.
struct TailStream {
    ask: PageRequest,
    filter: TrailFilter,
    following: TailPosition,
    began: tokio::time::Instant,
    is_first: bool,
    /// A few for each user.
    _permit: StreamPermit,
}

/// Streams the rows.
pub(super) async fn page(ask: PageRequest) -> PageResult {
    let Some(permit) = ask.app.tails.take(&ask.visitor.session.user.name) else {
        return Ok(too_many(
            "The trail is followed three times by each user, and twenty times by all: close one of the pages that follow it.",
        ));
    };
    let mut pooled = ask.app.pool.acquire().await?;
    // The server's current time, not our estimate, which is ahead by the latency of an answer: a row between the two would never be sent.
    let now = pg::database_time(&mut pooled.session.connection).await?;
    pooled.give_back();
    let question = Search::parse(ask.parameters.get("q").unwrap_or_default()).question(now);
    let filter = question.map_err(PageError::Wrong)?.filter;
    let after = ask.last_event.as_deref().or(ask.parameters.word("after")).and_then(Position::parse);
    let following = TailPosition::begin(now, after);
    let began = tokio::time::Instant::now();
    let mut state = TailStream { ask, filter, following, began, is_first: true, _permit: permit };
    let rows = parts(|sender| async move {
        while let Some(part) = state.next(&sender).await {
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

fn unavailable_error() -> PageError {
    PageError::Away(format!("no answer within {DEAD:?}"))
}

impl TailStream {
    /// Returns the next part; `None` ends the stream.
    async fn next(&mut self, reader: &mpsc::Sender<std::io::Result<Bytes>>) -> Option<String> {
        if std::mem::take(&mut self.is_first) {
            // The browser's delay before it reconnects, in milliseconds.
            return Some("retry: 3000\n\n".to_owned());
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = self.ask.app.stop.cancelled() => return None,
            () = reader.closed() => return None,
        }
        // A tail ends with its session, and if its user's role is revoked.
        if self.began.elapsed() > LIFE
            || !self.ask.app.access.is_still_valid(&self.ask.visitor.session, Utc::now())
        {
            return None;
        }
        match tokio::time::timeout(DEAD, self.next_rows()).await.unwrap_or_else(|_| Err(unavailable_error()))
        {
            Ok(events) if events.is_empty() => Some(": nothing new\n\n".to_owned()),
            Ok(events) => Some(events),
            // PostgreSQL is unreachable or too slow: the browser reconnects.
            Err(_) => None,
        }
    }

    async fn next_rows(&mut self) -> Result<String, PageError> {
        let mut pooled = self.ask.app.pool.acquire().await?;
        let now = pooled.session.clock.now();
        let since = self.following.since(now);
        let wanted =
            TrailQuery { filter: self.filter.clone(), since, until: now + AHEAD, after: None, limit: ROWS };
        let found = search_trail(&mut pooled.session.connection, now, &wanted, None).await?;
        pooled.give_back();
        let mut events = String::new();
        for (position, decision) in self.following.take(now, found.rows.into_iter().rev()) {
            let html = row(&self.ask, &position, &decision).into_string();
            // Rows contain no line breaks: values are escaped.
            events.push_str(&format!(
                "id: {position}\nevent: row\ndata: {}\n\n",
                html.replace(['\n', '\r'], " ")
            ));
        }
        Ok(events)
    }
}
