//! The table of all consumers, for Overview and Consumers.

use maud::{Markup, html};

use super::super::ask::PageRequest;
use super::super::html::{ago, count, duration, percent, rate, text};
use super::super::plot::spark;
use super::super::series::{Span, sum};
use super::super::watch::{LATELY, RecentActivity, StatusView};
use super::standing::ConsumerIssue;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::ConsumerStats;

/// The time range of the rates in seconds: the last minute that was reported.
const MINUTE: i64 = 60;
/// Delay in seconds after which a span has been reported.
const TOLD_AFTER: i64 = 15;

/// Returns the work of the last reported minute.
pub(super) fn minute(lately: &RecentActivity, consumer: Option<&str>) -> Span {
    let now = lately.now.timestamp();
    let is_recent = |stats: &&ConsumerStats| {
        let at = stats.at.timestamp();
        at >= now - MINUTE - TOLD_AFTER && at < now - TOLD_AFTER
    };
    let own = |stats: &&ConsumerStats| consumer.is_none_or(|name| stats.consumer == name);
    sum(lately.stats.iter().filter(is_recent).filter(own))
}

/// Returns a count of the last minute as a rate.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub(super) fn per_second(count: i64) -> f64 {
    count as f64 / MINUTE as f64
}

/// Returns counts of the last minutes, per half minute.
pub(super) fn recent_counts(
    lately: &RecentActivity,
    consumer: Option<&str>,
    of: impl Fn(&ConsumerStats) -> i64,
) -> Vec<f64> {
    const PART: i64 = 30;
    let parts = usize::try_from(LATELY.num_seconds() / PART).unwrap_or(0);
    let until = (lately.now.timestamp() - TOLD_AFTER).div_euclid(10) * 10;
    let mut values = vec![0.0; parts];
    for stats in lately.stats.iter().filter(|stats| consumer.is_none_or(|name| stats.consumer == name)) {
        let back = usize::try_from((until - 1 - stats.at.timestamp()).div_euclid(PART));
        if let Some(value) =
            back.ok().and_then(|back| parts.checked_sub(back + 1)).and_then(|at| values.get_mut(at))
        {
            #[allow(clippy::cast_precision_loss)] // counts below 2^53
            let count = of(stats) as f64;
            *value += count;
        }
    }
    values
}

/// Returns the names of all consumers that are configured here or known to the database.
pub(super) fn names(ask: &PageRequest, database: &DatabaseSnapshot, lately: &RecentActivity) -> Vec<String> {
    let configured = ask.app.config.consumers.iter().map(|consumer| consumer.name.as_str());
    let seen = lately.stats.iter().map(|stats| stats.consumer.as_str());
    let paused = database.pauses.iter().map(|pause| pause.consumer.as_str());
    let mut names: Vec<String> = configured.chain(seen).chain(paused).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// Renders a row for each consumer.
pub(super) fn consumers(
    ask: &PageRequest,
    view: &StatusView,
    database: &DatabaseSnapshot,
    lately: &RecentActivity,
) -> Markup {
    let names = names(ask, database, lately);
    html! {
        div.scroll tabindex="0" role="group" aria-label="Consumers" {
            table #consumers {
                caption.unseen { "Consumers: rates of the last minute" }
                thead {
                    tr {
                        th scope="col" { "Consumer" }
                        th scope="col" { "State" }
                        th.number scope="col" title="Messages that wait in its queues" { "Ready" }
                        th.number scope="col" title="Deliveries in workers' hands" { "Unacked" }
                        th.number scope="col" title="Messages that wait for their next try" { "Retrying" }
                        th.number scope="col" title="Messages in its dead-letter queues" { "Dead" }
                        th.number scope="col" { "Done/s" }
                        th.number scope="col" title="Of all that was decided, how much had taken effect before" { "Dup." }
                        th.number scope="col" title="Half of the deliveries were settled within" { "p50" }
                        th.number scope="col" title="99 % of the deliveries were settled within" { "p99" }
                        @if !database.leases.is_empty() { th.number scope="col" title="Keys that runs hold by leases, for effects outside PostgreSQL" { "Held" } }
                        th scope="col" { "Last completion" }
                        th scope="col" { "15 min" }
                    }
                }
                tbody {
                    @for name in &names { (row(ask, view, database, lately, name)) }
                    @if names.is_empty() { tr { td.empty colspan="13" { "No consumer is configured, and no worker has started here." } } }
                }
            }
        }
    }
}

fn row(
    ask: &PageRequest,
    view: &StatusView,
    database: &DatabaseSnapshot,
    lately: &RecentActivity,
    name: &str,
) -> Markup {
    let picture = &view.picture;
    let queues: Vec<_> = picture
        .rabbitmq
        .as_deref()
        .unwrap_or_default()
        .iter()
        .filter(|state| state.consumer == name)
        .collect();
    let summed = |of: fn(&oncely_ops::status::QueueState) -> Option<u64>| {
        queues.iter().filter_map(|state| of(state)).reduce(u64::saturating_add)
    };
    let shown = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), count);
    let unacknowledged: Option<u64> = queues
        .iter()
        .filter_map(|state| picture.unacknowledged(name, &state.queue))
        .reduce(u64::saturating_add);
    let dead = queues.iter().map(|state| database.dead(&state.queue)).reduce(u64::saturating_add);
    let minute = minute(lately, Some(name));
    let within = |share: f64| minute.quantile(share).map_or_else(|| "–".to_owned(), duration);
    let link = ask.link("/consumer").with("name", name);
    html! {
        tr {
            th scope="row" { a id=(format!("consumer-{}", anchor(name))) href=(link) { (text(name)) } }
            td { (ConsumerIssue::assess(picture, database, name).sign()) }
            td.number { (shown(summed(|state| state.ready.map(u64::from)))) }
            td.number { (shown(unacknowledged)) }
            td.number { (shown(summed(|state| Some(state.retrying)))) }
            td.number { (shown(dead)) }
            td.number { (rate(per_second(minute.done))) }
            td.number { (minute.duplicate_share().map_or_else(|| "–".to_owned(), percent)) }
            td.number { (within(0.5)) }
            td.number { (within(0.99)) }
            @if !database.leases.is_empty() {
                td.number {
                    @if let Some(held) = database.held(name) {
                        a id=(format!("held-{}", anchor(name))) href=(ask.link("/leases").with("consumer", name)) { (count(held.held)) }
                        @if held.over > 0 { " " span.look { (count(held.over)) " over" } }
                    } @else { "0" }
                }
            }
            td { @match picture.completed_at(name) { Some(at) => (ago(at, database.now)), None => span.quiet { "none known" } } }
            td { (spark("Done", "done", &recent_counts(lately, Some(name), |stats| stats.completed + stats.refused))) }
        }
    }
}

/// Returns a form of a name that is valid in an id.
pub(super) fn anchor(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..12].to_owned()
}
