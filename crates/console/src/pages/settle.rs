//! A key with an unknown effect, and its settlement by an operator.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult, describe_refusal};
use super::super::error::PageError;
use super::super::html::{PageLink, code, text};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::leases::steps;
use super::rows::key_link;
use oncely_core::shown;
use oncely_postgres::{self as pg, Abilities, KeyDetails, LeaseStep};

/// The refusal of a login without the ability.
const NO_ABILITY: &str = "may settle no key";

/// Returns the link to the page that settles a key.
pub(super) fn settle_link(request: &PageRequest, key: &KeyDetails) -> PageLink {
    request.link("/settle").with("tenant", &key.tenant).with("consumer", &key.consumer).with("key", &key.key)
}

/// Queries the key of the request, and the abilities of the login. The key is `None` if it does not exist or can't be settled.
async fn find_key(request: &PageRequest) -> Result<(Option<KeyDetails>, Abilities), PageError> {
    let [tenant, consumer, key] = request.key_parameters()?;
    let mut pooled = request.app.pool.acquire().await?;
    let now: DateTime<Utc> = pooled.session.clock.now();
    let connection = &mut pooled.session.connection;
    let details = pg::read_key_details(connection, &key, Some(&tenant), Some(&consumer)).await?.pop();
    let abilities = pooled.facts.clone();
    pooled.give_back();
    Ok((details.filter(|key| key.is_to_settle(now)), abilities))
}

/// Renders `/settle`: the consequences of each answer, and the form.
///
/// # Errors
/// If a parameter is missing, or PostgreSQL does not answer.
pub(super) async fn settle_form(request: PageRequest) -> PageResult {
    let (key, abilities) = find_key(&request).await?;
    Ok(match key {
        Some(key) => build_settle_page(&request, &key, &abilities, None).into(),
        None => build_no_settlement_page().into(),
    })
}

/// Builds the page for a key that no operator can settle.
fn build_no_settlement_page() -> Page {
    let mut page = Page::new(Tab::Keys, "Settle a key");
    page.above = html! {
        p.lead { "There is nothing to settle: it is known whether this key took effect, a run holds it, or it is tried again." }
    };
    page.is_refreshed = false;
    page.equivalents =
        EquivalentCommands { cli: vec!["oncely keys list --status failed".to_owned()], sql: Vec::new() };
    page
}

/// Builds the page that settles a key: its state, and the form. `message`: the reason why the last attempt changed nothing.
fn build_settle_page(
    request: &PageRequest,
    key: &KeyDetails,
    abilities: &Abilities,
    message: Option<&str>,
) -> Page {
    let mut page = Page::new(Tab::Keys, "Settle a key");
    page.is_subject = true;
    page.heading = html! { "Settle " span.quiet { (text(&key.tenant)) " · " (text(&key.consumer)) " · " } (code(&key.key)) };
    page.is_refreshed = false;
    page.above = html! {
        @if let Some(message) = message { p.said role="alert" { (message) } }
        p.lead { "Check the other system first: your answer is taken for true." }
        ul.findings {
            li { span.sign.look aria-hidden="true" { "▲" } "It did: nothing of this key runs any more." }
            li { span.sign.look aria-hidden="true" { "▲" } "It did not: the next message or request with this key runs. If it did take effect, it does so again." }
        }
        dl.facts {
            dt { "Key" } dd { a #key href=(key_link(request, &key.tenant, &key.consumer, &key.key)) { (code(&key.key)) } }
            dt { "Status" } dd { (key.status) @if let Some(reason) = &key.reason { ", " (text(reason)) } }
            @if let Some(json) = &key.steps { dt { "Steps" } dd { (steps(&LeaseStep::parse_steps(json))) } }
            @if let Some(error) = &key.last_error { dt { "Last error" } dd { (text(error)) } }
        }
        @match (request.viewer.is_operator(), abilities.settle) {
            (false, _) => p.note { "You may look at this; carrying it out takes the role operator." },
            (true, false) => p.note { (describe_refusal(&abilities.login, NO_ABILITY)) },
            (true, true) => (confirm_form(request, key)),
        }
    };
    let flags =
        shown::format_shell_flags([("tenant", Some(&*key.tenant)), ("consumer", Some(&*key.consumer))]);
    let command = format!("oncely keys settle {} --took-effect no{flags}", shown::quote_shell_word(&key.key));
    let sql = pg::equivalent_sql::settle_claim(&key.tenant, &key.consumer, &key.key);
    page.equivalents = EquivalentCommands { cli: vec![command], sql: vec![sql] };
    page
}

/// Returns the version of a key, which changes with each run. The form carries that of the key that was shown.
fn key_version(key: &KeyDetails) -> String {
    format!("{}/{}", key.attempts, key.fencing_token.unwrap_or_default())
}

fn confirm_form(request: &PageRequest, key: &KeyDetails) -> Markup {
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(request.app.access.site().path("/settle/say")) {
            (csrf_field(&request.viewer))
            @for (name, value) in [("tenant", &key.tenant), ("consumer", &key.consumer), ("key", &key.key)] {
                input type="hidden" name=(name) value=(value);
            }
            input type="hidden" name="seen" value=(key_version(key));
            label for="took-effect" { "Did it take effect?" }
            select #took-effect name="took_effect" required {
                option value="" { "Say what you have found" }
                option value="yes" { "It did" }
                option value="no" { "It did not" }
            }
            label for="note" { "How you know, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            button.strong { "Settle 1" }
        }
    }
}

/// Settles the key that was shown; if it can't, renders the page with the reason.
pub(super) async fn settle(request: PageRequest) -> PageResult {
    let (key, abilities) = find_key(&request).await?;
    if !abilities.settle {
        return Err(PageError::Refused(describe_refusal(&abilities.login, NO_ABILITY)));
    }
    let Some(key) = key else { return Ok(PageReply::from_rejected_action(build_no_settlement_page())) };
    let reject = |message: &str| {
        Ok(PageReply::from_rejected_action(build_settle_page(&request, &key, &abilities, Some(message))))
    };
    let took_effect = match request.parameters.get_trimmed("took_effect") {
        Some("yes") => true,
        Some("no") => false,
        _ => return reject("Nothing was changed: say whether it took effect."),
    };
    let Some(note) = request.parameters.get_trimmed("note") else {
        return reject("State how you know: it is recorded.");
    };
    let actor = request.viewer.session.user.actor();
    let is_unchanged = request.parameters.get_trimmed("seen") == Some(key_version(&key).as_str());
    let mut pooled = request.app.pool.acquire().await?;
    let connection = &mut pooled.session.connection;
    let is_settled =
        is_unchanged && pg::settle_claim(connection, &key, took_effect, &actor, Some(note)).await?;
    pooled.give_back();
    if !is_settled {
        return reject("Nothing was changed: the key has changed since it was shown. Look at it again.");
    }
    Ok(PageReply::SeeOther(key_link(&request, &key.tenant, &key.consumer, &key.key)))
}
