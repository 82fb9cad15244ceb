//! Following the trail: rows as they come, over one connection that stays open while somebody looks.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use chrono::Utc;
use tokio::sync::mpsc;

use super::super::ask::{Answer, Ask, Reply, parts, too_many};
use super::super::error::PageError;
use super::super::pool::DEAD;
use super::super::search::Search;
use super::super::turns::Turn;
use super::following::Following;
use super::rows::row;
use crate::pg::{self, Position, TrailFilter};
use crate::trail::{Look, look};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(2);
/// Rows of one look: nobody reads more.
const ROWS: usize = 200;
/// What was decided while it is asked.
const AHEAD: chrono::Duration = chrono::Duration::minutes(1);
/// A connection's life: browsers come again by themselves, and go on behind the last row.
const LIFE: Duration = Duration::from_secs(600);

/// Somebody who follows.
struct State {
    ask: Ask,
    filter: TrailFilter,
    following: Following,
    began: tokio::time::Instant,
    is_first: bool,
    /// A few for each person.
    _turn: Turn,
}

/// The stream of rows.
pub(super) async fn page(ask: Ask) -> Answer {
    let Some(turn) = ask.app.tails.take(&ask.visitor.session.person.name) else {
        return Ok(too_many(
            "The trail is followed three times by each person, and twenty times by all: close one of the pages that follow it.",
        ));
    };
    let mut lease = ask.app.pool.lease().await?;
    // The server's own time, and not ours of it, which is ahead by as long as an answer took: a row that comes in between would never be told.
    let now = pg::database_time(&mut lease.session.connection).await?;
    lease.give_back();
    let question = Search::parse(ask.parameters.get("q").unwrap_or_default()).question(now);
    let filter = question.map_err(PageError::Wrong)?.filter;
    let after = ask.last_event.as_deref().or(ask.parameters.word("after")).and_then(Position::parse);
    let following = Following::begin(now, after);
    let began = tokio::time::Instant::now();
    let mut state = State { ask, filter, following, began, is_first: true, _turn: turn };
    let rows = parts(|sender| async move {
        while let Some(part) = state.next(&sender).await {
            if sender.send(Ok(Bytes::from(part))).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(rows);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that gathers what comes would hold it back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(Reply::Other(response))
}

fn away() -> PageError {
    PageError::Away(format!("no answer within {DEAD:?}"))
}

impl State {
    /// What is sent next; `None` ends the stream.
    async fn next(&mut self, reader: &mpsc::Sender<std::io::Result<Bytes>>) -> Option<String> {
        if std::mem::take(&mut self.is_first) {
            // The browser comes again after so many milliseconds.
            return Some("retry: 3000\n\n".to_owned());
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = self.ask.app.stop.cancelled() => return None,
            () = reader.closed() => return None,
        }
        // A tail ends with its session, and with what its person may do.
        if self.began.elapsed() > LIFE || !self.ask.app.access.still(&self.ask.visitor.session, Utc::now()) {
            return None;
        }
        match tokio::time::timeout(DEAD, self.look()).await.unwrap_or_else(|_| Err(away())) {
            Ok(events) if events.is_empty() => Some(": nothing new\n\n".to_owned()),
            Ok(events) => Some(events),
            // PostgreSQL is away, or it takes too long: the browser comes again.
            Err(_) => None,
        }
    }

    async fn look(&mut self) -> Result<String, PageError> {
        let mut lease = self.ask.app.pool.lease().await?;
        let now = lease.session.clock.now();
        let since = self.following.since(now);
        let wanted =
            Look { filter: self.filter.clone(), since, until: now + AHEAD, after: None, limit: ROWS };
        let found = look(&mut lease.session.connection, now, &wanted, None).await?;
        lease.give_back();
        let mut events = String::new();
        for (position, decision) in self.following.take(now, found.rows.into_iter().rev()) {
            let html = row(&self.ask, &position, &decision).into_string();
            // No line break in it: every value is shown without.
            events.push_str(&format!(
                "id: {position}\nevent: row\ndata: {}\n\n",
                html.replace(['\n', '\r'], " ")
            ));
        }
        Ok(events)
    }
}
