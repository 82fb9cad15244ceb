//! Dead letters one by one, newest first, by pages.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageRequest, PageResult};
use super::super::html::{ago, code, exact_time, format_number, text, text_or};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::failed::{LetterQuery, filter_form};
use super::rows::key_link;
use oncely_core::shown;
use oncely_postgres::{self as pg, LetterFilter, LetterRow};

/// Rows per page.
const ROWS: usize = 50;
/// States on offer, with their labels.
const STATES: [(&str, &str); 5] = [
    ("open", "waiting"),
    ("requeueing", "half requeued"),
    ("requeued", "requeued"),
    ("discarded", "discarded"),
    ("any", "any"),
];

/// Renders `/failed/letters`: dead letters one by one.
///
/// # Errors
/// If the filter is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let query = LetterQuery::from_request(&request);
    let mut pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let limit = i64::try_from(ROWS).unwrap_or(0) + 1;
    let before = request.parameters.get_trimmed("before").and_then(parse_position);
    let filter = LetterFilter { before, ..query.to_filter(now, limit)? };
    let mut rows = pg::list_letters(&mut pooled.session.connection, &filter).await?;
    let may_change = request.viewer.is_operator() && pooled.facts.change_letters;
    pooled.give_back();
    let has_more = rows.len() > ROWS;
    rows.truncate(ROWS);
    let mut page = Page::new(Tab::Failed, "Dead letters");
    page.heading = html! { "Dead letters" @if let Some(group) = &query.group { " of " (code(group)) } };
    page.above = html! { (filter_form(&request, &query, "/failed/letters")) (state_links(&request, &query)) };
    page.live = html! {
        (table(&request, &rows, now))
        (navigation(&request, &query, &rows, before.is_some(), has_more))
    };
    page.below = html! { @if may_change && !rows.is_empty() && !selects_closed_letters(&query) { (bulk_actions(&request, &query)) } };
    page.is_refreshed = before.is_none();
    page.equivalents = EquivalentCommands {
        cli: vec![format!("oncely failed list{}{}", query.to_flags(), format_state_flag(&query))],
        sql: vec![pg::equivalent_sql::letters(&filter)],
    };
    Ok(page.into())
}

/// Returns whether the filter selects only letters that were requeued or discarded.
fn selects_closed_letters(query: &LetterQuery) -> bool {
    matches!(query.state.as_deref(), Some("requeued" | "discarded"))
}

/// Formats the state as a flag of the command line, unless it is the default.
fn format_state_flag(query: &LetterQuery) -> String {
    match query.state.as_deref() {
        None | Some("open") => String::new(),
        Some(state) => shown::format_shell_flag("state", state),
    }
}

/// Parses a row's position in the list: its time and its id; `None` for any other text.
fn parse_position(text: &str) -> Option<(DateTime<Utc>, Uuid)> {
    let (at, id) = text.split_once('.')?;
    Some((DateTime::from_timestamp_micros(at.parse().ok()?)?, Uuid::try_parse(id).ok()?))
}

fn state_links(request: &PageRequest, query: &LetterQuery) -> Markup {
    let current = query.state.as_deref().unwrap_or("open");
    html! {
        nav.facets aria-label="State" {
            span {
                "State"
                @for (state, name) in STATES {
                    a id=(format!("state-{state}")) href=(LetterQuery { state: Some(state.to_owned()), ..query.clone() }.link(request, "/failed/letters"))
                        aria-current=[(state == current).then_some("true")] { (name) }
                }
            }
            a #groups href=(LetterQuery { group: None, state: None, ..query.clone() }.link(request, "/failed")) { "Groups" }
        }
    }
}

fn table(request: &PageRequest, rows: &[LetterRow], now: DateTime<Utc>) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Dead letters" {
            table.rows #letters {
                caption.unseen { "Dead letters, newest first" }
                thead {
                    tr {
                        th scope="col" { "Time" } th scope="col" { "Letter" } th scope="col" { "Key" } th scope="col" { "Tenant" } th scope="col" { "Consumer" }
                        th scope="col" { "Reason" } th scope="col" { "State" } th.number scope="col" title="How often this very message was dead-lettered" { "Times" }
                        th.wide scope="col" { "Detail" }
                    }
                }
                tbody {
                    @for letter in rows {
                        tr id=(format!("letter-{}", letter.id)) {
                            td { (exact_time(letter.dead_lettered_at)) }
                            th.id scope="row" { a id=(format!("open-{}", letter.id)) href=(request.link("/failed/letter").with("id", letter.id.to_string())) { code { (&letter.id.to_string()[24..]) } } }
                            td.keys {
                                @if letter.key.is_empty() { (text_or("", "unknown")) } @else {
                                    a id=(format!("key-{}", letter.id)) href=(key_link(request, &letter.tenant, &letter.consumer, &letter.key)) { (code(&letter.key)) }
                                }
                            }
                            td.keys { (text_or(&letter.tenant, "unknown")) }
                            td.keys { (text(&letter.consumer)) }
                            td { (text(&letter.reason)) }
                            td {
                                (text(&letter.state))
                                @if letter.generation > 1 { " " span.look { "came back " (letter.generation - 1) " ×" } }
                                @if letter.state != "waiting" { " " span.quiet { (ago(letter.updated_at, now)) } }
                            }
                            td.number { (letter.times) }
                            td.wide { (text(letter.detail.as_deref().unwrap_or_default())) }
                        }
                    }
                    @if rows.is_empty() { tr { td.empty colspan="9" { "No dead letter is like that in this time." } } }
                }
            }
        }
    }
}

fn navigation(
    request: &PageRequest,
    query: &LetterQuery,
    rows: &[LetterRow],
    has_newer: bool,
    has_more: bool,
) -> Markup {
    let link = query.link(request, "/failed/letters");
    html! {
        p.pages {
            @if has_newer { a #newest href=(link) { "Newest" } }
            @if let (true, Some(last)) = (has_more, rows.last()) {
                a #older rel="next" href=(link.with("before", format!("{}.{}", last.dead_lettered_at.timestamp_micros(), last.id))) { "Older" }
            } @else if !rows.is_empty() { span { "That is all: " (format_number(i128::try_from(rows.len()).unwrap_or(0))) " here." } }
        }
    }
}

/// Renders the actions for all letters that match the filter, including those on other pages.
fn bulk_actions(request: &PageRequest, query: &LetterQuery) -> Markup {
    html! {
        p.actionsbar {
            a.button #requeue-all href=(query.link(request, "/failed/plan").with("change", "requeue")) { "Requeue all that match…" }
            a.button #discard-all href=(query.link(request, "/failed/plan").with("change", "discard")) { "Discard all that match…" }
        }
    }
}
