//! Failed: groups of similar failures, and the results of requeues.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{PageLink, ago, format_number, text};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::plot::spark;
use oncely_core::reason::Reason;
use oncely_core::shown;
use oncely_core::units::{self, format_count};
use oncely_ops::letters::Operation;
use oncely_postgres::{self as pg, LetterFilter, LetterGroup, LetterTrend};

/// Groups per page.
const MAX_GROUPS: i64 = 100;
/// Intervals in a group's trend.
const TREND_INTERVALS: i32 = 24;
/// Time ranges on offer, and the default.
const TIME_RANGES: [&str; 5] = ["15m", "2h", "24h", "7d", "90d"];
const DEFAULT_RANGE: &str = "7d";

/// Filter of dead letters, as the parameters of a page.
#[derive(Clone, Debug, Default)]
pub(super) struct LetterQuery {
    pub(super) since: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) consumer: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) group: Option<String>,
    pub(super) key: Option<String>,
    pub(super) state: Option<String>,
}

impl LetterQuery {
    /// Parses the filter from the parameters of a request.
    pub(super) fn from_request(request: &PageRequest) -> Self {
        let own = |name: &str| request.parameters.get_owned(name);
        let [since, tenant, consumer, reason, group, key, state] =
            ["since", "tenant", "consumer", "reason", "group", "key", "state"].map(own);
        Self { since, tenant, consumer, reason, group, key, state }
    }

    /// Returns the names and values of the parameters, the state last.
    pub(super) fn parameters(&self) -> [(&'static str, Option<&str>); 7] {
        [
            ("since", self.since.as_deref()),
            ("tenant", self.tenant.as_deref()),
            ("consumer", self.consumer.as_deref()),
            ("reason", self.reason.as_deref()),
            ("group", self.group.as_deref()),
            ("key", self.key.as_deref()),
            ("state", self.state.as_deref()),
        ]
    }

    /// Returns a link to a page with the same filter.
    pub(super) fn link(&self, request: &PageRequest, path: &str) -> PageLink {
        self.parameters()
            .into_iter()
            .fold(request.link(path), |link, (name, value)| link.with_some(name, value))
    }

    /// Converts the filter to that of a database query.
    ///
    /// # Errors
    /// If a value is invalid: a message for the user that names it.
    pub(super) fn to_filter(&self, now: DateTime<Utc>, limit: i64) -> Result<LetterFilter, PageError> {
        let since = units::parse_time(self.since.as_deref().unwrap_or(DEFAULT_RANGE), now)
            .map_err(PageError::Wrong)?;
        let states = match self.state.as_deref() {
            None | Some("open") => Some(vec!["waiting".to_owned(), "requeueing".to_owned()]),
            Some("any") => None,
            Some(state @ ("waiting" | "requeueing" | "requeued" | "discarded")) => {
                Some(vec![state.to_owned()])
            }
            Some(other) => return Err(PageError::Wrong(format!("{other} is no state of a dead letter."))),
        };
        Ok(LetterFilter {
            tenant: self.tenant.clone(),
            consumer: self.consumer.clone(),
            reason: self.reason.clone(),
            group: self.group.clone(),
            key: self.key.clone(),
            // For one key there is no default time range.
            since: (self.key.is_none() || self.since.is_some()).then_some(since),
            states,
            limit,
            ..LetterFilter::default()
        })
    }

    /// Formats the equivalent flags of the command line.
    pub(super) fn to_flags(&self) -> String {
        let since = self.since.as_deref().or(self.key.is_none().then_some(DEFAULT_RANGE));
        let [_, narrower @ .., _] = self.parameters();
        shown::format_shell_flags(narrower.into_iter().chain([("since", since)]))
    }
}

/// Renders `/failed`: the groups of dead letters.
///
/// # Errors
/// If the filter is invalid, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let query = LetterQuery::from_request(&request);
    let mut pooled = request.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let filter = query.to_filter(now, MAX_GROUPS)?;
    let connection = &mut pooled.session.connection;
    let groups = pg::list_letter_groups(connection, &filter).await?;
    let since = filter.since.unwrap_or(now - chrono::Duration::days(90));
    let trends = pg::count_letter_trends(connection, &filter, since, now, TREND_INTERVALS).await?;
    let may_change = request.viewer.is_operator() && pooled.facts.change_letters;
    pooled.give_back();
    let mut page = Page::new(Tab::Failed, "Failed");
    page.above = html! { (filter_form(&request, &query, "/failed")) };
    page.live = html! {
        (summary(&groups))
        (table(&request, &query, &groups, &trends, now, may_change))
        (operations(&request, now))
    };
    page.equivalents = EquivalentCommands {
        cli: vec![format!("oncely failed groups{}", query.to_flags())],
        sql: vec![pg::equivalent_sql::letter_groups(&LetterFilter { states: None, ..filter })],
    };
    Ok(page.into())
}

