//! Keys & trail: one search box, facets, pages by position.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{PageLink, code, text, time};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::search::{OUTCOMES, Search, SearchQuery};
use super::rows::{head, key_link, row, search_link};
use oncely_core::shown;
use oncely_ops::trail::{PAGE_SEARCH_TIME, TrailPage, TrailQuery, search_trail};
use oncely_postgres::{self as pg, KeyDetails, Position};

/// Rows per page.
const ROWS: usize = 50;
/// Time ranges on offer, and the default.
const TIME_RANGES: [&str; 5] = ["15m", "2h", "24h", "7d", "30d"];
const DEFAULT_RANGE: usize = 2;
/// Margin for decisions made while the page is built.
const BUILD_MARGIN: chrono::Duration = chrono::Duration::minutes(1);

/// The search of a page or an export, with its query.
pub(super) struct KeySearch {
    pub(super) search: Search,
    pub(super) query: TrailQuery,
}

/// Parses the search of a request: the search box, and the position of the page.
///
/// # Errors
/// If a value of the search, or the position, is invalid.
pub(super) fn parse_search(
    request: &PageRequest,
    now: DateTime<Utc>,
    limit: usize,
) -> Result<KeySearch, PageError> {
    let search = Search::parse(request.parameters.get("q").unwrap_or_default());
    let SearchQuery { filter, since, until } = search.to_query(now).map_err(PageError::Wrong)?;
    // For one key there is no default time range: the query is an index probe.
    let default = if filter.key.is_some() { "3650d" } else { TIME_RANGES[DEFAULT_RANGE] };
    let since =
        since.map_or_else(|| oncely_core::units::parse_time(default, now).map_err(PageError::Wrong), Ok)?;
    let after = request.parameters.get_trimmed("after").map(|text| {
        Position::parse(text).ok_or_else(|| PageError::Wrong("That is no place in the trail.".to_owned()))
    });
    let below = request
        .parameters
        .get_trimmed("below")
        .and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
    let until = [until, below].into_iter().flatten().min().unwrap_or(now + BUILD_MARGIN);
    let query = TrailQuery { filter, since, until, after: after.transpose()?, limit };
    Ok(KeySearch { search, query })
}

/// Renders `/keys`: the search of the trail.
///
/// # Errors
/// If the search is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let mut pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let KeySearch { search, query } = parse_search(&request, now, ROWS)?;
    let trail_page =
        search_trail(&mut pooled.session.connection, now, &query, Some(PAGE_SEARCH_TIME)).await?;
    let keys = match &query.filter.key {
        Some(key) => {
            let (tenant, consumer) = (query.filter.tenant.as_deref(), query.filter.consumer.as_deref());
            pg::read_key_details(&mut pooled.session.connection, key, tenant, consumer).await?
        }
        None => Vec::new(),
    };
    pooled.give_back();
    let is_first = query.after.is_none() && !request.parameters.has("below");
    let mut page = Page::new(Tab::Keys, "Keys & trail");
    page.above = html! { (search_box(&request, &search)) (facets(&request, &search)) };
    page.live = html! {
        (known_keys(&request, &keys))
        (table(&request, &search, &trail_page, &query, is_first))
        (navigation(&request, &search, &query, &trail_page, is_first))
    };
    // Further pages are not refreshed, so that rows don't move while they are read.
    page.is_refreshed = is_first;
    page.equivalents = EquivalentCommands {
        cli: vec![format_command(&query, &search)],
        sql: vec![pg::equivalent_sql::trail(
            &query.filter,
            query.since,
            search.get("until").map(|_| query.until),
        )],
    };
    Ok(page.into())
}

fn search_box(request: &PageRequest, search: &Search) -> Markup {
    html! {
        form.search role="search" action=(request.link("/keys")) {
            label.unseen for="q" { "A key, or tenant:… consumer:… outcome:… reason:… worker:… since:… until:…" }
            input #q type="search" name="q" value=(search.to_text()) autocomplete="off" spellcheck="false"
                placeholder="a key, or  tenant:acme consumer:payments outcome:retried since:2h";
            button { "Search" }
        }
    }
}

fn facets(request: &PageRequest, search: &Search) -> Markup {
    let since = search.get("since").or((search.get("key").is_none()).then_some(TIME_RANGES[DEFAULT_RANGE]));
    let consumers: Vec<&str> =
        request.app.config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
    let facet = |name: &'static str, shown: &str, current: Option<&str>, values: &[&str]| {
        html! {
            span {
                (shown)
                @for (index, value) in values.iter().enumerate() {
                    @let is_current = current == Some(*value);
                    @let other = search.with(name, (!is_current || name == "since").then_some(*value));
                    a id=(format!("facet-{name}-{index}")) href=(search_link(request, &other)) aria-current=[is_current.then_some("true")] { (oncely_core::shown::escape_value(value)) }
                }
            }
        }
    };
    html! {
        nav.facets aria-label="Narrow the search" {
            (facet("since", "Since", since, &TIME_RANGES))
            (facet("outcome", "Outcome", search.get("outcome"), &OUTCOMES))
            @if !consumers.is_empty() { (facet("consumer", "Consumer", search.get("consumer"), &consumers)) }
            span { a #held href=(request.link("/leases")) { "Held by leases" } }
        }
    }
}

