//! Dead letters one by one, newest first, by pages.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageRequest, PageResult};
use super::super::html::{ago, code, count, exact_time, text, text_or};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::failed::{LetterQuery, form};
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

pub(super) async fn page(ask: PageRequest) -> PageResult {
    let wanted = LetterQuery::from_request(&ask);
    let mut pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let limit = i64::try_from(ROWS).unwrap_or(0) + 1;
    let before = ask.parameters.word("before").and_then(place);
    let filter = LetterFilter { before, ..wanted.filter(now, limit)? };
    let mut rows = pg::letters(&mut pooled.session.connection, &filter).await?;
    let may = ask.visitor.is_operator() && pooled.facts.change_letters;
    pooled.give_back();
    let more = rows.len() > ROWS;
    rows.truncate(ROWS);
    let mut page = Page::new(Tab::Failed, "Dead letters");
    page.heading = html! { "Dead letters" @if let Some(group) = &wanted.group { " of " (code(group)) } };
    page.above = html! { (form(&ask, &wanted, "/failed/letters")) (states(&ask, &wanted)) };
    page.live = html! {
        (table(&ask, &rows, now))
        (navigation(&ask, &wanted, &rows, before.is_some(), more))
    };
    page.below = html! { @if may && !rows.is_empty() && !is_over(&wanted) { (all(&ask, &wanted)) } };
    page.polls = before.is_none();
    page.elsewhere = EquivalentCommands {
        cli: vec![format!("oncely failed list{}{}", wanted.flags(), state_flag(&wanted))],
        sql: vec![pg::equivalent_sql::letters(&filter)],
    };
    Ok(page.into())
}

fn is_over(wanted: &LetterQuery) -> bool {
    matches!(wanted.state.as_deref(), Some("requeued" | "discarded"))
}

fn state_flag(wanted: &LetterQuery) -> String {
    match wanted.state.as_deref() {
        None | Some("open") => String::new(),
        Some(state) => shown::shell_flag("state", state),
    }
}

/// Parses a row's position in the list: its time and its id.
fn place(text: &str) -> Option<(DateTime<Utc>, Uuid)> {
    let (at, id) = text.split_once('.')?;
    Some((DateTime::from_timestamp_micros(at.parse().ok()?)?, Uuid::try_parse(id).ok()?))
}

fn states(ask: &PageRequest, wanted: &LetterQuery) -> Markup {
    let current = wanted.state.as_deref().unwrap_or("open");
    html! {
        nav.facets aria-label="State" {
            span {
                "State"
                @for (state, name) in STATES {
                    a id=(format!("state-{state}")) href=(LetterQuery { state: Some(state.to_owned()), ..wanted.clone() }.link(ask, "/failed/letters"))
                        aria-current=[(state == current).then_some("true")] { (name) }
                }
            }
            a #groups href=(LetterQuery { group: None, state: None, ..wanted.clone() }.link(ask, "/failed")) { "Groups" }
        }
    }
}

fn table(ask: &PageRequest, rows: &[LetterRow], now: DateTime<Utc>) -> Markup {
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
                            th.id scope="row" { a id=(format!("open-{}", letter.id)) href=(ask.link("/failed/letter").with("id", letter.id.to_string())) { code { (&letter.id.to_string()[24..]) } } }
                            td.keys {
                                @if letter.key.is_empty() { (text_or("", "unknown")) } @else {
                                    a id=(format!("key-{}", letter.id)) href=(key_link(ask, &letter.tenant, &letter.consumer, &letter.key)) { (code(&letter.key)) }
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
    ask: &PageRequest,
    wanted: &LetterQuery,
    rows: &[LetterRow],
    is_behind: bool,
    more: bool,
) -> Markup {
    let link = wanted.link(ask, "/failed/letters");
    html! {
        p.pages {
            @if is_behind { a #newest href=(link) { "Newest" } }
            @if let (true, Some(last)) = (more, rows.last()) {
                a #older rel="next" href=(link.with("before", format!("{}.{}", last.dead_lettered_at.timestamp_micros(), last.id))) { "Older" }
            } @else if !rows.is_empty() { span { "That is all: " (count(i128::try_from(rows.len()).unwrap_or(0))) " here." } }
        }
    }
}

/// Renders the actions for all letters that match, beyond this page.
fn all(ask: &PageRequest, wanted: &LetterQuery) -> Markup {
    html! {
        p.actionsbar {
            a.button #requeue-all href=(wanted.link(ask, "/failed/plan").with("change", "requeue")) { "Requeue all that match…" }
            a.button #discard-all href=(wanted.link(ask, "/failed/plan").with("change", "discard")) { "Discard all that match…" }
        }
    }
}
