//! Rows of the trail, for pages and for followers.

use maud::{Markup, html};

use super::super::ask::PageRequest;
use super::super::html::{PageLink, code, exact_time, format_duration, text, text_or};
use super::super::search::Search;
use oncely_postgres::{AuditRow, Position};

/// Returns the link to a key's page.
pub(super) fn key_link(request: &PageRequest, tenant: &str, consumer: &str, key: &str) -> PageLink {
    request.link("/key").with("tenant", tenant).with("consumer", consumer).with("key", key)
}

/// Returns the link to a search.
pub(super) fn search_link(request: &PageRequest, search: &Search) -> PageLink {
    request.link("/keys").with("q", search.to_text())
}

/// Renders an outcome with its sign.
pub(super) fn outcome(outcome: &str) -> Markup {
    let sign = match outcome {
        "completed" => "●",
        "duplicate" => "○",
        "retried" => "↻",
        "refused" => "⊘",
        "dead_lettered" => "✗",
        "observed" => "◌",
        "taken_over" | "fenced" => "⇄",
        _ => "·",
    };
    html! { span class=(format!("outcome {outcome}")) { span aria-hidden="true" { (sign) } " " (outcome) } }
}

/// Renders the head of the table.
pub(super) fn head() -> Markup {
    html! {
        thead {
            tr {
                th scope="col" { "Time" }
                th scope="col" { "Outcome" }
                th scope="col" { "Key" }
                th scope="col" { "Tenant" }
                th scope="col" { "Consumer" }
                th scope="col" { "Reason" }
                th.number scope="col" { "Attempt" }
                th.number scope="col" { "Took" }
                th.wide scope="col" { "Detail" }
            }
        }
    }
}

/// Renders a decision as a row.
#[allow(clippy::cast_precision_loss)] // shown with one decimal
pub(super) fn row(request: &PageRequest, position: &Position, row: &AuditRow) -> Markup {
    let id = format!("row-{}", position.to_string().replace('.', "-"));
    html! {
        tr id=(id) {
            td { (exact_time(row.occurred_at)) }
            td { (outcome(&row.outcome)) }
            th.keys scope="row" {
                @if row.key.is_empty() { (text_or("", "none")) } @else {
                    a id=(format!("{id}-key")) href=(key_link(request, &row.tenant, &row.consumer, &row.key)) { (code(&row.key)) }
                }
            }
            td.keys { (text_or(&row.tenant, "none")) }
            td.keys { (text(&row.consumer)) }
            td { (text(row.reason.as_deref().unwrap_or_default())) }
            td.number { @if row.attempt > 0 { (row.attempt) } }
            td.number { @if let Some(micros) = row.duration_us { (format_duration(micros as f64 / 1_000_000.0)) } }
            td.wide { (text(row.detail.as_deref().unwrap_or_default())) @if let Some(state) = &row.error_code { " " span.quiet { (text(state)) } } }
        }
    }
}

/// Renders a trace id, as a link if a viewer is configured.
pub(super) fn trace_link(request: &PageRequest, trace: &str) -> Markup {
    // From the publisher, thus untrusted: only characters of trace ids go into a URL.
    let is_id = trace.len() <= 64 && trace.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    match request.app.config.console.trace_url.as_deref().filter(|_| is_id) {
        Some(template) => {
            html! { a href=(template.replace("{trace_id}", trace)) rel="noreferrer" { "trace " (text(trace)) } }
        }
        None => html! { "trace " (code(trace)) },
    }
}
