//! Keys that runs hold by leases: holder and duration; and the release of a key from its run.

use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult, refused};
use super::super::error::PageError;
use super::super::html::{ago, code, count, duration, exact_time, text};
use super::super::page::{EquivalentCommands, Page, Tab, csrf};
use super::rows::key_link;
use super::table::anchor;
use oncely_core::shown;
use oncely_postgres::{self as pg, HeldLease, LeaseFilter, LeaseStep};

/// Rows per page.
const ROWS: i64 = 50;
/// The refusal of a login without the ability.
const CANNOT: &str = "may release no key";

/// Returns the filter of the page; the next page begins after its last lease.
fn filter(ask: &PageRequest) -> Result<LeaseFilter, PageError> {
    let after = ask.parameters.word("after").map(serde_json::from_str).transpose();
    Ok(LeaseFilter {
        tenant: ask.parameters.text("tenant"),
        consumer: ask.parameters.text("consumer"),
        key: None,
        is_over: ask.parameters.has("over"),
        after: after.map_err(|_| PageError::Wrong("That is no place in the list.".to_owned()))?,
        limit: ROWS,
    })
}

pub(super) async fn page(ask: PageRequest) -> PageResult {
    let filter = filter(&ask)?;
    let mut pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let held = pg::held_leases(&mut pooled.session.connection, &filter, now).await?;
    pooled.give_back();
    let link = |is_over: bool| {
        let link = ask
            .link("/leases")
            .with_some("tenant", filter.tenant.as_deref())
            .with_some("consumer", filter.consumer.as_deref());
        if is_over { link.with("over", "1") } else { link }
    };
    let next = held.last().filter(|_| i64::try_from(held.len()).is_ok_and(|rows| rows == ROWS));
    let mut page = Page::new(Tab::Keys, "Held by leases");
    page.above = html! {
        p { "Keys of runs with effects outside PostgreSQL. A lease that is over keeps no message waiting: the next copy of the message takes the key over." }
        nav.facets aria-label="Narrow the list" {
            span {
                "Show"
                a #all href=(link(false)) aria-current=[(!filter.is_over).then_some("true")] { "all" }
                a #over href=(link(true)) aria-current=[filter.is_over.then_some("true")] { "those that are over" }
            }
        }
    };
    page.live = html! {
        (table(&ask, &held))
        p.pages {
            @if filter.after.is_some() { a #first href=(link(filter.is_over)) { "From the first" } }
            @if let Some(last) = next {
                @let place = serde_json::json!([last.consumer, last.token, last.tenant, last.key]).to_string();
                a #next rel="next" href=(link(filter.is_over).with("after", place)) { "Next" }
            }
        }
    };
    // Further pages are not refreshed, so that rows don't move while they are read.
    page.polls = filter.after.is_none();
    let named = [("consumer", filter.consumer.as_deref()), ("tenant", filter.tenant.as_deref())];
    let over = if filter.is_over { " --over" } else { "" };
    let command = format!("oncely leases list{}{over}", shown::shell_flags(named));
    page.elsewhere =
        EquivalentCommands { cli: vec![command], sql: vec![pg::equivalent_sql::leases(&filter)] };
    Ok(page.into())
}

fn table(ask: &PageRequest, held: &[HeldLease]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Leases" {
            table.rows #leases {
                caption.unseen { "Keys that runs hold, the oldest first within a consumer" }
                thead {
                    tr {
                        th scope="col" { "Key" } th scope="col" { "Tenant" } th scope="col" { "Consumer" } th scope="col" { "Held since" }
                        th scope="col" { "Lease" } th scope="col" { "Holder" } th.number scope="col" title="Runs that ended without a word" { "Crashes" } th.wide scope="col" { "Steps" }
                    }
                }
                tbody {
                    @for one in held {
                        @let id = anchor(&format!("{}\0{}\0{}", one.tenant, one.consumer, one.key));
                        tr {
                            th.keys scope="row" { a id=(format!("held-{id}")) href=(key_link(ask, &one.tenant, &one.consumer, &one.key)) { (code(&one.key)) } }
                            td.keys { (text(&one.tenant)) }
                            td.keys { (text(&one.consumer)) }
                            td { (exact_time(one.since)) }
                            td { (remaining(one)) }
                            td.keys { (text(&one.owner)) }
                            td.number { (count(one.crash_attempts)) }
                            td.wide {
                                (steps(one.steps.as_deref().unwrap_or_default()))
                                @if ask.visitor.is_operator() { " " a id=(format!("release-{id}")) href=(release_link(ask, &one.tenant, &one.consumer, &one.key)) { "Release…" } }
                            }
                        }
                    }
                    @if held.is_empty() { tr { td.empty colspan="8" { "No run holds a key like that." } } }
                }
            }
        }
    }
}

