//! Keys & trail: one search box, facets, pages by position.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{PageLink, code, text, time};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::search::{OUTCOMES, Question, Search};
use super::rows::{head, key_link, row, search_link};
use oncely_core::shown;
use oncely_ops::trail::{MOMENT, TrailPage, TrailQuery, search_trail};
use oncely_postgres::{self as pg, KeyDetails, Position};

/// Rows per page.
const ROWS: usize = 50;
/// Time ranges on offer, and the default.
const SINCE: [&str; 5] = ["15m", "2h", "24h", "7d", "30d"];
const DEFAULT: usize = 2;
/// Margin for decisions made while the page is built.
const AHEAD: chrono::Duration = chrono::Duration::minutes(1);

/// A query of a page or an export.
pub(super) struct KeySearch {
    pub(super) search: Search,
    pub(super) look: TrailQuery,
}

/// Parses the query: the search box, and the position of the page.
pub(super) fn asked(ask: &PageRequest, now: DateTime<Utc>, limit: usize) -> Result<KeySearch, PageError> {
    let search = Search::parse(ask.parameters.get("q").unwrap_or_default());
    let Question { filter, since, until } = search.question(now).map_err(PageError::Wrong)?;
    // For one key there is no default time range: the query is an index probe.
    let default = if filter.key.is_some() { "3650d" } else { SINCE[DEFAULT] };
    let since =
        since.map_or_else(|| oncely_core::units::since(default, now).map_err(PageError::Wrong), Ok)?;
    let after = ask.parameters.word("after").map(|text| {
        Position::parse(text).ok_or_else(|| PageError::Wrong("That is no place in the trail.".to_owned()))
    });
    let below =
        ask.parameters.word("below").and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
    let until = [until, below].into_iter().flatten().min().unwrap_or(now + AHEAD);
    let look = TrailQuery { filter, since, until, after: after.transpose()?, limit };
    Ok(KeySearch { search, look })
}

pub(super) async fn page(ask: PageRequest) -> PageResult {
    let mut pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let KeySearch { search, look: wanted } = asked(&ask, now, ROWS)?;
    let found = search_trail(&mut pooled.session.connection, now, &wanted, Some(MOMENT)).await?;
    let keys = match &wanted.filter.key {
        Some(key) => {
            let (tenant, consumer) = (wanted.filter.tenant.as_deref(), wanted.filter.consumer.as_deref());
            pg::key_details(&mut pooled.session.connection, key, tenant, consumer).await?
        }
        None => Vec::new(),
    };
    pooled.give_back();
    let is_first = wanted.after.is_none() && !ask.parameters.has("below");
    let mut page = Page::new(Tab::Keys, "Keys & trail");
    page.above = html! { (search_box(&ask, &search)) (facets(&ask, &search)) };
    page.live = html! {
        (known(&ask, &keys))
        (table(&ask, &search, &found, &wanted, is_first))
        (navigation(&ask, &search, &wanted, &found, is_first))
    };
    // Further pages are not refreshed, so that rows don't move while they are read.
    page.polls = is_first;
    page.elsewhere = EquivalentCommands {
        cli: vec![command(&wanted, &search)],
        sql: vec![pg::equivalent_sql::trail(
            &wanted.filter,
            wanted.since,
            search.get("until").map(|_| wanted.until),
        )],
    };
    Ok(page.into())
}

fn search_box(ask: &PageRequest, search: &Search) -> Markup {
    html! {
        form.search role="search" action=(ask.link("/keys")) {
            label.unseen for="q" { "A key, or tenant:… consumer:… outcome:… reason:… worker:… since:… until:…" }
            input #q type="search" name="q" value=(search.text()) autocomplete="off" spellcheck="false"
                placeholder="a key, or  tenant:acme consumer:payments outcome:retried since:2h";
            button { "Search" }
        }
    }
}

fn facets(ask: &PageRequest, search: &Search) -> Markup {
    let since = search.get("since").or((search.get("key").is_none()).then_some(SINCE[DEFAULT]));
    let consumers: Vec<&str> =
        ask.app.config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
    let facet = |name: &'static str, shown: &str, current: Option<&str>, values: &[&str]| {
        html! {
            span {
                (shown)
                @for (index, value) in values.iter().enumerate() {
                    @let is_current = current == Some(*value);
                    @let other = search.with(name, (!is_current || name == "since").then_some(*value));
                    a id=(format!("facet-{name}-{index}")) href=(search_link(ask, &other)) aria-current=[is_current.then_some("true")] { (oncely_core::shown::value(value)) }
                }
            }
        }
    };
    html! {
        nav.facets aria-label="Narrow the search" {
            (facet("since", "Since", since, &SINCE))
            (facet("outcome", "Outcome", search.get("outcome"), &OUTCOMES))
            @if !consumers.is_empty() { (facet("consumer", "Consumer", search.get("consumer"), &consumers)) }
            span { a #held href=(ask.link("/leases")) { "Held by leases" } }
        }
    }
}