/// Renders the tenants and consumers with this key.
fn known_keys(request: &PageRequest, keys: &[KeyDetails]) -> Markup {
    html! {
        @if !keys.is_empty() {
            section aria-labelledby="known-title" {
                h2 #known-title { "This key is known" }
                ul.plain {
                    @for key in keys {
                        li {
                            a id=(format!("known-{}", super::table::anchor(&format!("{}\0{}", key.tenant, key.consumer))))
                                href=(key_link(request, &key.tenant, &key.consumer, &key.key)) { (text(&key.tenant)) " · " (text(&key.consumer)) " · " (code(&key.key)) }
                            " " (key.status)
                        }
                    }
                }
            }
        }
    }
}

fn table(
    request: &PageRequest,
    search: &Search,
    trail_page: &TrailPage,
    query: &TrailQuery,
    is_first: bool,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Decisions" {
            table.rows #trail {
                caption.unseen { "Decisions, newest first" }
                (head())
                tbody #rows {
                    @for (position, decision) in &trail_page.rows { (row(request, position, decision)) }
                }
            }
        }
        @if trail_page.rows.is_empty() {
            p.empty {
                "Nothing" @if !is_first { " more" } @match trail_page.down_to {
                    Some(at) if at > query.since => { " down to " (time(at)) ": it was not looked further yet." },
                    _ => { " " (describe_range(search)) "." },
                }
            }
        }
    }
}

/// Renders links to older rows, the first page, a file, and following the trail.
fn navigation(
    request: &PageRequest,
    search: &Search,
    query: &TrailQuery,
    trail_page: &TrailPage,
    is_first: bool,
) -> Markup {
    let link = search_link(request, search);
    let next = match (&trail_page.down_to, trail_page.rows.last()) {
        (None, Some((position, _))) => Some((link.clone().with("after", position.to_string()), "Older")),
        (Some(at), _) if !trail_page.is_complete(query) => {
            Some((link.clone().with("below", at.timestamp_micros().to_string()), "Look further back"))
        }
        _ => None,
    };
    let export_link = |kind: &str| request.link(&format!("/keys/export.{kind}")).with("q", search.to_text());
    html! {
        p.pages {
            @if !is_first { a #newest href=(link) { "Newest" } }
            @if let Some((link, name)) = &next { a #older rel="next" href=(link) { (name) } }
            @else if !trail_page.rows.is_empty() { span { "That is all " (describe_range(search)) "." } }
            (wider_link(request, search, trail_page, query))
            span { "Export " a #csv href=(export_link("csv")) download="" { "CSV" } " " a #ndjson href=(export_link("ndjson")) download="" { "NDJSON" } }
            @if is_first && search.get("until").is_none() {
                button #follow type="button" hidden aria-pressed="false" hx-preserve="true" data-follow=(request.link("/keys/tail").with("q", search.to_text())) { "Follow" }
            }
        }
    }
}

/// Describes the searched time range as the user wrote it.
fn describe_range(search: &Search) -> String {
    let since = search.get("since").or((search.get("key").is_none()).then_some(TIME_RANGES[DEFAULT_RANGE]));
    match since {
        None => "in the trail".to_owned(),
        Some(since) if humantime::parse_duration(since).is_ok() => format!("in {since}"),
        Some(since) => format!("since {}", oncely_core::shown::escape_value(since)),
    }
}

/// Renders a link to the next longer time range; nothing for the longest range, or if the page is full.
fn wider_link(request: &PageRequest, search: &Search, trail_page: &TrailPage, query: &TrailQuery) -> Markup {
    let current = search.get("since").or((search.get("key").is_none()).then_some(TIME_RANGES[DEFAULT_RANGE]));
    let next = TIME_RANGES
        .iter()
        .position(|since| Some(*since) == current)
        .and_then(|index| TIME_RANGES.get(index + 1));
    html! {
        @if let Some(next) = next && trail_page.is_complete(query) && trail_page.rows.len() < ROWS {
            a #wider href=(search_link(request, &search.with("since", Some(next)))) { "Search " (next) }
        }
    }
}

/// Formats the equivalent command.
fn format_command(query: &TrailQuery, search: &Search) -> String {
    let filter = &query.filter;
    let flags = shown::format_shell_flags([
        ("tenant", filter.tenant.as_deref()),
        ("consumer", filter.consumer.as_deref()),
        ("key", filter.key.as_deref()),
        ("outcome", filter.outcome.as_deref()),
        ("reason", filter.reason.as_deref()),
        ("since", search.get("since").or(filter.key.is_none().then_some(TIME_RANGES[DEFAULT_RANGE]))),
        ("until", search.get("until")),
    ]);
    format!("oncely audit list{flags}")
}

/// Returns the link to a search for the decisions of one batch: those of a consumer and a worker at one time.
pub(super) fn batch_link(request: &PageRequest, consumer: &str, worker: &str, at: DateTime<Utc>) -> PageLink {
    let search = Search::default()
        .with("consumer", Some(consumer))
        .with("worker", Some(worker))
        .with("since", Some(&super::super::search::format_instant(at)))
        .with("until", Some(&super::super::search::format_instant(at + chrono::Duration::microseconds(1))));
    search_link(request, &search)
}
