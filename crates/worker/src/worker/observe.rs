//! Sets the worker's gauges, readiness and degradation every second.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::health::ConsumerReport;
use super::nodes::ClusterNodes;
use super::shared::ConsumerContext;
use oncely_config::ConsumerSettings;
use oncely_mirror::{EpochWatch, Mirror, MirrorWatch};
use oncely_postgres::Readiness;
use oncely_process::metrics::{MirrorMetrics, Server};
use oncely_process::vitals::Vitals;

/// Age of the last known epoch from which the database counts as away: it is queried four times a second.
const DATABASE_AWAY_AFTER: Duration = Duration::from_secs(5);

/// Sources of gauges and readiness.
pub(super) struct WorkerObserver {
    vitals: Arc<Vitals>,
    consumers: Vec<Arc<ConsumerContext>>,
    watch: EpochWatch,
    /// `None` unless the tables are spread over nodes.
    nodes: Option<Arc<ClusterNodes>>,
    mirror: Option<MirrorWatch>,
    metrics: MirrorMetrics,
}

impl WorkerObserver {
    /// Starts to watch the mirror until `stop`, and includes the consumers in the process's report.
    pub(super) fn start(
        vitals: &Arc<Vitals>,
        consumers: Vec<Arc<ConsumerContext>>,
        watch: EpochWatch,
        nodes: Option<Arc<ClusterNodes>>,
        mirror: Option<Mirror>,
        stop: &CancellationToken,
    ) -> Self {
        let reporting = consumers.clone();
        vitals.set_report_source(move || {
            let reports: Vec<ConsumerReport> = reporting.iter().map(|consumer| consumer.report()).collect();
            serde_json::to_value(reports).unwrap_or_default()
        });
        Self {
            vitals: Arc::clone(vitals),
            consumers,
            watch,
            nodes,
            mirror: mirror.map(|mirror| MirrorWatch::start(mirror, stop.clone())),
            metrics: vitals.with_registry(MirrorMetrics::register),
        }
    }

    /// Sets the gauges and the readiness, without waiting.
    pub(super) fn observe(&self) {
        let is_connected = self.watch.is_recent(DATABASE_AWAY_AFTER);
        self.vitals.metrics.set_connected(Server::Postgres, is_connected);
        let mut reasons = Vec::new();
        if !is_connected {
            reasons.push("PostgreSQL does not answer".to_owned());
        }
        let mut is_subscribed = false;
        for shared in &self.consumers {
            let report = shared.report();
            set_gauges(shared, &report);
            is_subscribed |= !report.condition.unacknowledged.is_empty();
            if shared.gate.is_unknown() {
                reasons.push(format!(
                    "pauses can't be read yet: it is unknown whether {} is paused",
                    shared.consumer.name
                ));
                continue;
            }
            reasons.extend(describe_unreadiness(&shared.consumer, &report));
        }
        self.vitals.metrics.set_connected(Server::Rabbitmq, is_subscribed);
        let degraded = self.mirror.as_ref().and_then(|mirror| {
            let (answers, is_skipped) = (mirror.is_answering(), mirror.is_skipped());
            self.vitals.metrics.set_connected(Server::Redis, answers);
            self.metrics.breaker_open.set(if is_skipped { 1.0 } else { 0.0 });
            let why = match (answers, is_skipped) {
                (true, false) => return None,
                (true, true) => "Redis did not answer in time, and is tried again within half a minute",
                (false, _) => "Redis does not answer",
            };
            Some(format!("{why}; only slower, PostgreSQL alone knows the duplicates"))
        });
        let nodes = self.nodes.as_ref();
        let of_nodes = nodes.map_or(0, |nodes| nodes.epoch_changes());
        self.metrics.epoch_changes.absolute(self.watch.changes() + of_nodes);
        let away = nodes.map(|nodes| nodes.away()).filter(|away| !away.is_empty());
        let away = away.map(|away| format!("nodes {away:?} do not answer; messages of their tenants wait"));
        let degraded: Vec<String> = degraded.into_iter().chain(away).collect();
        self.vitals.set_degraded((!degraded.is_empty()).then(|| degraded.join("; ")));
        self.vitals.set_readiness(match reasons.is_empty() {
            true => Readiness::Ready,
            false => Readiness::Unready(reasons.join("; ")),
        });
    }
}

/// Describes why a consumer keeps the process from being ready; `None` if it does not. A pause is no reason: an operator wants it, and
/// while it lasts no success can end a stall.
fn describe_unreadiness(consumer: &ConsumerSettings, report: &ConsumerReport) -> Option<String> {
    let name = &consumer.name;
    if report.paused.is_some() {
        return None;
    }
    if let Some(stalled) = &report.condition.stalled {
        let code = stalled.code.as_deref().unwrap_or("no SQLSTATE");
        // Not the error's text, which may be the handler's own: this is readable without a login.
        return Some(format!(
            "{name} is stalled since {:.0?} ({code}): `oncely status` says why",
            stalled.since
        ));
    }
    if let Some(failing) = &report.condition.failing {
        let code = report.condition.failed.as_ref().and_then(|failed| failed.code.as_deref());
        return Some(format!(
            "every message of {name} fails since {:.0?} ({}): `oncely status` says how",
            failing.since,
            code.unwrap_or("no SQLSTATE")
        ));
    }
    let missing: Vec<&str> = consumer
        .queues
        .iter()
        .filter(|queue| !report.condition.unacknowledged.contains_key(*queue))
        .map(String::as_str)
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{name} is not subscribed to {} (it is missing, or RabbitMQ does not answer)",
            missing.join(", ")
        )
    })
}

/// Sets a consumer's gauges by its report.
#[allow(clippy::cast_precision_loss)] // counts and seconds
fn set_gauges(shared: &ConsumerContext, report: &ConsumerReport) {
    let metrics = &shared.counters.metrics;
    let condition = &report.condition;
    let truth = |is: bool| if is { 1.0 } else { 0.0 };
    metrics.inflight.set(condition.unacknowledged.values().sum::<u64>() as f64);
    metrics.unsettled.set(report.unsettled as f64);
    metrics.up.set(truth(condition.unacknowledged.len() == shared.consumer.queues.len()));
    metrics.paused_by_operator.set(truth(report.paused.is_some()));
    metrics.paused_by_environment.set(truth(condition.stalled.is_some()));
    metrics.failing.set(truth(condition.failing.is_some()));
    metrics.contended.set(truth(condition.contended.is_some()));
    metrics.last_success.set(condition.completed_at.map_or(0.0, |at| at.timestamp_millis() as f64 / 1_000.0));
}
