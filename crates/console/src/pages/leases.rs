//! Keys that runs hold by leases: holder and duration; and the release of a key from its run.

use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult, describe_refusal};
use super::super::error::PageError;
use super::super::html::{PageLink, ago, code, exact_time, format_duration, format_number, text};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::rows::key_link;
use super::table::anchor;
use oncely_core::shown;
use oncely_postgres::{self as pg, HeldLease, LeaseFilter, LeaseStep};

/// Rows per page.
const ROWS: i64 = 50;
/// The refusal of a login without the ability.
const NO_ABILITY: &str = "may release no key";

/// Parses the filter of the page; the next page begins after its last lease.
fn parse_filter(request: &PageRequest) -> Result<LeaseFilter, PageError> {
    let after = request.parameters.get_trimmed("after").map(serde_json::from_str).transpose();
    Ok(LeaseFilter {
        tenant: request.parameters.get_owned("tenant"),
        consumer: request.parameters.get_owned("consumer"),
        key: None,
        is_over: request.parameters.has("over"),
        after: after.map_err(|_| PageError::Wrong("That is no place in the list.".to_owned()))?,
        limit: ROWS,
    })
}

/// Renders `/leases`: the keys that runs hold.
///
/// # Errors
/// If the position of the page is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let filter = parse_filter(&request)?;
    let mut pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let leases = pg::list_held_leases(&mut pooled.session.connection, &filter, now).await?;
    pooled.give_back();
    let link = |is_over: bool| {
        let link = request
            .link("/leases")
            .with_some("tenant", filter.tenant.as_deref())
            .with_some("consumer", filter.consumer.as_deref());
        if is_over { link.with("over", "1") } else { link }
    };
    let next = leases.last().filter(|_| i64::try_from(leases.len()).is_ok_and(|rows| rows == ROWS));
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
        (table(&request, &leases))
        p.pages {
            @if filter.after.is_some() { a #first href=(link(filter.is_over)) { "From the first" } }
            @if let Some(last) = next {
                @let position = serde_json::json!([last.consumer, last.token, last.tenant, last.key]).to_string();
                a #next rel="next" href=(link(filter.is_over).with("after", position)) { "Next" }
            }
        }
    };
    // Further pages are not refreshed, so that rows don't move while they are read.
    page.is_refreshed = filter.after.is_none();
    let filters = [("consumer", filter.consumer.as_deref()), ("tenant", filter.tenant.as_deref())];
    let over = if filter.is_over { " --over" } else { "" };
    let command = format!("oncely leases list{}{over}", shown::format_shell_flags(filters));
    page.equivalents =
        EquivalentCommands { cli: vec![command], sql: vec![pg::equivalent_sql::leases(&filter)] };
    Ok(page.into())
}

fn table(request: &PageRequest, leases: &[HeldLease]) -> Markup {
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
                    @for lease in leases {
                        @let id = anchor(&format!("{}\0{}\0{}", lease.tenant, lease.consumer, lease.key));
                        tr {
                            th.keys scope="row" { a id=(format!("held-{id}")) href=(key_link(request, &lease.tenant, &lease.consumer, &lease.key)) { (code(&lease.key)) } }
                            td.keys { (text(&lease.tenant)) }
                            td.keys { (text(&lease.consumer)) }
                            td { (exact_time(lease.since)) }
                            td { (remaining_time(lease)) }
                            td.keys { (text(&lease.owner)) }
                            td.number { (format_number(lease.crash_attempts)) }
                            td.wide {
                                (steps(lease.steps.as_deref().unwrap_or_default()))
                                @if request.viewer.is_operator() { " " a id=(format!("release-{id}")) href=(release_link(request, &lease.tenant, &lease.consumer, &lease.key)) { "Release…" } }
                            }
                        }
                    }
                    @if leases.is_empty() { tr { td.empty colspan="8" { "No run holds a key like that." } } }
                }
            }
        }
    }
}

