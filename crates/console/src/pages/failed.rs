//! Failed: groups of similar failures, and the results of requeues.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{PageLink, ago, count, text};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::plot::spark;
use oncely_core::reason::Reason;
use oncely_core::shown;
use oncely_core::units::{self, counted};
use oncely_ops::letters::Operation;
use oncely_postgres::{self as pg, LetterFilter, LetterGroup, LetterTrend};

/// Groups per page.
const GROUPS: i64 = 100;
/// Intervals in a group's trend.
const PARTS: i32 = 24;
/// Time ranges on offer, and the default.
const SINCE: [&str; 5] = ["15m", "2h", "24h", "7d", "90d"];
const DEFAULT: &str = "7d";

/// Filter of a page, from the query.
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
    pub(super) fn from_request(ask: &PageRequest) -> Self {
        let own = |name: &str| ask.parameters.text(name);
        let [since, tenant, consumer, reason, group, key, state] =
            ["since", "tenant", "consumer", "reason", "group", "key", "state"].map(own);
        Self { since, tenant, consumer, reason, group, key, state }
    }

    /// Returns the names and values of the parameters, the state last.
    pub(super) fn parts(&self) -> [(&'static str, Option<&str>); 7] {
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
    pub(super) fn link(&self, ask: &PageRequest, path: &str) -> PageLink {
        self.parts().into_iter().fold(ask.link(path), |link, (name, value)| link.with_some(name, value))
    }

    /// Returns the filter of the database query.
    pub(super) fn filter(&self, now: DateTime<Utc>, limit: i64) -> Result<LetterFilter, PageError> {
        let since = units::since(self.since.as_deref().unwrap_or(DEFAULT), now).map_err(PageError::Wrong)?;
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

    /// Returns the equivalent flags of the command line.
    pub(super) fn flags(&self) -> String {
        let since = self.since.as_deref().or(self.key.is_none().then_some(DEFAULT));
        let [_, narrower @ .., _] = self.parts();
        shown::shell_flags(narrower.into_iter().chain([("since", since)]))
    }
}

pub(super) async fn page(ask: PageRequest) -> PageResult {
    let wanted = LetterQuery::from_request(&ask);
    let mut pooled = ask.app.pool.acquire().await?;
    let now = pooled.session.clock.now();
    let filter = wanted.filter(now, GROUPS)?;
    let connection = &mut pooled.session.connection;
    let groups = pg::letter_groups(connection, &filter).await?;
    let since = filter.since.unwrap_or(now - chrono::Duration::days(90));
    let trends = pg::letter_trends(connection, &filter, since, now, PARTS).await?;
    let may = ask.visitor.is_operator() && pooled.facts.change_letters;
    pooled.give_back();
    let mut page = Page::new(Tab::Failed, "Failed");
    page.above = html! { (form(&ask, &wanted, "/failed")) };
    page.live = html! {
        (summary(&groups))
        (table(&ask, &wanted, &groups, &trends, now, may))
        (operations(&ask, now))
    };
    page.elsewhere = EquivalentCommands {
        cli: vec![format!("oncely failed groups{}", wanted.flags())],
        sql: vec![pg::equivalent_sql::letter_groups(&LetterFilter { states: None, ..filter })],
    };
    Ok(page.into())
}

/// Renders the filter as a form, which works without JavaScript.
pub(super) fn form(ask: &PageRequest, wanted: &LetterQuery, path: &str) -> Markup {
    let since = wanted.since.as_deref().unwrap_or(DEFAULT);
    let consumers = ask.app.config.consumers.iter().map(|consumer| consumer.name.as_str());
    let mut consumers: Vec<&str> = consumers.chain(wanted.consumer.as_deref()).collect();
    consumers.sort_unstable();
    consumers.dedup();
    let mut reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    if let Some(reason) = wanted.reason.as_deref()
        && !reasons.contains(&reason)
    {
        reasons.push(reason);
    }
    html! {
        form.inline action=(ask.link(path)) role="search" {
            @if let Some(group) = &wanted.group { input type="hidden" name="group" value=(group); }
            @if let Some(state) = &wanted.state { input type="hidden" name="state" value=(state); }
            label for="since" { "Since" }
            select #since name="since" {
                @for choice in SINCE { option value=(choice) selected[choice == since] { (choice) } }
                @if !SINCE.contains(&since) { option value=(since) selected { (oncely_core::shown::value(since)) } }
            }
            label for="consumer" { "Consumer" }
            select #consumer name="consumer" {
                option value="" { "any" }
                @for name in consumers { option value=(name) selected[wanted.consumer.as_deref() == Some(name)] { (oncely_core::shown::value(name)) } }
            }
            label for="reason" { "Reason" }
            select #reason name="reason" {
                option value="" { "any" }
                @for name in reasons { option value=(name) selected[wanted.reason.as_deref() == Some(name)] { (oncely_core::shown::value(name)) } }
            }
            label for="tenant" { "Tenant" }
            input #tenant type="text" name="tenant" value=(wanted.tenant.as_deref().unwrap_or_default()) size="10";
            label for="key" { "Key" }
            input #key type="text" name="key" value=(wanted.key.as_deref().unwrap_or_default()) spellcheck="false";
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
                (some, _) => { (count(some)) " waiting in " (counted(open, "group")) "." },
            }
        }
    }
}

