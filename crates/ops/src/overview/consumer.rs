//! The state of a consumer.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::process::ProcessOverview;
use super::queue::QueueState;
use super::recent::RecentCounts;
use oncely_core::units::total;
use oncely_postgres::{HeldCount, KnownConsumer, Pause};
use oncely_worker::worker::{ConsumerReport, FailureNotice};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsumerState {
    /// Every message fails, for a reason outside the messages.
    Stalled,
    /// One of its queues does not exist, if the broker was queried.
    NoQueue,
    /// Its last twenty new messages all failed, and are retried.
    Failing,
    /// Workers live, but none is subscribed, if the broker was queried.
    Unattended,
    /// No live worker has it.
    #[default]
    NoWorker,
    /// An operator has paused it.
    Paused,
    /// It works, one batch at a time: its own transactions conflict.
    Contended,
    /// It works.
    Running,
}

impl ConsumerState {
    /// Returns the name of the state for display.
    pub fn label(self) -> &'static str {
        match self {
            Self::Stalled => "STALLED",
            Self::NoQueue => "NO QUEUE",
            Self::Failing => "FAILING",
            Self::Unattended => "UNATTENDED",
            Self::NoWorker => "NO WORKER",
            Self::Paused => "PAUSED",
            Self::Contended => "contended",
            Self::Running => "running",
        }
    }
}

/// A consumer with its work of the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ConsumerOverview {
    pub consumer: String,
    pub state: ConsumerState,
    /// Reason why it does not run.
    pub reason: Option<String>,
    /// The operator who has paused it.
    pub paused_by: Option<String>,
    /// Start of the pause, stall, contention or failure.
    pub since: Option<DateTime<Utc>>,
    /// Automatic end of a pause.
    pub until: Option<DateTime<Utc>>,
    /// Whether the given configuration has it; `None` without a configuration.
    pub configured: Option<bool>,
    /// Live workers that have it.
    pub workers: usize,
    /// Deliveries that they hold.
    pub inflight: u64,
    /// Keys that runs hold by leases.
    pub held: i64,
    /// Of those: the lease has expired, and no other run has taken the key over.
    pub held_over: i64,
    /// Deliveries of the last minute.
    pub delivered: i64,
    /// Of those: completed or refused.
    pub done: i64,
    pub duplicates: i64,
    pub retried: i64,
    pub dead_lettered: i64,
    /// Median time to settle a delivery of the last minute, in seconds.
    pub p50: Option<f64>,
    /// 99th percentile of that time, in seconds.
    pub p99: Option<f64>,
    /// `done` of the last six spans of ten seconds, the oldest first.
    pub done_by_span: Vec<i64>,
    /// The last message that failed; `None` if none did within the last minute.
    pub failed: Option<FailureNotice>,
    /// When the last message took effect, as far as a live worker knows.
    pub completed_at: Option<DateTime<Utc>>,
    /// How long keys are remembered, in seconds; `None` if no worker has started with it.
    pub retention: Option<f64>,
    /// Greatest age of a copy that can still arrive, in seconds.
    pub redelivery_horizon: Option<f64>,
}

impl ConsumerOverview {
    /// Adds facts that only the broker has: a missing queue, or a queue without a subscription. `queues` are its own, if the broker
    /// answers.
    #[must_use]
    pub fn with_queues(&self, queues: &[&QueueState]) -> Self {
        let overview = self.clone();
        // Both are more specific than the broker's facts.
        if matches!(overview.state, ConsumerState::Paused | ConsumerState::Stalled) {
            return overview;
        }
        if let Some(missing) = queues.iter().find_map(|queue| queue.missing.first()) {
            let reason = format!("the queue {missing} does not exist (oncely topology apply)");
            return Self { state: ConsumerState::NoQueue, reason: Some(reason), since: None, ..overview };
        }
        let unattended = queues.iter().find(|queue| queue.subscriptions == Some(0));
        match unattended.filter(|_| overview.state != ConsumerState::NoWorker) {
            Some(queue) => {
                let reason = format!("no worker is subscribed to the queue {}", queue.queue);
                Self { state: ConsumerState::Unattended, reason: Some(reason), since: None, ..overview }
            }
            None => overview,
        }
    }
}

/// Maximum age of a failure that is shown.
const MAX_SHOWN_AGE: TimeDelta = TimeDelta::minutes(1);

