//! The table of all consumers, for Overview and Consumers.

use maud::{Markup, html};

use super::super::ask::PageRequest;
use super::super::html::{ago, count, duration, percent, rate, text};
use super::super::plot::spark;
use super::super::watch::{LATELY, RecentActivity, StatusView};
use super::consumer_state::state_sign;
use oncely_ops::overview::ConsumerOverview;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::ConsumerStats;

/// Delay in seconds after which a span has been reported.
const TOLD_AFTER: i64 = 15;

/// Returns a count of the last minute as a rate.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub(super) fn per_second(count: i64) -> f64 {
    count as f64 / 60.0
}

/// Formats the share of duplicates in the deliveries.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub(super) fn duplicate_share(duplicates: i64, delivered: i64) -> String {
    if delivered > 0 { percent(duplicates as f64 / delivered as f64) } else { "–".to_owned() }
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

/// Renders a row for each consumer.
pub(super) fn consumers(
    ask: &PageRequest,
    view: &StatusView,
    database: &DatabaseSnapshot,
    lately: &RecentActivity,
) -> Markup {
    let all = &database.overview.consumers;
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
                        th.number scope="col" title="Of all deliveries, the share that had taken effect before" { "Dup." }
                        th.number scope="col" title="Half of the deliveries were settled within" { "p50" }
                        th.number scope="col" title="99 % of the deliveries were settled within" { "p99" }
                        @if !database.overview.leases.is_empty() { th.number scope="col" title="Keys that runs hold by leases, for effects outside PostgreSQL" { "Held" } }
                        th scope="col" { "Last completion" }
                        th scope="col" { "15 min" }
                    }
                }
                tbody {
                    @for one in all { (row(ask, view, database, lately, one)) }
                    @if all.is_empty() { tr { td.empty colspan="13" { "No consumer is configured, and no worker has started here." } } }
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
    one: &ConsumerOverview,
) -> Markup {
    let name = one.consumer.as_str();
    let queues = view.picture.queues(name);
    let summed = |of: fn(&oncely_ops::overview::QueueState) -> Option<u64>| {
        queues.iter().filter_map(|state| of(state)).reduce(u64::saturating_add)
    };
    let shown = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), count);
    let unacknowledged = (one.workers > 0).then_some(one.inflight);
    let dead = queues.iter().map(|state| database.dead(&state.queue)).reduce(u64::saturating_add);
    let within = |quantile: Option<f64>| quantile.map_or_else(|| "–".to_owned(), duration);
    let link = ask.link("/consumer").with("name", name);
    html! {
        tr {
            th scope="row" { a id=(format!("consumer-{}", anchor(name))) href=(link) { (text(name)) } }
            td { (state_sign(one.with_queues(&queues).state)) }
            td.number { (shown(summed(|state| state.ready.map(u64::from)))) }
            td.number { (shown(unacknowledged)) }
            td.number { (shown(summed(|state| Some(state.retrying)))) }
            td.number { (shown(dead)) }
            td.number { (rate(per_second(one.done))) }
            td.number { (duplicate_share(one.duplicates, one.delivered)) }
            td.number { (within(one.p50)) }
            td.number { (within(one.p99)) }
            @if !database.overview.leases.is_empty() {
                td.number {
                    @if one.held > 0 {
                        a id=(format!("held-{}", anchor(name))) href=(ask.link("/leases").with("consumer", name)) { (count(one.held)) }
                        @if one.held_over > 0 { " " span.look { (count(one.held_over)) " over" } }
                    } @else { "0" }
                }
            }
            td { @match view.picture.completed_at(name) { Some(at) => (ago(at, database.now)), None => span.quiet { "none known" } } }
            td { (spark("Done", "done", &recent_counts(lately, Some(name), |stats| stats.completed + stats.refused))) }
        }
    }
}

/// Returns a form of a name that is valid in an id.
pub(super) fn anchor(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..12].to_owned()
}