fn table(
    ask: &PageRequest,
    wanted: &LetterQuery,
    groups: &[LetterGroup],
    trends: &[LetterTrend],
    now: DateTime<Utc>,
    may: bool,
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
                    @for (index, group) in groups.iter().enumerate() { (row(ask, wanted, group, trends, now, may, index)) }
                }
            }
        }
    }
}

fn row(
    ask: &PageRequest,
    wanted: &LetterQuery,
    group: &LetterGroup,
    trends: &[LetterTrend],
    now: DateTime<Utc>,
    may: bool,
    index: usize,
) -> Markup {
    let own = LetterQuery {
        group: Some(group.failure_group.clone()),
        consumer: Some(group.consumer.clone()),
        reason: None,
        ..wanted.clone()
    };
    let waiting = group.waiting + group.requeueing;
    let decided = group.requeued + group.came_back;
    html! {
        tr {
            th scope="row" { a id=(format!("group-{index}")) href=(own.link(ask, "/failed/letters")) { (text(&group.reason)) } }
            td data-label="SQLSTATE" { (text(group.error_code.as_deref().unwrap_or("–"))) }
            td.wide { (text(group.detail.as_deref().unwrap_or_default())) }
            td.keys data-label="Consumer" { (text(&group.consumer)) }
            td.number data-label="Waiting" { b { (count(waiting)) } @if group.requeueing > 0 { " " span.look title="A requeue was broken off: requeue again" { "(" (group.requeueing) " half done)" } } }
            td data-label="First" { (ago(group.first_at, now)) }
            td data-label="Last" { (ago(group.last_at, now)) }
            td { (spark("Dead letters", "dead", &trend_values(group, trends))) }
            td data-label=[(decided > 0).then_some("Came back")] {
                @if decided > 0 { (count(group.came_back)) " of " (count(decided)) }
                @if group.discarded > 0 { " " span.quiet { (count(group.discarded)) " discarded" } }
            }
            td.do {
                @if waiting > 0 && may {
                    @if group.reason == Reason::KeyConflict.as_str() {
                        span.quiet title="Their key came before with another payload, so they would be refused again: publish them under a key of their own" { "can't be requeued" }
                    } @else {
                        a.button id=(format!("requeue-{index}")) href=(own.link(ask, "/failed/plan").with("change", "requeue")) { "Requeue…" }
                    }
                    " " a id=(format!("discard-{index}")) href=(own.link(ask, "/failed/plan").with("change", "discard")) { "Discard…" }
                }
            }
        }
    }
}

fn trend_values(group: &LetterGroup, trends: &[LetterTrend]) -> Vec<f64> {
    let mut values = vec![0.0; usize::try_from(PARTS).unwrap_or(0)];
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
fn operations(ask: &PageRequest, now: DateTime<Utc>) -> Markup {
    let all = ask.app.operations.all();
    html! {
        @if !all.is_empty() {
            section aria-labelledby="operations-title" {
                h2 #operations-title { "Operations of this console" }
                ul.actions { @for operation in all { li { (operation_line(ask, &operation, now)) } } }
            }
        }
    }
}

fn operation_line(ask: &PageRequest, operation: &Operation, now: DateTime<Utc>) -> Markup {
    let progress = operation.progress();
    let link = ask.link("/failed/operation").with("id", operation.id.to_string());
    html! {
        a id=(format!("operation-{}", operation.id)) href=(link) { (operation.change.verb()) " " (progress.items.len()) }
        ": " (super::operation::phase(&progress)) ", " (ago(operation.began, now)) " by " (text(&operation.actor)) ": " q { (text(operation.reason.as_deref().unwrap_or_default())) }
    }
}
