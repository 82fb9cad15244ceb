//! A dead letter's page: reason, origin, headers, body, and actions.

use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{PageLink, ago, code, exact_time, format_bytes, text, text_or};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::failed::LetterQuery;
use super::reveal::{RevealTarget, record_reveal};
use super::rows::{key_link, trace_link};
use oncely_core::letter::{Letter, describe_omission};
use oncely_core::mask::Visibility;
use oncely_core::reason::Reason;
use oncely_core::units::format_count;
use oncely_postgres::{self as pg, LetterFilter, LetterRow, StoredMessage};

/// Renders `/failed/letter`: one dead letter, named by `id`; its message is masked.
///
/// # Errors
/// If there is no such letter, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    Ok(build_page(&request, Visibility::Outline).await?.into())
}

/// Renders `/failed/reveal`: the page with the unmasked message. It is recorded before.
///
/// # Errors
/// If it can't be recorded, or PostgreSQL does not answer.
pub(super) async fn reveal(request: PageRequest) -> PageResult {
    let mut page = build_page(&request, Visibility::Revealed).await?;
    page.is_refreshed = false;
    Ok(page.into())
}

/// Builds the page of a letter; with the message unmasked, it is recorded first.
async fn build_page(request: &PageRequest, visibility: Visibility) -> Result<Page, PageError> {
    let id = request.parameters.get_trimmed("id").and_then(|id| Uuid::try_parse(id).ok());
    let id = id.ok_or_else(|| PageError::Wrong("The UUID of the dead letter is missing.".to_owned()))?;
    let filter = LetterFilter { ids: Some(vec![id]), limit: 1, ..LetterFilter::default() };
    let mut pooled = request.app.pool.acquire().await?;
    let connection = &mut pooled.session.connection;
    let Some(row) = pg::list_letters(connection, &filter).await?.into_iter().next() else {
        pooled.give_back();
        return Err(PageError::NotFound("There is no such dead letter. One that was requeued or discarded is collected after audit.retention.".to_owned()));
    };
    let generation = u32::try_from(row.generation).unwrap_or(0);
    let letter = (row.tenant.clone(), Letter { id, generation });
    let message = match pooled.facts.read_messages {
        true => pg::read_messages(connection, &[letter]).await?.into_iter().next(),
        false => None,
    };
    let (now, abilities) = (pooled.session.clock.now(), pooled.facts.clone());
    pooled.give_back();
    if visibility == Visibility::Revealed {
        let (tenant, consumer, key) = (&row.tenant, &row.consumer, &row.key);
        record_reveal(request, RevealTarget { kind: "letter", id: Some(id), tenant, consumer, key }).await?;
    }
    let is_operator = request.viewer.is_operator();
    let mut page = Page::new(Tab::Failed, "Dead letter");
    page.is_subject = true;
    page.heading = html! { "Dead letter " (code(&id.to_string())) };
    page.live = html! {
        p.lead { b { (text(&row.reason)) } " " (text(row.detail.as_deref().unwrap_or_default())) }
        @if is_operator && abilities.change_letters { (actions(request, &row)) }
        dl.facts {
            dt { "Key" }
            dd { @if row.key.is_empty() { (text_or("", "unknown")) } @else { a #key href=(key_link(request, &row.tenant, &row.consumer, &row.key)) { (code(&row.key)) } } }
            dt { "Tenant" } dd { (text_or(&row.tenant, "unknown")) }
            dt { "Consumer" } dd { (text(&row.consumer)) }
            dt { "State" }
            dd {
                (text(&row.state)) " since " (exact_time(row.updated_at)) " (" (ago(row.updated_at, now)) ")"
                @if row.generation > 1 { ", came back " (format_count(row.generation - 1, "time")) " after a requeue" }
            }
            dt { "Dead-lettered" } dd { (exact_time(row.dead_lettered_at)) ", attempt " (row.attempt) ", worker " (text(&row.worker)) @if row.times > 1 { ", " (row.times) " times" } }
            @if let Some(state) = &row.error_code { dt { "SQLSTATE" } dd { (code(state)) } }
            dt { "Came from" } dd { "queue " (code(&row.queue)) ", exchange " (code(&row.exchange)) ", routing key " (code(&row.routing_key)) }
            dt { "Failed alike" } dd { a #group href=(group_link(request, &row)) { (code(&row.failure_group)) } }
            @if let Some(trace) = &row.trace_id { dt { "Trace" } dd { (trace_link(request, trace)) } }
            @if let Some(at) = row.swept_at { dt { "Swept" } dd { (exact_time(at)) ": no copy is left in the dead-letter queue" } }
        }
        (contents(request, &row, message.as_ref(), visibility, abilities.read_messages))
    };
    page.below = html! {
        @if visibility == Visibility::Outline && is_operator && abilities.record && abilities.read_messages && message.is_some() {
            form.inline method="post" action=(request.app.access.site().path("/failed/reveal")) {
                (csrf_field(&request.viewer))
                input type="hidden" name="id" value=(id);
                input type="hidden" name="tenant" value=(row.tenant);
                button { "Reveal headers and body" }
                small { "It is recorded that you looked. What the configuration masks stays masked." }
            }
        }
    };
    page.equivalents = EquivalentCommands {
        cli: vec![format!("oncely failed show {id}"), format!("oncely failed show {id} --body")],
        sql: vec![pg::equivalent_sql::letter(id)],
    };
    Ok(page)
}

/// Returns the link to the letters that failed alike.
fn group_link(request: &PageRequest, row: &LetterRow) -> PageLink {
    let query = LetterQuery {
        group: Some(row.failure_group.clone()),
        consumer: Some(row.consumer.clone()),
        since: Some("90d".to_owned()),
        ..LetterQuery::default()
    };
    query.link(request, "/failed/letters")
}

fn actions(request: &PageRequest, row: &LetterRow) -> Markup {
    let plan =
        |change: &str| request.link("/failed/plan").with("change", change).with("id", row.id.to_string());
    html! {
        @if ["waiting", "requeueing"].contains(&row.state.as_str()) {
            p.actionsbar {
                @if row.reason == Reason::KeyConflict.as_str() {
                    span.note { "It can't be requeued: its key came before with another payload, so it would be refused again. Publish it under a key of its own." }
                } @else {
                    a.button #requeue href=(plan("requeue")) { "Requeue…" }
                }
                a.button #discard href=(plan("discard")) { "Discard…" }
            }
        }
    }
}

fn contents(
    request: &PageRequest,
    row: &LetterRow,
    message: Option<&StoredMessage>,
    visibility: Visibility,
    may_read: bool,
) -> Markup {
    let masks = &request.app.masks;
    html! {
        @if !may_read {
            p.note { "The console's login may not read messages: that takes the role oncely_operator." }
        }
        @if let Some(message) = message {
            @if let Some(properties) = &message.properties {
                h2 #properties { "Properties" }
                pre.message tabindex="0" { (masks.mask_text(properties, Visibility::Revealed)) }
            }
            @if let Some(headers) = &message.headers {
                h2 #headers { "Headers" }
                pre.message tabindex="0" { (masks.mask_text(headers, visibility)) }
            }
            h2 #body { "Body, " (format_bytes(row.body_size)) }
            @match message.body(request.app.config.cipher()) {
                Ok(Some(body)) => pre.message tabindex="0" { (masks.mask_body(&body, visibility)) },
                Ok(None) => p.note { "It is not stored: " (describe_omission(row.omitted.as_deref())) "." },
                Err(error) => p.note { "It is " (error.to_string()) "." },
            }
        }
    }
}