/// Renders the filter as a form, which works without JavaScript.
pub(super) fn filter_form(request: &PageRequest, query: &LetterQuery, path: &str) -> Markup {
    let since = query.since.as_deref().unwrap_or(DEFAULT_RANGE);
    let consumers = request.app.config.consumers.iter().map(|consumer| consumer.name.as_str());
    let mut consumers: Vec<&str> = consumers.chain(query.consumer.as_deref()).collect();
    consumers.sort_unstable();
    consumers.dedup();
    let mut reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    if let Some(reason) = query.reason.as_deref()
        && !reasons.contains(&reason)
    {
        reasons.push(reason);
    }
    html! {
        form.inline action=(request.link(path)) role="search" {
            @if let Some(group) = &query.group { input type="hidden" name="group" value=(group); }
            @if let Some(state) = &query.state { input type="hidden" name="state" value=(state); }
            label for="since" { "Since" }
            select #since name="since" {
                @for choice in TIME_RANGES { option value=(choice) selected[choice == since] { (choice) } }
                @if !TIME_RANGES.contains(&since) { option value=(since) selected { (oncely_core::shown::escape_value(since)) } }
            }
            label for="consumer" { "Consumer" }
            select #consumer name="consumer" {
                option value="" { "any" }
                @for name in consumers { option value=(name) selected[query.consumer.as_deref() == Some(name)] { (oncely_core::shown::escape_value(name)) } }
            }
            label for="reason" { "Reason" }
            select #reason name="reason" {
                option value="" { "any" }
                @for name in reasons { option value=(name) selected[query.reason.as_deref() == Some(name)] { (oncely_core::shown::escape_value(name)) } }
            }
            label for="tenant" { "Tenant" }
            input #tenant type="text" name="tenant" value=(query.tenant.as_deref().unwrap_or_default()) size="10";
            label for="key" { "Key" }
            input #key type="text" name="key" value=(query.key.as_deref().unwrap_or_default()) spellcheck="false";
            button { "Show" }
        }
    }
}

fn summary(groups: &[LetterGroup]) -> Markup {
    let waiting: i64 = groups.iter().map(|group| group.waiting + group.requeueing).sum();
    let open = groups.iter().filter(|group| group.waiting + group.requeueing > 0).count();
    html! {
        p.lead {
            @match (waiting, groups.len()) {
                (0, 0) => "No dead letter in this time.",
                (0, _) => "None waiting: all have been requeued or discarded.",
                (1, _) => "1 waiting.",
                (count, _) => { (format_number(count)) " waiting in " (format_count(open, "group")) "." },
            }
        }
    }
}

fn table(
    request: &PageRequest,
    query: &LetterQuery,
    groups: &[LetterGroup],
    trends: &[LetterTrend],
    now: DateTime<Utc>,
    may_change: bool,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Groups" {
            table #groups.rows {
                caption.unseen { "Dead letters by what failed alike: reason, SQLSTATE and detail without what differs from message to message" }
                thead {
                    tr {
                        th scope="col" { "Reason" } th scope="col" { "SQLSTATE" } th.wide scope="col" { "Latest detail" } th scope="col" { "Consumer" }
                        th.number scope="col" { "Waiting" } th scope="col" { "First" } th scope="col" { "Last" } th scope="col" { "Trend" }
                        th scope="col" title="Of those that were requeued" { "Came back" } th scope="col" { span.unseen { "What to do" } }
                    }
                }
                tbody {
                    @for (index, group) in groups.iter().enumerate() { (row(request, query, group, trends, now, may_change, index)) }
                }
            }
        }
    }
}

