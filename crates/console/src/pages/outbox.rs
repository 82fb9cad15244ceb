//! Outbox & mirror: the backlogs of RabbitMQ and Redis.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use serde_json::json;
use sqlx::Connection as _;

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::digest::compute_digest;
use super::super::error::PageError;
use super::super::html::{
    ago, code, exact_time, format_capped, format_number, format_percent, text, text_or,
};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::super::watch::StatusView;
use super::overview::build_unavailable_error;
use super::plots::{self, PlotQuery};
use oncely_core::decide::PrecheckMode;
use oncely_core::shown;
use oncely_core::units::total;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::{self as pg, EventChange, EventFilter, EventRow};

/// Rows of the list.
const ROWS: i64 = 50;

/// Parses the filter of the list.
///
/// # Errors
/// If the state is unknown.
fn parse_filter(request: &PageRequest, limit: i64) -> Result<EventFilter, PageError> {
    let own = |name: &str| request.parameters.get_owned(name);
    let state = match request.parameters.get_trimmed("state") {
        None | Some("any") => None,
        Some(state @ ("pending" | "parked")) => Some(state.to_owned()),
        Some(other) => return Err(PageError::Wrong(format!("{other} is no state of an event."))),
    };
    Ok(EventFilter {
        tenant: own("tenant"),
        exchange: own("exchange"),
        routing_key: own("routing_key"),
        ordering_key: own("ordering_key"),
        reason: own("reason"),
        state,
        limit,
        ..EventFilter::default()
    })
}

/// Renders `/outbox`: the backlogs of RabbitMQ and Redis.
///
/// # Errors
/// If the filter is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let view = request.app.query_status().await;
    let Ok(database) = &view.snapshot.postgres else { return Err(build_unavailable_error(&view)) };
    let query = PlotQuery::from_request(&request);
    let series = request.app.plots.query_series(&request.app.pool, query.range).await?;
    let filter = parse_filter(&request, ROWS)?;
    let mut pooled = request.app.pool.acquire().await?;
    let events = pg::list_events(&mut pooled.session.connection, &filter).await?;
    let may_change = request.viewer.is_operator() && pooled.facts.change_events;
    pooled.give_back();
    let mut page = Page::new(Tab::Outbox, "Outbox & mirror");
    page.live = html! {
        (facts(&request, &view, database))
        section.plots #plots aria-labelledby="plots-title" {
            h2 #plots-title { "Over time" }
            (query.choices(&request.link("/outbox")))
            div.figures { (plots::ages(&query, &series)) (plots::relay_rates(&query, &series)) }
        }
    };
    page.below = html! {
        section aria-labelledby="events-title" {
            h2 #events-title { "Events, oldest first" }
            (filter_form(&request, &filter))
            (table(&events, database.now))
            @if may_change && filter.state.as_deref() == Some("parked") && !events.is_empty() { (change_form(&request, &filter, &events)) }
        }
    };
    let flags = shown::format_shell_flags([
        ("state", filter.state.as_deref()),
        ("exchange", filter.exchange.as_deref()),
        ("reason", filter.reason.as_deref()),
    ]);
    page.equivalents = EquivalentCommands {
        cli: vec![format!("oncely outbox list{flags}")],
        sql: vec![pg::equivalent_sql::events(&filter), pg::equivalent_sql::mirror_queue()],
    };
    Ok(page.into())
}