/// Builds the overviews of all consumers that are configured, known to the database, or on a worker; by name.
pub(super) fn build_overviews(
    configured: Option<&[String]>,
    known: &[KnownConsumer],
    pauses: &[Pause],
    processes: &[ProcessOverview],
    recents: &BTreeMap<String, RecentCounts>,
    leases: &[HeldCount],
    now: DateTime<Utc>,
) -> Vec<ConsumerOverview> {
    let reports: Vec<&ConsumerReport> =
        processes.iter().filter(|process| !process.silent).flat_map(|process| &process.reports).collect();
    let mut names: BTreeSet<&str> = configured.unwrap_or_default().iter().map(String::as_str).collect();
    names.extend(known.iter().map(|known| known.consumer.as_str()));
    names.extend(reports.iter().map(|report| report.consumer.as_str()));
    let nothing = RecentCounts::default();
    names
        .into_iter()
        .map(|name| {
            let own: Vec<&ConsumerReport> =
                reports.iter().copied().filter(|report| report.consumer == name).collect();
            let pause = pauses.iter().find(|pause| pause.consumer == name);
            let known = known.iter().find(|known| known.consumer == name);
            let recent = recents.get(name).unwrap_or(&nothing);
            let lease_count = leases.iter().find(|lease_count| lease_count.consumer == name);
            ConsumerOverview {
                configured: configured.map(|names| names.iter().any(|other| other == name)),
                workers: own.len(),
                inflight: total(
                    own.iter().flat_map(|report| report.condition.unacknowledged.values().copied()),
                ),
                held: lease_count.map_or(0, |lease_count| lease_count.held),
                held_over: lease_count.map_or(0, |lease_count| lease_count.over),
                delivered: recent.delivered,
                done: recent.done,
                duplicates: recent.duplicates,
                retried: recent.retried,
                dead_lettered: recent.dead_lettered,
                p50: recent.quantile(0.5),
                p99: recent.quantile(0.99),
                done_by_span: recent.done_by_span.to_vec(),
                failed: own
                    .iter()
                    .filter_map(|report| report.condition.failed.clone())
                    .filter(|failed| now - failed.since < MAX_SHOWN_AGE)
                    .max_by_key(|failed| failed.since),
                completed_at: own.iter().filter_map(|report| report.condition.completed_at).max(),
                retention: known.map(|known| known.retention.as_secs_f64()),
                redelivery_horizon: known.map(|known| known.redelivery_horizon.as_secs_f64()),
                ..build_state_overview(name, pause, &own)
            }
        })
        .collect()
}

/// Explanation of a consumer with conflicting transactions.
pub const CONTENTION_TEXT: &str = "its transactions meet each other's locks on rows that many messages update, or another application's; its batches run one at a time \
     (the book: Hot rows)";

/// Returns the overview of a consumer with its state, the reason and the times of the state; the rest is empty.
fn build_state_overview(name: &str, pause: Option<&Pause>, reports: &[&ConsumerReport]) -> ConsumerOverview {
    let overview = ConsumerOverview { consumer: name.to_owned(), ..ConsumerOverview::default() };
    if let Some(pause) = pause {
        return ConsumerOverview {
            state: ConsumerState::Paused,
            reason: Some(pause.reason.clone()),
            paused_by: Some(pause.paused_by.clone()),
            since: Some(pause.paused_at),
            until: pause.paused_until,
            ..overview
        };
    }
    let stalled = reports.iter().filter_map(|report| report.condition.stalled.as_ref());
    if let Some(stalled) = stalled.min_by_key(|stalled| stalled.since) {
        return ConsumerOverview {
            state: ConsumerState::Stalled,
            reason: Some(match &stalled.code {
                Some(code) => format!("{} (SQLSTATE {code})", stalled.text),
                None => stalled.text.clone(),
            }),
            since: Some(stalled.since),
            ..overview
        };
    }
    let failing = reports.iter().filter(|report| report.condition.failing.is_some());
    let since = |report: &&ConsumerReport| report.condition.failing.as_ref().map(|failing| failing.since);
    match failing.min_by_key(|report| since(report)) {
        Some(report) => ConsumerOverview {
            state: ConsumerState::Failing,
            reason: report.condition.failed.as_ref().map(|failed| failed.text.clone()),
            since: since(report),
            ..overview
        },
        None if reports.is_empty() => ConsumerOverview { state: ConsumerState::NoWorker, ..overview },
        None => {
            let contended = reports.iter().filter_map(|report| report.condition.contended.as_ref());
            match contended.map(|contended| contended.since).min() {
                Some(since) => ConsumerOverview {
                    state: ConsumerState::Contended,
                    reason: Some(CONTENTION_TEXT.to_owned()),
                    since: Some(since),
                    ..overview
                },
                None => ConsumerOverview { state: ConsumerState::Running, ..overview },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(missing: &[&str], subscriptions: u32) -> QueueState {
        QueueState {
            consumer: "payments".to_owned(),
            queue: "payments".to_owned(),
            ready: Some(0),
            retrying: 0,
            dead: Some(0),
            subscriptions: Some(subscriptions),
            missing: missing.iter().copied().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_missing_or_unattended_queue_is_the_state_of_a_consumer_that_is_neither_paused_nor_stalled() {
        let with = |state, queue: &QueueState| {
            ConsumerOverview { state, ..ConsumerOverview::default() }.with_queues(&[queue]).state
        };
        let (fine, missing, free) = (queue(&[], 1), queue(&["payments.dead"], 1), queue(&[], 0));
        for state in [ConsumerState::Running, ConsumerState::Failing, ConsumerState::Contended] {
            assert_eq!(with(state, &fine), state);
            assert_eq!(with(state, &missing), ConsumerState::NoQueue);
            assert_eq!(with(state, &free), ConsumerState::Unattended);
        }
        assert_eq!(with(ConsumerState::NoWorker, &missing), ConsumerState::NoQueue);
        assert_eq!(with(ConsumerState::NoWorker, &free), ConsumerState::NoWorker, "none could be subscribed");
        for state in [ConsumerState::Paused, ConsumerState::Stalled] {
            assert_eq!((with(state, &missing), with(state, &free)), (state, state));
        }
    }
}
