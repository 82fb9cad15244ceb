//! A file of the trail: what a search finds, up to a hundred thousand rows, as it is read.

use std::time::{Duration, Instant};

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::super::ask::{Answer, Ask, Reply, parts, too_many};
use super::super::error::PageError;
use super::super::turns::Turn;
use super::keys::asked;
use crate::pg::AuditRow;
use crate::trail::{Look, look};

/// Most rows of a file.
const MOST: usize = 100_000;
/// Rows that are read at once; of the first fewer, so that the file begins.
const ROWS: usize = 1_000;
const FIRST: usize = 50;
/// How long is looked for the next of them, and for all.
const MOMENT: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Csv,
    NdJson,
}

/// Comma-separated.
pub(super) async fn csv(ask: Ask) -> Answer {
    export(ask, Kind::Csv).await
}

/// One JSON object a line.
pub(super) async fn ndjson(ask: Ask) -> Answer {
    export(ask, Kind::NdJson).await
}

/// How far a file is.
struct State {
    ask: Ask,
    kind: Kind,
    look: Option<Look>,
    rows: usize,
    began: Instant,
    /// One file a person.
    _turn: Turn,
}

async fn export(ask: Ask, kind: Kind) -> Answer {
    let Some(turn) = ask.app.exports.take(&ask.visitor.session.person.name) else {
        return Ok(too_many(
            "One file at a time for each person, and ten for all: wait until the last one is complete.",
        ));
    };
    let lease = ask.app.pool.lease().await?;
    let now = lease.session.clock.now();
    lease.give_back();
    let wanted = asked(&ask, now, ROWS)?;
    let mut state = State { ask, kind, look: Some(wanted.look), rows: 0, began: Instant::now(), _turn: turn };
    // What goes wrong at once is a page, and no file.
    let first = state.next().await?;
    let head = if kind == Kind::Csv { HEAD } else { "" };
    let body = parts(|sender| async move {
        let mut part = Ok(Some(format!("{head}{}", first.unwrap_or_default())));
        loop {
            let (told, is_last) = match part {
                Ok(Some(part)) => (Ok(Bytes::from(part)), false),
                Ok(None) => return,
                // The file breaks off, and whoever fetches it sees that.
                Err(error) => (Err(std::io::Error::other(format!("{error:?}"))), true),
            };
            if sender.send(told).await.is_err() || is_last {
                return;
            }
            // All parts together have a minute (LONGEST), and each of them so long.
            part = match tokio::time::timeout(LONGEST, state.next()).await {
                Ok(part) => part,
                Err(_) => Err(PageError::Away(format!("no answer within {LONGEST:?}"))),
            };
        }
    });
    let mut response = Response::new(body);
    let (mime, name) = match kind {
        Kind::Csv => ("text/csv; charset=utf-8", "attachment; filename=\"oncely-trail.csv\""),
        Kind::NdJson => ("application/x-ndjson", "attachment; filename=\"oncely-trail.ndjson\""),
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(mime));
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    Ok(Reply::Other(response))
}

impl State {
    /// The next lines; `None` at the end.
    async fn next(&mut self) -> Result<Option<String>, PageError> {
        while let Some(wanted) = self.look.take() {
            if self.rows >= MOST || self.began.elapsed() > LONGEST {
                return Ok(None);
            }
            let rows = if self.rows == 0 { FIRST } else { ROWS };
            let wanted = Look { limit: rows.min(MOST - self.rows), ..wanted };
            // All files together have one of the sessions: pages go first.
            let _alone = self.ask.app.exporting.lock().await;
            let mut lease = self.ask.app.pool.lease().await?;
            let now = lease.session.clock.now();
            let found = look(&mut lease.session.connection, now, &wanted, Some(MOMENT)).await?;
            lease.give_back();
            self.rows += found.rows.len();
            self.look = match (&found.down_to, found.rows.last()) {
                (None, Some((position, _))) => Some(Look { after: Some(position.clone()), ..wanted }),
                (Some(at), _) if !found.is_all(&wanted) => Some(Look { until: *at, after: None, ..wanted }),
                _ => None,
            };
            if !found.rows.is_empty() {
                return Ok(Some(found.rows.iter().map(|(_, row)| self.line(row)).collect()));
            }
        }
        Ok(None)
    }

    fn line(&self, row: &AuditRow) -> String {
        match self.kind {
            Kind::NdJson => format!("{}\n", serde_json::to_string(row).unwrap_or_default()),
            Kind::Csv => comma_separated(row),
        }
    }
}

const HEAD: &str = "occurred_at,outcome,tenant,consumer,key,reason,attempt,duration_us,error_code,detail,queue,worker,login,trace_id\r\n";

fn comma_separated(row: &AuditRow) -> String {
    let own = |text: &Option<String>| text.clone().unwrap_or_default();
    let cells = [
        row.occurred_at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
        row.outcome.clone(),
        row.tenant.clone(),
        row.consumer.clone(),
        row.key.clone(),
        own(&row.reason),
        row.attempt.to_string(),
        row.duration_us.map(|micros| micros.to_string()).unwrap_or_default(),
        own(&row.error_code),
        own(&row.detail),
        row.queue.clone(),
        row.worker.clone(),
        own(&row.login),
        own(&row.trace_id),
    ];
    cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(",") + "\r\n"
}

/// What makes a spreadsheet take a cell for a formula, or hides such a sign from whoever looks for it.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// A cell as RFC 4180 has it, always in quotes: a spreadsheet may take another sign than the comma for its end. What it would take for a
/// formula gets an apostrophe in front: a key must not compute anything there.
fn cell(text: &str) -> String {
    let guard = if text.starts_with(FORMULA) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_cell_and_no_formula() {
        assert_eq!(cell("order-1"), "\"order-1\"");
        assert_eq!(cell("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(cell("a;=cmd|' /C calc'!A0"), "\"a;=cmd|' /C calc'!A0\"", "a list may be separated by ;");
        for formula in ["=1+1", "@x", "-1", "+1", "\t=1", "\r=1", "\n=1", "＝1+1", "＋1", "－1", "＠x"] {
            assert_eq!(cell(formula), format!("\"'{formula}\""));
        }
    }
}