fn facts(request: &PageRequest, view: &StatusView, database: &DatabaseSnapshot) -> Markup {
    let relays = database.overview.count_living("relay");
    let counts = || {
        let living = database.overview.processes.iter().filter(|process| !process.silent);
        living.flat_map(|process| &process.reports).map(|report| &report.counts)
    };
    let mirror_hits = total(counts().map(|counts| counts.duplicates_mirror));
    let duplicates = total(counts().map(|counts| counts.duplicates()));
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    let share = (duplicates > 0).then(|| mirror_hits as f64 / duplicates as f64);
    let oldest = |at: Option<DateTime<Utc>>| html! { @match at { Some(at) => { ", the oldest written " (ago(at, database.now)) }, None => "" } };
    let mode = request.app.config.mirror.as_ref().map(|mirror| match mirror.precheck {
        PrecheckMode::Auto => {
            "auto: trust, or verify where a standby could take over without the latest commits"
        }
        PrecheckMode::Trust => "trust: a hit is acknowledged without asking PostgreSQL",
        PrecheckMode::Verify => "verify: PostgreSQL confirms hits",
        PrecheckMode::Off => "off: Redis is not asked",
    });
    html! {
        dl.facts {
            dt { "Relays" } dd { @if relays == 0 { span.bad { "none runs: no event is published, nothing is mirrored" } } @else { (relays) " at work" } }
            dt { "Events on their way" } dd { (format_capped(database.events.pending)) (oldest(database.events.oldest_due)) }
            dt { "Events parked" }
            dd {
                @if database.events.parked > 0 { a #parked href=(request.link("/outbox").with("state", "parked")) { (format_capped(database.events.parked)) } } @else { "0" }
                (oldest(database.events.oldest_parked))
            }
            dt { "Mirror records on their way" } dd { (format_capped(database.mirror_queue.records)) (oldest(database.mirror_queue.oldest)) }
            dt { "Redis" }
            dd {
                @match &view.snapshot.redis {
                    None => "not configured: PostgreSQL answers for all duplicates",
                    Some(Ok(())) => "answers",
                    Some(Err(why)) => {
                        span.look { (if why.is_away { "does not answer" } else { "can't be used" }) ", so PostgreSQL decides alone, only slower: " }
                        (text(&why.text))
                    },
                }
            }
            @if let Some(mode) = mode { dt { "How much a hit is worth" } dd { (mode) } }
            dt { "Duplicates that the mirror knew" }
            dd { @match share { Some(share) => { (format_number(mirror_hits)) " of " (format_number(duplicates)) ", " (format_percent(share)) ", since the workers' starts" }, None => "no duplicate since the workers' starts" } }
            dt { "Epoch" } dd { (code(&database.epoch)) }
        }
    }
}

fn filter_form(request: &PageRequest, filter: &EventFilter) -> Markup {
    let state = filter.state.as_deref().unwrap_or("any");
    html! {
        form.inline action=(request.link("/outbox")) role="search" {
            label for="state" { "State" }
            select #state name="state" {
                @for choice in ["any", "pending", "parked"] { option value=(choice) selected[choice == state] { (choice) } }
            }
            label for="exchange" { "Exchange" }
            input #exchange type="text" name="exchange" value=(filter.exchange.as_deref().unwrap_or_default()) size="12";
            label for="ordering" { "Ordering key" }
            input #ordering type="text" name="ordering_key" value=(filter.ordering_key.as_deref().unwrap_or_default()) size="12";
            label for="why" { "Reason" }
            input #why type="text" name="reason" value=(filter.reason.as_deref().unwrap_or_default()) size="12";
            button { "Show" }
        }
    }
}

fn table(events: &[EventRow], now: DateTime<Utc>) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Events" {
            table.rows #events {
                caption.unseen { "Events on their way" }
                thead {
                    tr {
                        th scope="col" { "Written" } th scope="col" { "Event" } th scope="col" { "Tenant" } th scope="col" { "Exchange" } th scope="col" { "Routing key" }
                        th scope="col" { "Ordering key" } th scope="col" { "State" } th.number scope="col" { "Attempts" } th scope="col" { "Next try" } th.wide scope="col" { "Why not yet" }
                    }
                }
                tbody {
                    @for event in events {
                        tr {
                            td { (exact_time(event.created_at)) }
                            th.id scope="row" { code { (&event.id.to_string()[24..]) } }
                            td.keys { (text(&event.tenant)) }
                            td { (text_or(&event.exchange, "the default one")) }
                            td.keys { (text(&event.routing_key)) }
                            td.keys { (text(event.ordering_key.as_deref().unwrap_or_default())) }
                            td { @if event.state == "parked" { span.look { "‖ parked" } } @else { (text(&event.state)) } }
                            td.number { (event.attempts) }
                            td { @if event.state == "pending" { @if event.available_at > now { (exact_time(event.available_at)) } @else { "now" } } }
                            td.wide { (text(event.reason.as_deref().unwrap_or_default())) " " span.quiet { (text(event.last_error.as_deref().unwrap_or_default())) } }
                        }
                    }
                    @if events.is_empty() { tr { td.empty colspan="10" { "None is like that." } } }
                }
            }
        }
    }
}

