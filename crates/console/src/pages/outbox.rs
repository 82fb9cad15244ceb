//! Outbox & mirror: the backlogs of RabbitMQ and Redis.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use serde_json::json;
use sqlx::Connection as _;

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::digest::digest;
use super::super::error::PageError;
use super::super::html::{ago, capped, code, count, exact_time, percent, text, text_or};
use super::super::page::{EquivalentCommands, Page, Tab, csrf};
use super::super::watch::StatusView;
use super::overview::unavailable_error;
use super::plots::{self, PlotQuery};
use oncely_core::decide::PrecheckMode;
use oncely_core::shown;
use oncely_core::units::total;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::{self as pg, EventChange, EventFilter, EventRow};

/// Rows of the list.
const ROWS: i64 = 50;

fn filter(ask: &PageRequest, limit: i64) -> Result<EventFilter, PageError> {
    let own = |name: &str| ask.parameters.text(name);
    let state = match ask.parameters.word("state") {
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

pub(super) async fn page(ask: PageRequest) -> PageResult {
    let view = ask.app.view().await;
    let Ok(database) = &view.picture.postgres else { return Err(unavailable_error(&view)) };
    let wanted = PlotQuery::from_request(&ask);
    let series = ask.app.plots.series(&ask.app.pool, wanted.range).await?;
    let filter = filter(&ask, ROWS)?;
    let mut pooled = ask.app.pool.acquire().await?;
    let events = pg::events(&mut pooled.session.connection, &filter).await?;
    let may = ask.visitor.is_operator() && pooled.facts.change_events;
    pooled.give_back();
    let mut page = Page::new(Tab::Outbox, "Outbox & mirror");
    page.live = html! {
        (facts(&ask, &view, database))
        section.plots #plots aria-labelledby="plots-title" {
            h2 #plots-title { "Over time" }
            (wanted.choices(&ask.link("/outbox")))
            div.figures { (plots::ages(&wanted, &series)) (plots::relayed(&wanted, &series)) }
        }
    };
    page.below = html! {
        section aria-labelledby="events-title" {
            h2 #events-title { "Events, oldest first" }
            (choose(&ask, &filter))
            (table(&events, database.now))
            @if may && filter.state.as_deref() == Some("parked") && !events.is_empty() { (change(&ask, &filter, &events)) }
        }
    };
    let flags = shown::shell_flags([
        ("state", filter.state.as_deref()),
        ("exchange", filter.exchange.as_deref()),
        ("reason", filter.reason.as_deref()),
    ]);
    page.elsewhere = EquivalentCommands {
        cli: vec![format!("oncely outbox list{flags}")],
        sql: vec![pg::equivalent_sql::events(&filter), pg::equivalent_sql::mirror_queue()],
    };
    Ok(page.into())
}

fn facts(ask: &PageRequest, view: &StatusView, database: &DatabaseSnapshot) -> Markup {
    let relays = database.overview.living("relay");
    let counts = || {
        let living = database.overview.processes.iter().filter(|seen| !seen.silent);
        living.flat_map(|seen| &seen.reports).map(|report| &report.counts)
    };
    let hits = total(counts().map(|counts| counts.duplicates_mirror));
    let duplicates = total(counts().map(|counts| counts.duplicates()));
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    let share = (duplicates > 0).then(|| hits as f64 / duplicates as f64);
    let oldest = |at: Option<DateTime<Utc>>| html! { @match at { Some(at) => { ", the oldest written " (ago(at, database.now)) }, None => "" } };
    let mode = ask.app.config.mirror.as_ref().map(|mirror| match mirror.precheck {
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
            dt { "Events on their way" } dd { (capped(database.events.pending)) (oldest(database.events.oldest_due)) }
            dt { "Events parked" }
            dd {
                @if database.events.parked > 0 { a #parked href=(ask.link("/outbox").with("state", "parked")) { (capped(database.events.parked)) } } @else { "0" }
                (oldest(database.events.oldest_parked))
            }
            dt { "Mirror records on their way" } dd { (capped(database.mirror_queue.records)) (oldest(database.mirror_queue.oldest)) }
            dt { "Redis" }
            dd {
                @match &view.picture.redis {
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
            dd { @match share { Some(share) => { (count(hits)) " of " (count(duplicates)) ", " (percent(share)) ", since the workers' starts" }, None => "no duplicate since the workers' starts" } }
            dt { "Epoch" } dd { (code(&database.epoch)) }
        }
    }
}

fn choose(ask: &PageRequest, filter: &EventFilter) -> Markup {
    let state = filter.state.as_deref().unwrap_or("any");
    html! {
        form.inline action=(ask.link("/outbox")) role="search" {
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
fn digest_of(events: &[EventRow]) -> String {
    digest(events.iter().map(|event| (event.tenant.as_str(), event.id, event.attempts)))
}

/// Renders the actions for parked events.
fn change(ask: &PageRequest, filter: &EventFilter, events: &[EventRow]) -> Markup {
    let number = events.len();
    let until = events.last().map(|event| event.created_at.timestamp_micros() + 1).unwrap_or_default();
    html! {
        h3 #change-title { "These " (number) " parked events" }
        form.stacked method="post" action=(ask.app.access.site().path("/outbox/change")) {
            (csrf(&ask.visitor))
            input type="hidden" name="before" value=(until);
            input type="hidden" name="digest" value=(digest_of(events));
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

/// Retries or discards parked events.
pub(super) async fn change_them(ask: PageRequest) -> PageResult {
    let change = match ask.parameters.word("change") {
        Some("retry") => EventChange::Retry,
        Some("discard") => EventChange::Discard,
        _ => return Err(PageError::Wrong("Try again, or discard?".to_owned())),
    };
    let Some(note) = ask.parameters.word("note") else {
        return Err(PageError::Wrong("A reason is required.".to_owned()));
    };
    let before =
        ask.parameters.word("before").and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
    let mut pooled = ask.acquire_for(|may| may.change_events, "may not change events").await?;
    let filter =
        EventFilter { state: Some("parked".to_owned()), created_before: before, ..filter(&ask, ROWS)? };
    let now = pooled.session.clock.now();
    let mut transaction = pooled.session.connection.begin().await?;
    let found = pg::events(&mut transaction, &filter).await?;
    if ask.parameters.word("typed") != Some(found.len().to_string().as_str()) {
        transaction.rollback().await?;
        pooled.give_back();
        return Err(PageError::Wrong(format!(
            "Nothing was changed: there are {} now; type that number to confirm.",
            found.len()
        )));
    }
    if ask.parameters.word("digest") != Some(digest_of(&found).as_str()) {
        transaction.rollback().await?;
        pooled.give_back();
        return Err(PageError::Wrong(
            "Nothing was changed: these are other events than the page showed. Look at them again."
                .to_owned(),
        ));
    }
    let actor = ask.visitor.session.user.actor();
    let recorded = serde_json::to_value(&filter).unwrap_or_else(|_| json!({}));
    let by = pg::EventChangeAuthor { user: &actor, reason: Some(note), filter: &recorded };
    pg::change_events(&mut transaction, now, change, &found, filter.state.as_deref(), by).await?;
    transaction.commit().await?;
    pooled.give_back();
    Ok(PageReply::SeeOther(ask.link("/outbox")))
}