fn row(
    request: &PageRequest,
    query: &LetterQuery,
    group: &LetterGroup,
    trends: &[LetterTrend],
    now: DateTime<Utc>,
    may_change: bool,
    index: usize,
) -> Markup {
    let group_query = LetterQuery {
        group: Some(group.failure_group.clone()),
        consumer: Some(group.consumer.clone()),
        reason: None,
        ..query.clone()
    };
    let waiting = group.waiting + group.requeueing;
    let requeued = group.requeued + group.came_back;
    html! {
        tr {
            th scope="row" { a id=(format!("group-{index}")) href=(group_query.link(request, "/failed/letters")) { (text(&group.reason)) } }
            td data-label="SQLSTATE" { (text(group.error_code.as_deref().unwrap_or("–"))) }
            td.wide { (text(group.detail.as_deref().unwrap_or_default())) }
            td.keys data-label="Consumer" { (text(&group.consumer)) }
            td.number data-label="Waiting" { b { (format_number(waiting)) } @if group.requeueing > 0 { " " span.look title="A requeue was broken off: requeue again" { "(" (group.requeueing) " half done)" } } }
            td data-label="First" { (ago(group.first_at, now)) }
            td data-label="Last" { (ago(group.last_at, now)) }
            td { (spark("Dead letters", "dead", &trend_values(group, trends))) }
            td data-label=[(requeued > 0).then_some("Came back")] {
                @if requeued > 0 { (format_number(group.came_back)) " of " (format_number(requeued)) }
                @if group.discarded > 0 { " " span.quiet { (format_number(group.discarded)) " discarded" } }
            }
            td.do {
                @if waiting > 0 && may_change {
                    @if group.reason == Reason::KeyConflict.as_str() {
                        span.quiet title="Their key came before with another payload, so they would be refused again: publish them under a key of their own" { "can't be requeued" }
                    } @else {
                        a.button id=(format!("requeue-{index}")) href=(group_query.link(request, "/failed/plan").with("change", "requeue")) { "Requeue…" }
                    }
                    " " a id=(format!("discard-{index}")) href=(group_query.link(request, "/failed/plan").with("change", "discard")) { "Discard…" }
                }
            }
        }
    }
}

/// Returns the number of a group's letters in each part of the time range.
fn trend_values(group: &LetterGroup, trends: &[LetterTrend]) -> Vec<f64> {
    let mut values = vec![0.0; usize::try_from(TREND_INTERVALS).unwrap_or(0)];
    let own =
        |trend: &&LetterTrend| trend.consumer == group.consumer && trend.failure_group == group.failure_group;
    for trend in trends.iter().filter(own) {
        if let Some(value) = usize::try_from(trend.part).ok().and_then(|part| values.get_mut(part)) {
            #[allow(clippy::cast_precision_loss)] // counts below 2^53
            let number = trend.count as f64;
            *value += number;
        }
    }
    values
}

/// Renders the operations begun in this console.
fn operations(request: &PageRequest, now: DateTime<Utc>) -> Markup {
    let all = request.app.operations.all();
    html! {
        @if !all.is_empty() {
            section aria-labelledby="operations-title" {
                h2 #operations-title { "Operations of this console" }
                ul.actions { @for operation in all { li { (operation_line(request, &operation, now)) } } }
            }
        }
    }
}

fn operation_line(request: &PageRequest, operation: &Operation, now: DateTime<Utc>) -> Markup {
    let progress = operation.progress();
    let link = request.link("/failed/operation").with("id", operation.id.to_string());
    html! {
        a id=(format!("operation-{}", operation.id)) href=(link) { (operation.change.verb()) " " (progress.items.len()) }
        ": " (super::operation::phase(&progress)) ", " (ago(operation.began, now)) " by " (text(&operation.actor)) ": " q { (text(operation.reason.as_deref().unwrap_or_default())) }
    }
}