/// Returns the digest of the events that a page shows.
fn digest_events(events: &[EventRow]) -> String {
    compute_digest(events.iter().map(|event| (event.tenant.as_str(), event.id, event.attempts)))
}

/// Renders the actions for parked events.
fn change_form(request: &PageRequest, filter: &EventFilter, events: &[EventRow]) -> Markup {
    let number = events.len();
    let until = events.last().map(|event| event.created_at.timestamp_micros() + 1).unwrap_or_default();
    html! {
        h3 #change-title { "These " (number) " parked events" }
        form.stacked method="post" action=(request.app.access.site().path("/outbox/change")) {
            (csrf_field(&request.viewer))
            input type="hidden" name="before" value=(until);
            input type="hidden" name="digest" value=(digest_events(events));
            @for (name, value) in [("exchange", &filter.exchange), ("ordering_key", &filter.ordering_key), ("reason", &filter.reason), ("tenant", &filter.tenant), ("routing_key", &filter.routing_key)] {
                @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
            }
            label for="note" { "Why, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            label for="typed" { "Type " (number) " to confirm" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            p.actionsbar {
                button #retry name="change" value="retry" { "Try again now" }
                button #discard name="change" value="discard" { "Discard for ever" }
            }
        }
    }
}

/// Retries or discards the parked events that the page showed.
///
/// # Errors
/// If they are other events by now, or not confirmed by their number; nothing is changed then.
pub(super) async fn change_events(request: PageRequest) -> PageResult {
    let change = match request.parameters.get_trimmed("change") {
        Some("retry") => EventChange::Retry,
        Some("discard") => EventChange::Discard,
        _ => return Err(PageError::Wrong("Try again, or discard?".to_owned())),
    };
    let Some(note) = request.parameters.get_trimmed("note") else {
        return Err(PageError::Wrong("A reason is required.".to_owned()));
    };
    let before = request
        .parameters
        .get_trimmed("before")
        .and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
    let mut pooled = request.acquire_for(|may| may.change_events, "may not change events").await?;
    let filter = EventFilter {
        state: Some("parked".to_owned()),
        created_before: before,
        ..parse_filter(&request, ROWS)?
    };
    let now = pooled.session.clock.now();
    let mut transaction = pooled.session.connection.begin().await?;
    let events = pg::list_events(&mut transaction, &filter).await?;
    if request.parameters.get_trimmed("typed") != Some(events.len().to_string().as_str()) {
        transaction.rollback().await?;
        pooled.give_back();
        return Err(PageError::Wrong(format!(
            "Nothing was changed: there are {} now; type that number to confirm.",
            events.len()
        )));
    }
    if request.parameters.get_trimmed("digest") != Some(digest_events(&events).as_str()) {
        transaction.rollback().await?;
        pooled.give_back();
        return Err(PageError::Wrong(
            "Nothing was changed: these are other events than the page showed. Look at them again."
                .to_owned(),
        ));
    }
    let actor = request.viewer.session.user.actor();
    let filter_json = serde_json::to_value(&filter).unwrap_or_else(|_| json!({}));
    let author = pg::EventChangeAuthor { user: &actor, reason: Some(note), filter: &filter_json };
    pg::change_events(&mut transaction, now, change, &events, filter.state.as_deref(), author).await?;
    transaction.commit().await?;
    pooled.give_back();
    Ok(PageReply::SeeOther(request.link("/outbox")))
}
