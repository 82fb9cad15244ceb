//! The table of all consumers, for Overview and Consumers.

use maud::{Markup, html};

use super::super::ask::PageRequest;
use super::super::html::{ago, format_duration, format_number, format_percent, format_rate, text};
use super::super::plot::spark;
use super::super::watch::{ACTIVITY_RANGE, RecentActivity, StatusView};
use super::consumer_state::state_sign;
use oncely_ops::overview::ConsumerOverview;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::ConsumerStats;

/// Delay in seconds after which a span has been reported.
const REPORT_DELAY_SECONDS: i64 = 15;

/// Returns a count of the last minute as a rate.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub(super) fn rate_per_second(count: i64) -> f64 {
    count as f64 / 60.0
}

/// Formats the share of duplicates in the deliveries.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub(super) fn format_duplicate_share(duplicates: i64, delivered: i64) -> String {
    if delivered > 0 { format_percent(duplicates as f64 / delivered as f64) } else { "–".to_owned() }
}

/// Returns counts of the last minutes, per half minute.
pub(super) fn recent_counts(
    activity: &RecentActivity,
    consumer: Option<&str>,
    of: impl Fn(&ConsumerStats) -> i64,
) -> Vec<f64> {
    const PART_SECONDS: i64 = 30;
    let parts = usize::try_from(ACTIVITY_RANGE.num_seconds() / PART_SECONDS).unwrap_or(0);
    let until = (activity.now.timestamp() - REPORT_DELAY_SECONDS).div_euclid(10) * 10;
    let mut values = vec![0.0; parts];
    for stats in activity.stats.iter().filter(|stats| consumer.is_none_or(|name| stats.consumer == name)) {
        let parts_ago = usize::try_from((until - 1 - stats.at.timestamp()).div_euclid(PART_SECONDS));
        if let Some(value) = parts_ago
            .ok()
            .and_then(|parts_ago| parts.checked_sub(parts_ago + 1))
            .and_then(|at| values.get_mut(at))
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
    request: &PageRequest,
    view: &StatusView,
    database: &DatabaseSnapshot,
    activity: &RecentActivity,
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
                    @for overview in all { (row(request, view, database, activity, overview)) }
                    @if all.is_empty() { tr { td.empty colspan="13" { "No consumer is configured, and no worker has started here." } } }
                }
            }
        }
    }
}

fn row(
    request: &PageRequest,
    view: &StatusView,
    database: &DatabaseSnapshot,
    activity: &RecentActivity,
    overview: &ConsumerOverview,
) -> Markup {
    let name = overview.consumer.as_str();
    let queues = view.snapshot.queues(name);
    let sum_queues = |of: fn(&oncely_ops::overview::QueueState) -> Option<u64>| {
        queues.iter().filter_map(|state| of(state)).reduce(u64::saturating_add)
    };
    let shown = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), format_number);
    let unacknowledged = (overview.workers > 0).then_some(overview.inflight);
    let dead = queues.iter().map(|state| database.dead_letters(&state.queue)).reduce(u64::saturating_add);
    let format_quantile = |quantile: Option<f64>| quantile.map_or_else(|| "–".to_owned(), format_duration);
    let link = request.link("/consumer").with("name", name);
    html! {
        tr {
            th scope="row" { a id=(format!("consumer-{}", anchor(name))) href=(link) { (text(name)) } }
            td { (state_sign(overview.with_queues(&queues).state)) }
            td.number { (shown(sum_queues(|state| state.ready.map(u64::from)))) }
            td.number { (shown(unacknowledged)) }
            td.number { (shown(sum_queues(|state| Some(state.retrying)))) }
            td.number { (shown(dead)) }
            td.number { (format_rate(rate_per_second(overview.done))) }
            td.number { (format_duplicate_share(overview.duplicates, overview.delivered)) }
            td.number { (format_quantile(overview.p50)) }
            td.number { (format_quantile(overview.p99)) }
            @if !database.overview.leases.is_empty() {
                td.number {
                    @if overview.held > 0 {
                        a id=(format!("held-{}", anchor(name))) href=(request.link("/leases").with("consumer", name)) { (format_number(overview.held)) }
                        @if overview.held_over > 0 { " " span.look { (format_number(overview.held_over)) " over" } }
                    } @else { "0" }
                }
            }
            td { @match view.snapshot.completed_at(name) { Some(at) => (ago(at, database.now)), None => span.quiet { "none known" } } }
            td { (spark("Done", "done", &recent_counts(activity, Some(name), |stats| stats.completed + stats.refused))) }
        }
    }
}

/// Returns a hash of a name, which is valid in an HTML id.
pub(super) fn anchor(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..12].to_owned()
}
