//! A file of the trail: the rows of a search, up to a hundred thousand, streamed while they are read.

use std::time::{Duration, Instant};

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::super::ask::{PageReply, PageRequest, PageResult, build_limit_reply, stream_parts};
use super::super::error::PageError;
use super::super::stream_limiter::StreamPermit;
use super::keys::parse_search;
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::AuditRow;

/// Maximum number of rows of a file.
const MAX_ROWS: usize = 100_000;
/// Rows per query; the first is smaller, so that the file begins at once.
const QUERY_ROWS: usize = 1_000;
const FIRST_QUERY_ROWS: usize = 50;
/// Time limit of one query, and of the whole file.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Format of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExportFormat {
    Csv,
    NdJson,
}

/// Responds to `/keys/export.csv`: comma-separated values.
///
/// # Errors
/// If the search is invalid, or its first query fails.
pub(super) async fn export_csv(request: PageRequest) -> PageResult {
    export(request, ExportFormat::Csv).await
}

/// Responds to `/keys/export.ndjson`: one JSON object per line.
///
/// # Errors
/// If the search is invalid, or its first query fails.
pub(super) async fn export_ndjson(request: PageRequest) -> PageResult {
    export(request, ExportFormat::NdJson).await
}

/// Progress of a file.
struct ExportStream {
    request: PageRequest,
    format: ExportFormat,
    query: Option<TrailQuery>,
    rows: usize,
    started_at: Instant,
    /// One file per user at a time.
    _permit: StreamPermit,
}

/// Streams the rows of the requested search as a file; an error of the first query is a page instead.
async fn export(request: PageRequest, format: ExportFormat) -> PageResult {
    let Some(permit) = request.app.exports.take(&request.viewer.session.user.name) else {
        return Ok(build_limit_reply(
            "One file at a time for each user, and ten for all: wait until the last one is complete.",
        ));
    };
    let pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    pooled.give_back();
    let search = parse_search(&request, now, QUERY_ROWS)?;
    let mut state = ExportStream {
        request,
        format,
        query: Some(search.query),
        rows: 0,
        started_at: Instant::now(),
        _permit: permit,
    };
    // An early error is a page instead of a file.
    let first = state.next_lines().await?;
    let head = if format == ExportFormat::Csv { CSV_HEAD } else { "" };
    let body = stream_parts(|sender| async move {
        let mut part = Ok(Some(format!("{head}{}", first.unwrap_or_default())));
        loop {
            let (chunk, is_last) = match part {
                Ok(Some(part)) => (Ok(Bytes::from(part)), false),
                Ok(None) => return,
                // The file breaks off, so that the client sees the error.
                Err(error) => (Err(std::io::Error::other(format!("{error:?}"))), true),
            };
            if sender.send(chunk).await.is_err() || is_last {
                return;
            }
            // FILE_TIMEOUT limits all parts together, and each of them.
            part = match tokio::time::timeout(FILE_TIMEOUT, state.next_lines()).await {
                Ok(part) => part,
                Err(_) => Err(PageError::Away(format!("no answer within {FILE_TIMEOUT:?}"))),
            };
        }
    });
    let mut response = Response::new(body);
    let (mime, name) = match format {
        ExportFormat::Csv => ("text/csv; charset=utf-8", "attachment; filename=\"oncely-trail.csv\""),
        ExportFormat::NdJson => ("application/x-ndjson", "attachment; filename=\"oncely-trail.ndjson\""),
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(mime));
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    Ok(PageReply::Other(response))
}

impl ExportStream {
    /// Returns the next lines; `None` after the last row, or at the limit of rows or of time.
    async fn next_lines(&mut self) -> Result<Option<String>, PageError> {
        while let Some(query) = self.query.take() {
            if self.rows >= MAX_ROWS || self.started_at.elapsed() > FILE_TIMEOUT {
                return Ok(None);
            }
            let rows = if self.rows == 0 { FIRST_QUERY_ROWS } else { QUERY_ROWS };
            let query = TrailQuery { limit: rows.min(MAX_ROWS - self.rows), ..query };
            // All files share one session, since pages have priority.
            let _guard = self.request.app.export_lock.lock().await;
            let mut pooled = self.request.app.pool.acquire().await?;
            let now = pooled.session.clock.now();
            let trail_page =
                search_trail(&mut pooled.session.connection, now, &query, Some(QUERY_TIMEOUT)).await?;
            pooled.give_back();
            self.rows += trail_page.rows.len();
            self.query = match (&trail_page.down_to, trail_page.rows.last()) {
                (None, Some((position, _))) => Some(TrailQuery { after: Some(position.clone()), ..query }),
                (Some(at), _) if !trail_page.is_complete(&query) => {
                    Some(TrailQuery { until: *at, after: None, ..query })
                }
                _ => None,
            };
            if !trail_page.rows.is_empty() {
                return Ok(Some(trail_page.rows.iter().map(|(_, row)| self.format_row(row)).collect()));
            }
        }
        Ok(None)
    }

    /// Formats a row with its line break.
    fn format_row(&self, row: &AuditRow) -> String {
        match self.format {
            ExportFormat::NdJson => format!("{}\n", serde_json::to_string(row).unwrap_or_default()),
            ExportFormat::Csv => format_csv_row(row),
        }
    }
}

const CSV_HEAD: &str = "occurred_at,outcome,tenant,consumer,key,reason,attempt,duration_us,error_code,detail,queue,worker,login,trace_id\r\n";

/// Formats a row as comma-separated values.
fn format_csv_row(row: &AuditRow) -> String {
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
    cells.iter().map(|text| format_cell(text)).collect::<Vec<_>>().join(",") + "\r\n"
}

/// Characters that begin a formula in a spreadsheet, or hide such a character.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// Formats a cell as in RFC 4180, always quoted, since a spreadsheet may use another separator than the comma. A possible formula gets an
/// apostrophe in front: a key must not be evaluated.
fn format_cell(text: &str) -> String {
    let guard = if text.starts_with(FORMULA) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_cell_and_no_formula() {
        assert_eq!(format_cell("order-1"), "\"order-1\"");
        assert_eq!(format_cell("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(
            format_cell("a;=cmd|' /C calc'!A0"),
            "\"a;=cmd|' /C calc'!A0\"",
            "a list may be separated by ;"
        );
        for formula in ["=1+1", "@x", "-1", "+1", "\t=1", "\r=1", "\n=1", "＝1+1", "＋1", "－1", "＠x"] {
            assert_eq!(format_cell(formula), format!("\"'{formula}\""));
        }
    }
}