/// Formats how long a lease lasts, or how long ago it ended.
fn remaining(one: &HeldLease) -> Markup {
    let shown = duration(one.remaining.as_seconds_f64().abs());
    html! { @if one.is_over { span.look { "over for " (shown) } } @else { "ends in " (shown) } }
}

/// Renders steps with their state, without their results.
pub(super) fn steps(steps: &[LeaseStep]) -> Markup {
    html! {
        @for (index, step) in steps.iter().enumerate() {
            @if index > 0 { ", " }
            (text(&step.name)) " " @if step.state == "started" { span.look { (step.state) } } @else { (text(&step.state)) }
            @if step.round > 0 { " (round " (step.round) ")" }
        }
    }
}

/// Returns a link to the page that releases a key.
pub(super) fn release_link(
    ask: &PageRequest,
    tenant: &str,
    consumer: &str,
    key: &str,
) -> super::super::html::PageLink {
    ask.link("/lease").with("tenant", tenant).with("consumer", consumer).with("key", key)
}

/// Returns the named lease; `None` if no run holds the key.
async fn find_lease(ask: &PageRequest) -> Result<(Option<HeldLease>, pg::Abilities), PageError> {
    let [tenant, consumer, key] = ask.named_key()?;
    let filter = LeaseFilter {
        tenant: Some(tenant),
        consumer: Some(consumer),
        key: Some(key),
        limit: 1,
        ..LeaseFilter::default()
    };
    let mut pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let held = pg::held_leases(&mut pooled.session.connection, &filter, now).await?.pop();
    let abilities = pooled.facts.clone();
    pooled.give_back();
    Ok((held, abilities))
}

/// Renders the consequences of a release, and its form.
pub(super) async fn plan(ask: PageRequest) -> PageResult {
    let (held, abilities) = find_lease(&ask).await?;
    Ok(match held {
        Some(held) => release_page(&ask, &held, &abilities, None).into(),
        None => no_holder_page(&ask).into(),
    })
}

