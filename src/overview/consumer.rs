//! How a consumer stands.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::process::Seen;
use super::recent::Recent;
use crate::pg::{HeldCount, KnownConsumer, Pause};
use crate::units::total;
use crate::worker::{Report, Trouble};

/// What a consumer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConsumerState {
    /// All that is tried fails for a reason that is no message's.
    Stalled,
    /// A queue of it does not exist, as far as the broker was asked.
    NoQueue,
    /// Its last twenty new messages all failed, and are tried again.
    Failing,
    /// Workers live, and none is subscribed, as far as the broker was asked.
    Unattended,
    /// Nobody takes its messages.
    #[default]
    NoWorker,
    /// Somebody has paused it.
    Paused,
    /// It works, in turns: its own transactions collide.
    Contended,
    /// It works.
    Running,
}

impl ConsumerState {
    /// For people.
    pub(crate) fn shown(self) -> &'static str {
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

/// A consumer with what it did in the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ConsumerOverview {
    pub(crate) consumer: String,
    pub(crate) state: ConsumerState,
    /// Why it does not run.
    pub(crate) reason: Option<String>,
    /// Who has paused it.
    pub(crate) paused_by: Option<String>,
    /// Since when it is paused, stalled or contended, or fails.
    pub(crate) since: Option<DateTime<Utc>>,
    /// When a pause ends by itself.
    pub(crate) until: Option<DateTime<Utc>>,
    /// The configuration at hand has it; `None` where there is none.
    pub(crate) configured: Option<bool>,
    /// Workers that live and have it.
    pub(crate) workers: usize,
    /// Deliveries in their hands.
    pub(crate) inflight: u64,
    /// Keys that runs hold by leases.
    pub(crate) held: i64,
    /// Of those: the lease is over, and nobody has taken the key over.
    pub(crate) held_over: i64,
    /// Deliveries of the last minute.
    pub(crate) delivered: i64,
    /// Those that were completed or refused.
    pub(crate) done: i64,
    pub(crate) duplicates: i64,
    pub(crate) retried: i64,
    pub(crate) dead_lettered: i64,
    /// Half of the deliveries of the last minute were settled within so many seconds.
    pub(crate) p50: Option<f64>,
    /// 99 of 100 were.
    pub(crate) p99: Option<f64>,
    /// `done` of the last six spans of ten seconds, the oldest first.
    pub(crate) done_by_span: Vec<i64>,
    /// The message that failed last, where that was in the last minute.
    pub(crate) failed: Option<Trouble>,
    /// When a message took effect last, as far as a living worker knows.
    pub(crate) completed_at: Option<DateTime<Utc>>,
    /// For how many seconds keys are remembered; `None` where no worker has started with it.
    pub(crate) retention: Option<f64>,
    /// The oldest copy that may still come, in seconds.
    pub(crate) redelivery_horizon: Option<f64>,
}

/// A message that failed before is no news.
const LATELY: TimeDelta = TimeDelta::minutes(1);

/// All that are configured, known to the database, or had by a worker; by name.
pub(super) fn overviews(
    configured: Option<&[String]>,
    known: &[KnownConsumer],
    pauses: &[Pause],
    processes: &[Seen],
    recents: &BTreeMap<String, Recent>,
    leases: &[HeldCount],
    now: DateTime<Utc>,
) -> Vec<ConsumerOverview> {
    let reports: Vec<&Report> =
        processes.iter().filter(|seen| !seen.silent).flat_map(|seen| &seen.reports).collect();
    let mut names: BTreeSet<&str> = configured.unwrap_or_default().iter().map(String::as_str).collect();
    names.extend(known.iter().map(|known| known.consumer.as_str()));
    names.extend(reports.iter().map(|report| report.consumer.as_str()));
    let nothing = Recent::default();
    names
        .into_iter()
        .map(|name| {
            let own: Vec<&Report> =
                reports.iter().copied().filter(|report| report.consumer == name).collect();
            let pause = pauses.iter().find(|pause| pause.consumer == name);
            let known = known.iter().find(|known| known.consumer == name);
            let recent = recents.get(name).unwrap_or(&nothing);
            let held = leases.iter().find(|held| held.consumer == name);
            ConsumerOverview {
                configured: configured.map(|names| names.iter().any(|other| other == name)),
                workers: own.len(),
                inflight: total(
                    own.iter().flat_map(|report| report.condition.unacknowledged.values().copied()),
                ),
                held: held.map_or(0, |held| held.held),
                held_over: held.map_or(0, |held| held.over),
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
                    .filter(|failed| now - failed.since < LATELY)
                    .max_by_key(|failed| failed.since),
                completed_at: own.iter().filter_map(|report| report.condition.completed_at).max(),
                retention: known.map(|known| known.retention.as_secs_f64()),
                redelivery_horizon: known.map(|known| known.redelivery_horizon.as_secs_f64()),
                ..standing(name, pause, &own)
            }
        })
        .collect()
}

/// What is told of a consumer whose transactions collide.
pub(crate) const CONTENDED: &str = "its transactions meet each other's locks on rows that many messages update, or another application's; its batches run one at a time \
     (the book: Hot rows)";

/// Its state, and why.
fn standing(name: &str, pause: Option<&Pause>, reports: &[&Report]) -> ConsumerOverview {
    let one = ConsumerOverview { consumer: name.to_owned(), ..ConsumerOverview::default() };
    if let Some(pause) = pause {
        return ConsumerOverview {
            state: ConsumerState::Paused,
            reason: Some(pause.reason.clone()),
            paused_by: Some(pause.paused_by.clone()),
            since: Some(pause.paused_at),
            until: pause.paused_until,
            ..one
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
            ..one
        };
    }
    let failing = reports.iter().filter(|report| report.condition.failing.is_some());
    let since = |report: &&Report| report.condition.failing.as_ref().map(|failing| failing.since);
    match failing.min_by_key(|report| since(report)) {
        Some(report) => ConsumerOverview {
            state: ConsumerState::Failing,
            reason: report.condition.failed.as_ref().map(|failed| failed.text.clone()),
            since: since(report),
            ..one
        },
        None if reports.is_empty() => ConsumerOverview { state: ConsumerState::NoWorker, ..one },
        None => {
            let contended = reports.iter().filter_map(|report| report.condition.contended.as_ref());
            match contended.map(|contended| contended.since).min() {
                Some(since) => ConsumerOverview {
                    state: ConsumerState::Contended,
                    reason: Some(CONTENDED.to_owned()),
                    since: Some(since),
                    ..one
                },
                None => ConsumerOverview { state: ConsumerState::Running, ..one },
            }
        }
    }
}
