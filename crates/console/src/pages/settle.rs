//! A key with an unknown effect, and its settlement by an operator.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult, refused};
use super::super::error::PageError;
use super::super::html::{PageLink, code, text};
use super::super::page::{EquivalentCommands, Page, Tab, csrf};
use super::leases::steps;
use super::rows::key_link;
use oncely_core::shown;
use oncely_postgres::{self as pg, Abilities, KeyDetails, LeaseStep};

/// The refusal of a login without the ability.
const CANNOT: &str = "may settle no key";

/// Returns the link to the page that settles a key.
pub(super) fn settle_link(ask: &PageRequest, key: &KeyDetails) -> PageLink {
    ask.link("/settle").with("tenant", &key.tenant).with("consumer", &key.consumer).with("key", &key.key)
}

/// Returns the named key, if an operator can settle it.
async fn find_key(ask: &PageRequest) -> Result<(Option<KeyDetails>, Abilities), PageError> {
    let [tenant, consumer, key] = ask.named_key()?;
    let mut pooled = ask.app.pool.acquire().await?;
    let now: DateTime<Utc> = pooled.session.clock.now();
    let connection = &mut pooled.session.connection;
    let found = pg::key_details(connection, &key, Some(&tenant), Some(&consumer)).await?.pop();
    let abilities = pooled.facts.clone();
    pooled.give_back();
    Ok((found.filter(|key| key.is_to_settle(now)), abilities))
}

/// Renders the consequences of each answer, and the form.
pub(super) async fn plan(ask: PageRequest) -> PageResult {
    let (key, abilities) = find_key(&ask).await?;
    Ok(match key {
        Some(key) => settle_page(&ask, &key, &abilities, None).into(),
        None => nothing().into(),
    })
}

fn nothing() -> Page {
    let mut page = Page::new(Tab::Keys, "Settle a key");
    page.above = html! {
        p.lead { "There is nothing to settle: it is known whether this key took effect, a run holds it, or it is tried again." }
    };
    page.polls = false;
    page.elsewhere =
        EquivalentCommands { cli: vec!["oncely keys list --status failed".to_owned()], sql: Vec::new() };
    page
}

fn settle_page(ask: &PageRequest, key: &KeyDetails, abilities: &Abilities, said: Option<&str>) -> Page {
    let mut page = Page::new(Tab::Keys, "Settle a key");
    page.is_subject = true;
    page.heading = html! { "Settle " span.quiet { (text(&key.tenant)) " · " (text(&key.consumer)) " · " } (code(&key.key)) };
    page.polls = false;
    page.above = html! {
        @if let Some(said) = said { p.said role="alert" { (said) } }
        p.lead { "Check the other system first: your answer is taken for true." }
        ul.findings {
            li { span.sign.look aria-hidden="true" { "▲" } "It did: nothing of this key runs any more." }
            li { span.sign.look aria-hidden="true" { "▲" } "It did not: the next message or request with this key runs. If it did take effect, it does so again." }
        }
        dl.facts {
            dt { "Key" } dd { a #key href=(key_link(ask, &key.tenant, &key.consumer, &key.key)) { (code(&key.key)) } }
            dt { "Status" } dd { (key.status) @if let Some(reason) = &key.reason { ", " (text(reason)) } }
            @if let Some(known) = &key.steps { dt { "Steps" } dd { (steps(&LeaseStep::of_row(known))) } }
            @if let Some(error) = &key.last_error { dt { "Last error" } dd { (text(error)) } }
        }
        @match (ask.visitor.is_operator(), abilities.settle) {
            (false, _) => p.note { "You may look at this; carrying it out takes the role operator." },
            (true, false) => p.note { (refused(&abilities.login, CANNOT)) },
            (true, true) => (order(ask, key)),
        }
    };
    let flags = shown::shell_flags([("tenant", Some(&*key.tenant)), ("consumer", Some(&*key.consumer))]);
    let command = format!("oncely keys settle {} --took-effect no{flags}", shown::shell_word(&key.key));
    let sql = pg::equivalent_sql::settle_claim(&key.tenant, &key.consumer, &key.key);
    page.elsewhere = EquivalentCommands { cli: vec![command], sql: vec![sql] };
    page
}

/// Returns the version of the key that was shown: another run may have ended since.
fn seen(key: &KeyDetails) -> String {
    format!("{}/{}", key.attempts, key.fencing_token.unwrap_or_default())
}

fn order(ask: &PageRequest, key: &KeyDetails) -> Markup {
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(ask.app.access.site().path("/settle/say")) {
            (csrf(&ask.visitor))
            @for (name, value) in [("tenant", &key.tenant), ("consumer", &key.consumer), ("key", &key.key)] {
                input type="hidden" name=(name) value=(value);
            }
            input type="hidden" name="seen" value=(seen(key));
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

/// Settles the key that was shown.
pub(super) async fn settle(ask: PageRequest) -> PageResult {
    let (key, abilities) = find_key(&ask).await?;
    if !abilities.settle {
        return Err(PageError::Refused(refused(&abilities.login, CANNOT)));
    }
    let Some(key) = key else { return Ok(PageReply::undone(nothing())) };
    let wrong = |said: &str| Ok(PageReply::undone(settle_page(&ask, &key, &abilities, Some(said))));
    let took_effect = match ask.parameters.word("took_effect") {
        Some("yes") => true,
        Some("no") => false,
        _ => return wrong("Nothing was changed: say whether it took effect."),
    };
    let Some(note) = ask.parameters.word("note") else {
        return wrong("State how you know: it is recorded.");
    };
    let actor = ask.visitor.session.user.actor();
    let is_meant = ask.parameters.word("seen") == Some(seen(&key).as_str());
    let mut pooled = ask.app.pool.acquire().await?;
    let connection = &mut pooled.session.connection;
    let done = is_meant && pg::settle_claim(connection, &key, took_effect, &actor, Some(note)).await?;
    pooled.give_back();
    if !done {
        return wrong("Nothing was changed: the key has changed since it was shown. Look at it again.");
    }
    Ok(PageReply::SeeOther(key_link(&ask, &key.tenant, &key.consumer, &key.key)))
}