/// Renders the tenants and consumers with this key.
fn known(ask: &PageRequest, keys: &[KeyDetails]) -> Markup {
    html! {
        @if !keys.is_empty() {
            section aria-labelledby="known-title" {
                h2 #known-title { "This key is known" }
                ul.plain {
                    @for key in keys {
                        li {
                            a id=(format!("known-{}", super::table::anchor(&format!("{}\0{}", key.tenant, key.consumer))))
                                href=(key_link(ask, &key.tenant, &key.consumer, &key.key)) { (text(&key.tenant)) " · " (text(&key.consumer)) " · " (code(&key.key)) }
                            " " (key.status)
                        }
                    }
                }
            }
        }
    }
}

fn table(
    ask: &PageRequest,
    search: &Search,
    found: &TrailPage,
    wanted: &TrailQuery,
    is_first: bool,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Decisions" {
            table.rows #trail {
                caption.unseen { "Decisions, newest first" }
                (head())
                tbody #rows {
                    @for (position, decision) in &found.rows { (row(ask, position, decision)) }
                }
            }
        }
        @if found.rows.is_empty() {
            p.empty {
                "Nothing" @if !is_first { " more" } @match found.down_to {
                    Some(at) if at > wanted.since => { " down to " (time(at)) ": it was not looked further yet." },
                    _ => { " " (span(search)) "." },
                }
            }
        }
    }
}

/// Renders links to older rows, the first page, a file, and following the trail.
fn navigation(
    ask: &PageRequest,
    search: &Search,
    wanted: &TrailQuery,
    found: &TrailPage,
    is_first: bool,
) -> Markup {
    let link = search_link(ask, search);
    let next = match (&found.down_to, found.rows.last()) {
        (None, Some((position, _))) => Some((link.clone().with("after", position.to_string()), "Older")),
        (Some(at), _) if !found.is_all(wanted) => {
            Some((link.clone().with("below", at.timestamp_micros().to_string()), "Look further back"))
        }
        _ => None,
    };
    let file = |kind: &str| ask.link(&format!("/keys/export.{kind}")).with("q", search.text());
    html! {
        p.pages {
            @if !is_first { a #newest href=(link) { "Newest" } }
            @if let Some((link, name)) = &next { a #older rel="next" href=(link) { (name) } }
            @else if !found.rows.is_empty() { span { "That is all " (span(search)) "." } }
            (wider(ask, search, found, wanted))
            span { "Export " a #csv href=(file("csv")) download="" { "CSV" } " " a #ndjson href=(file("ndjson")) download="" { "NDJSON" } }
            @if is_first && search.get("until").is_none() {
                button #follow type="button" hidden aria-pressed="false" hx-preserve="true" data-follow=(ask.link("/keys/tail").with("q", search.text())) { "Follow" }
            }
        }
    }
}

/// Describes the searched time range in the user's words.
fn span(search: &Search) -> String {
    let since = search.get("since").or((search.get("key").is_none()).then_some(SINCE[DEFAULT]));
    match since {
        None => "in the trail".to_owned(),
        Some(since) if humantime::parse_duration(since).is_ok() => format!("in {since}"),
        Some(since) => format!("since {}", oncely_core::shown::value(since)),
    }
}

/// Renders a link to the next longer time range, if this one has no rows.
fn wider(ask: &PageRequest, search: &Search, found: &TrailPage, wanted: &TrailQuery) -> Markup {
    let current = search.get("since").or((search.get("key").is_none()).then_some(SINCE[DEFAULT]));
    let next = SINCE.iter().position(|since| Some(*since) == current).and_then(|index| SINCE.get(index + 1));
    html! {
        @if let Some(next) = next && found.is_all(wanted) && found.rows.len() < ROWS {
            a #wider href=(search_link(ask, &search.with("since", Some(next)))) { "Search " (next) }
        }
    }
}

fn command(wanted: &TrailQuery, search: &Search) -> String {
    let filter = &wanted.filter;
    let flags = shown::shell_flags([
        ("tenant", filter.tenant.as_deref()),
        ("consumer", filter.consumer.as_deref()),
        ("key", filter.key.as_deref()),
        ("outcome", filter.outcome.as_deref()),
        ("reason", filter.reason.as_deref()),
        ("since", search.get("since").or(filter.key.is_none().then_some(SINCE[DEFAULT]))),
        ("until", search.get("until")),
    ]);
    format!("oncely audit list{flags}")
}

/// Returns the search for decisions made together with a row.
pub(super) fn batch_link(ask: &PageRequest, consumer: &str, worker: &str, at: DateTime<Utc>) -> PageLink {
    let search = Search::default()
        .with("consumer", Some(consumer))
        .with("worker", Some(worker))
        .with("since", Some(&super::super::search::instant(at)))
        .with("until", Some(&super::super::search::instant(at + chrono::Duration::microseconds(1))));
    search_link(ask, &search)
}
