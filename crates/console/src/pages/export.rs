//! A file of the trail: the rows of a search, up to a hundred thousand, streamed while they are read.

use std::time::{Duration, Instant};

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::super::ask::{PageReply, PageRequest, PageResult, parts, too_many};
use super::super::error::PageError;
use super::super::stream_limiter::StreamPermit;
use super::keys::asked;
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::AuditRow;

/// Maximum number of rows of a file.
const MOST: usize = 100_000;
/// Rows per query; the first is smaller, so that the file begins at once.
const ROWS: usize = 1_000;
const FIRST: usize = 50;
/// Time limit of one query, and of the whole file.
const MOMENT: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// Format of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExportFormat {
    Csv,
    NdJson,
}

/// Exports comma-separated values.
pub(super) async fn csv(ask: PageRequest) -> PageResult {
    export(ask, ExportFormat::Csv).await
}

/// Exports one JSON object per line.
pub(super) async fn ndjson(ask: PageRequest) -> PageResult {
    export(ask, ExportFormat::NdJson).await
}

/// Progress of a file.
struct ExportStream {
    ask: PageRequest,
    kind: ExportFormat,
    look: Option<TrailQuery>,
    rows: usize,
    began: Instant,
    /// One file per user at a time.
    _permit: StreamPermit,
}

async fn export(ask: PageRequest, kind: ExportFormat) -> PageResult {
    let Some(permit) = ask.app.exports.take(&ask.visitor.session.user.name) else {
        return Ok(too_many(
            "One file at a time for each user, and ten for all: wait until the last one is complete.",
        ));
    };
    let pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    pooled.give_back();
    let wanted = asked(&ask, now, ROWS)?;
    let mut state =
        ExportStream { ask, kind, look: Some(wanted.look), rows: 0, began: Instant::now(), _permit: permit };
    // An early error is a page instead of a file.
    let first = state.next().await?;
    let head = if kind == ExportFormat::Csv { HEAD } else { "" };
    let body = parts(|sender| async move {
        let mut part = Ok(Some(format!("{head}{}", first.unwrap_or_default())));
        loop {
            let (told, is_last) = match part {
                Ok(Some(part)) => (Ok(Bytes::from(part)), false),
                Ok(None) => return,
                // The file breaks off, so that the client sees the error.
                Err(error) => (Err(std::io::Error::other(format!("{error:?}"))), true),
            };
            if sender.send(told).await.is_err() || is_last {
                return;
            }
            // LONGEST limits all parts together, and each of them.
            part = match tokio::time::timeout(LONGEST, state.next()).await {
                Ok(part) => part,
                Err(_) => Err(PageError::Away(format!("no answer within {LONGEST:?}"))),
            };
        }
    });
    let mut response = Response::new(body);
    let (mime, name) = match kind {
        ExportFormat::Csv => ("text/csv; charset=utf-8", "attachment; filename=\"oncely-trail.csv\""),
        ExportFormat::NdJson => ("application/x-ndjson", "attachment; filename=\"oncely-trail.ndjson\""),
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(mime));
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    Ok(PageReply::Other(response))
}

impl ExportStream {
    /// Returns the next lines; `None` at the end.
    async fn next(&mut self) -> Result<Option<String>, PageError> {
        while let Some(wanted) = self.look.take() {
            if self.rows >= MOST || self.began.elapsed() > LONGEST {
                return Ok(None);
            }
            let rows = if self.rows == 0 { FIRST } else { ROWS };
            let wanted = TrailQuery { limit: rows.min(MOST - self.rows), ..wanted };
            // All files share one session, since pages have priority.
            let _alone = self.ask.app.exporting.lock().await;
            let mut pooled = self.ask.app.pool.acquire().await?;
            let now = pooled.session.clock.now();
            let found = search_trail(&mut pooled.session.connection, now, &wanted, Some(MOMENT)).await?;
            pooled.give_back();
            self.rows += found.rows.len();
            self.look = match (&found.down_to, found.rows.last()) {
                (None, Some((position, _))) => Some(TrailQuery { after: Some(position.clone()), ..wanted }),
                (Some(at), _) if !found.is_all(&wanted) => {
                    Some(TrailQuery { until: *at, after: None, ..wanted })
                }
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
            ExportFormat::NdJson => format!("{}\n", serde_json::to_string(row).unwrap_or_default()),
            ExportFormat::Csv => comma_separated(row),
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

/// Characters that begin a formula in a spreadsheet, or hide such a character.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// Formats a cell as in RFC 4180, always quoted, since a spreadsheet may use another separator than the comma. A possible formula gets an
/// apostrophe in front: a key must not be evaluated.
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