fn no_holder_page(ask: &PageRequest) -> Page {
    let mut page = Page::new(Tab::Keys, "Release a key");
    page.above = html! {
        p.lead { "No run holds this key by a lease." }
        p { a #leases href=(ask.link("/leases")) { "What is held" } }
    };
    page.polls = false;
    page.elsewhere = EquivalentCommands {
        cli: vec!["oncely leases list".to_owned()],
        sql: vec![pg::equivalent_sql::leases(&LeaseFilter::default())],
    };
    page
}

fn release_page(ask: &PageRequest, held: &HeldLease, abilities: &pg::Abilities, said: Option<&str>) -> Page {
    let mut page = Page::new(Tab::Keys, "Release a key");
    page.is_subject = true;
    page.heading = html! { "Release " span.quiet { (text(&held.tenant)) " · " (text(&held.consumer)) " · " } (code(&held.key)) };
    page.polls = false;
    page.above = html! {
        @if let Some(said) = said { p.said role="alert" { (said) } }
        p.lead { "Held by " (text(&held.owner)) ", " (remaining(held)) "." }
        ul.findings {
            @for consequence in held.consequences() { li { span.sign.look aria-hidden="true" { "▲" } (text(&consequence)) } }
        }
        dl.facts {
            dt { "Key" } dd { a #key href=(key_link(ask, &held.tenant, &held.consumer, &held.key)) { (code(&held.key)) } }
            dt { "Held since" } dd { (exact_time(held.since)) }
            dt { "Runs that ended without a word" } dd { (held.crash_attempts) }
            @if let Some(known) = held.steps.as_deref().filter(|known| !known.is_empty()) { dt { "Steps" } dd { (steps(known)) } }
        }
        @match (ask.visitor.is_operator(), abilities.release_leases) {
            (false, _) => p.note { "You may look at this; carrying it out takes the role operator." },
            (true, false) => p.note { (refused(&abilities.login, CANNOT)) },
            (true, true) => (order(ask, held)),
        }
    };
    let flags = shown::shell_flags([("tenant", Some(&*held.tenant)), ("consumer", Some(&*held.consumer))]);
    page.elsewhere = EquivalentCommands {
        cli: vec![format!("oncely leases release {}{flags}", shown::shell_word(&held.key))],
        sql: vec![pg::equivalent_sql::revoke_lease(&held.tenant, &held.consumer, &held.key)],
    };
    page
}

fn order(ask: &PageRequest, held: &HeldLease) -> Markup {
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(ask.app.access.site().path("/lease/release")) {
            (csrf(&ask.visitor))
            @for (name, value) in [("tenant", &held.tenant), ("consumer", &held.consumer), ("key", &held.key)] {
                input type="hidden" name=(name) value=(value);
            }
            input type="hidden" name="token" value=(held.token);
            label for="note" { "Why, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            label for="typed" { "Type 1 to confirm" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            button.strong { "Release 1" }
        }
    }
}

/// Releases the key from the run that was shown.
pub(super) async fn release(ask: PageRequest) -> PageResult {
    let (held, abilities) = find_lease(&ask).await?;
    if !abilities.release_leases {
        return Err(PageError::Refused(refused(&abilities.login, CANNOT)));
    }
    let Some(held) = held else { return Ok(PageReply::undone(no_holder_page(&ask))) };
    let wrong = |said: &str| Ok(PageReply::undone(release_page(&ask, &held, &abilities, Some(said))));
    let Some(note) = ask.parameters.word("note") else { return wrong("A reason is required.") };
    if ask.parameters.word("typed") != Some("1") {
        return wrong("Nothing was changed: type 1 to confirm.");
    }
    let actor = ask.visitor.session.user.actor();
    let is_meant = ask.parameters.word("token") == Some(held.token.to_string().as_str());
    let mut pooled = ask.app.pool.acquire().await?;
    let done =
        is_meant && pg::revoke_lease(&mut pooled.session.connection, &held, &actor, Some(note)).await?;
    pooled.give_back();
    if !done {
        return wrong(
            "Nothing was changed: another run holds the key now than the one that was shown. Look at it again.",
        );
    }
    Ok(PageReply::SeeOther(key_link(&ask, &held.tenant, &held.consumer, &held.key)))
}

/// Renders a consumer's leases on its page.
pub(super) fn lease_summary(
    ask: &PageRequest,
    held: Option<&pg::HeldCount>,
    consumer: &str,
    now: chrono::DateTime<chrono::Utc>,
) -> Markup {
    html! {
        @if let Some(held) = held {
            p #held {
                a #held-link href=(ask.link("/leases").with("consumer", consumer)) { (count(held.held)) " held by leases" }
                ", the oldest from " (ago(held.oldest, now))
                @if held.over > 0 {
                    "; " span.look { (count(held.over)) " of them over" } ", and the keys were not taken over. The first ended " (ago(held.first_end, now))
                }
                "."
            }
        }
    }
}