/// Renders the time until a lease ends, or since its end.
fn remaining_time(lease: &HeldLease) -> Markup {
    let shown = format_duration(lease.remaining.as_seconds_f64().abs());
    html! { @if lease.is_over { span.look { "over for " (shown) } } @else { "ends in " (shown) } }
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

/// Returns a link to the form that releases a key.
pub(super) fn release_link(request: &PageRequest, tenant: &str, consumer: &str, key: &str) -> PageLink {
    request.link("/lease").with("tenant", tenant).with("consumer", consumer).with("key", key)
}

/// Queries the lease of the request's key, which is `None` if no run holds the key, and the abilities of the login.
async fn find_lease(request: &PageRequest) -> Result<(Option<HeldLease>, pg::Abilities), PageError> {
    let [tenant, consumer, key] = request.key_parameters()?;
    let filter = LeaseFilter {
        tenant: Some(tenant),
        consumer: Some(consumer),
        key: Some(key),
        limit: 1,
        ..LeaseFilter::default()
    };
    let mut pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let lease = pg::list_held_leases(&mut pooled.session.connection, &filter, now).await?.pop();
    let abilities = pooled.facts.clone();
    pooled.give_back();
    Ok((lease, abilities))
}

/// Renders `/lease`: the consequences of a release, and the form that confirms it.
///
/// # Errors
/// If a parameter is missing, or PostgreSQL does not answer.
pub(super) async fn release_form(request: PageRequest) -> PageResult {
    let (lease, abilities) = find_lease(&request).await?;
    Ok(match lease {
        Some(lease) => build_release_page(&request, &lease, &abilities, None).into(),
        None => build_no_holder_page(&request).into(),
    })
}

/// Builds the page for a key that no run holds.
fn build_no_holder_page(request: &PageRequest) -> Page {
    let mut page = Page::new(Tab::Keys, "Release a key");
    page.above = html! {
        p.lead { "No run holds this key by a lease." }
        p { a #leases href=(request.link("/leases")) { "What is held" } }
    };
    page.is_refreshed = false;
    page.equivalents = EquivalentCommands {
        cli: vec!["oncely leases list".to_owned()],
        sql: vec![pg::equivalent_sql::leases(&LeaseFilter::default())],
    };
    page
}

/// Builds the page that releases a key: its lease, the consequences, and the form. `message`: the reason why the last attempt changed
/// nothing.
fn build_release_page(
    request: &PageRequest,
    lease: &HeldLease,
    abilities: &pg::Abilities,
    message: Option<&str>,
) -> Page {
    let mut page = Page::new(Tab::Keys, "Release a key");
    page.is_subject = true;
    page.heading = html! { "Release " span.quiet { (text(&lease.tenant)) " · " (text(&lease.consumer)) " · " } (code(&lease.key)) };
    page.is_refreshed = false;
    page.above = html! {
        @if let Some(message) = message { p.said role="alert" { (message) } }
        p.lead { "Held by " (text(&lease.owner)) ", " (remaining_time(lease)) "." }
        ul.findings {
            @for consequence in lease.describe_consequences() { li { span.sign.look aria-hidden="true" { "▲" } (text(&consequence)) } }
        }
        dl.facts {
            dt { "Key" } dd { a #key href=(key_link(request, &lease.tenant, &lease.consumer, &lease.key)) { (code(&lease.key)) } }
            dt { "Held since" } dd { (exact_time(lease.since)) }
            dt { "Runs that ended without a word" } dd { (lease.crash_attempts) }
            @if let Some(lease_steps) = lease.steps.as_deref().filter(|lease_steps| !lease_steps.is_empty()) { dt { "Steps" } dd { (steps(lease_steps)) } }
        }
        @match (request.viewer.is_operator(), abilities.release_leases) {
            (false, _) => p.note { "You may look at this; carrying it out takes the role operator." },
            (true, false) => p.note { (describe_refusal(&abilities.login, NO_ABILITY)) },
            (true, true) => (confirm_form(request, lease)),
        }
    };
    let flags =
        shown::format_shell_flags([("tenant", Some(&*lease.tenant)), ("consumer", Some(&*lease.consumer))]);
    page.equivalents = EquivalentCommands {
        cli: vec![format!("oncely leases release {}{flags}", shown::quote_shell_word(&lease.key))],
        sql: vec![pg::equivalent_sql::revoke_lease(&lease.tenant, &lease.consumer, &lease.key)],
    };
    page
}

fn confirm_form(request: &PageRequest, lease: &HeldLease) -> Markup {
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(request.app.access.site().path("/lease/release")) {
            (csrf_field(&request.viewer))
            @for (name, value) in [("tenant", &lease.tenant), ("consumer", &lease.consumer), ("key", &lease.key)] {
                input type="hidden" name=(name) value=(value);
            }
            input type="hidden" name="token" value=(lease.token);
            label for="note" { "Why, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            label for="typed" { "Type 1 to confirm" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            button.strong { "Release 1" }
        }
    }
}

/// Releases the key from the run that was shown; if it can't, renders the page with the reason.
pub(super) async fn release(request: PageRequest) -> PageResult {
    let (lease, abilities) = find_lease(&request).await?;
    if !abilities.release_leases {
        return Err(PageError::Refused(describe_refusal(&abilities.login, NO_ABILITY)));
    }
    let Some(lease) = lease else {
        return Ok(PageReply::from_rejected_action(build_no_holder_page(&request)));
    };
    let reject = |message: &str| {
        Ok(PageReply::from_rejected_action(build_release_page(&request, &lease, &abilities, Some(message))))
    };
    let Some(note) = request.parameters.get_trimmed("note") else { return reject("A reason is required.") };
    if request.parameters.get_trimmed("typed") != Some("1") {
        return reject("Nothing was changed: type 1 to confirm.");
    }
    let actor = request.viewer.session.user.actor();
    let is_same_lease = request.parameters.get_trimmed("token") == Some(lease.token.to_string().as_str());
    let mut pooled = request.app.pool.acquire().await?;
    let is_released =
        is_same_lease && pg::revoke_lease(&mut pooled.session.connection, &lease, &actor, Some(note)).await?;
    pooled.give_back();
    if !is_released {
        return reject(
            "Nothing was changed: another run holds the key now than the one that was shown. Look at it again.",
        );
    }
    Ok(PageReply::SeeOther(key_link(&request, &lease.tenant, &lease.consumer, &lease.key)))
}

/// Renders a consumer's leases on its page.
pub(super) fn lease_summary(
    request: &PageRequest,
    count: Option<&pg::HeldCount>,
    consumer: &str,
    now: chrono::DateTime<chrono::Utc>,
) -> Markup {
    html! {
        @if let Some(count) = count {
            p #held {
                a #held-link href=(request.link("/leases").with("consumer", consumer)) { (format_number(count.held)) " held by leases" }
                ", the oldest from " (ago(count.oldest, now))
                @if count.over > 0 {
                    "; " span.look { (format_number(count.over)) " of them over" } ", and the keys were not taken over. The first ended " (ago(count.first_end, now))
                }
                "."
            }
        }
    }
}
