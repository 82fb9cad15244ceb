//! Metrics of a consumer.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::OTHER;
use oncely_config::ConsumerSettings;
use oncely_core::fault::FaultClass;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::reason::Reason;
use oncely_core::retry::rung_name;

oncely_core::words! {
    array;
    /// A stage of a batch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Stage {
        Prepare = "prepare",
        Precheck = "precheck",
        Claim = "claim",
        Handle = "handle",
        Record = "record",
        Commit = "commit",
        OneStatement = "one_statement",
        Settle = "settle",
    }
}

/// Outcomes of settled deliveries, as labels.
const OUTCOMES: [&str; 6] = ["completed", "refused", "duplicate", "retried", "postponed", "dead_lettered"];

/// Results of an observer, as labels; `unidentified` is a missing or invalid identity.
const OBSERVATIONS: [&str; 5] = ["first", "duplicate", "unsure", "conflict", "unidentified"];

struct OutcomeHandles {
    messages: Counter,
    duration: Histogram,
}

/// Handles of a consumer.
pub struct ConsumerMetrics {
    deliveries: [Counter; 2],
    routes: [Counter; 2],
    outcomes: Vec<OutcomeHandles>,
    duplicates: [Counter; 3],
    dead_letters: Vec<(Reason, Counter)>,
    retries: BTreeMap<Duration, Counter>,
    other_retries: Counter,
    faults: Vec<(FaultClass, Counter)>,
    handler: [Histogram; 2],
    stages: Vec<Histogram>,
    precheck: [Counter; 3],
    pub(crate) precheck_duration: Histogram,
    acknowledgements: [Counter; 2],
    observed: [Counter; 5],
    pub age: Histogram,
    pub crash_attempts: Counter,
    pub taken_over: Counter,
    pub fenced: Counter,
    pub commit_unknown: Counter,
    pub fallbacks: Counter,
    pub outages: Counter,
    pub batch: Histogram,
    pub inflight: Gauge,
    pub aside: Gauge,
    pub unsettled: Gauge,
    pub up: Gauge,
    pub paused_by_operator: Gauge,
    pub paused_by_environment: Gauge,
    pub failing: Gauge,
    pub contended: Gauge,
    pub last_success: Gauge,
    pub dedupe_horizon: Gauge,
}

impl std::fmt::Debug for ConsumerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerMetrics").finish_non_exhaustive()
    }
}

/// Sets the gauges of a consumer's settings.
fn set_constants(consumer: &ConsumerSettings) {
    let name = || consumer.name.as_str().to_owned();
    #[allow(clippy::cast_precision_loss)] // a few thousand
    let prefetch = (usize::from(consumer.prefetch) * consumer.queues.len()) as f64;
    gauge!("oncely_prefetch_messages", "consumer" => name()).set(prefetch);
    gauge!("oncely_redelivery_horizon_seconds", "consumer" => name()).set(consumer.horizon().as_secs_f64());
}

impl ConsumerMetrics {
    /// Registers all series of the consumer with the current recorder.
    pub fn register(consumer: &ConsumerSettings) -> Self {
        let name = consumer.name.as_str().to_owned();
        let c = || name.clone();
        set_constants(consumer);
        let retry = |delay: String| counter!("oncely_retries_total", "consumer" => c(), "delay" => delay);
        let paused =
            |cause: &'static str| gauge!("oncely_consumer_paused", "consumer" => c(), "cause" => cause);
        Self {
            deliveries: ["false", "true"]
                .map(|redelivered| counter!("oncely_deliveries_total", "consumer" => c(), "redelivered" => redelivered)),
            routes: ["forwarded", "owner"]
                .map(|route| counter!("oncely_routed_messages_total", "consumer" => c(), "route" => route)),
            outcomes: OUTCOMES
                .iter()
                .map(|outcome| OutcomeHandles {
                    messages: counter!("oncely_messages_total", "consumer" => c(), "outcome" => *outcome),
                    duration: histogram!("oncely_message_duration_seconds", "consumer" => c(), "outcome" => *outcome),
                })
                .collect(),
            duplicates: DuplicateSource::ALL
                .map(|source| counter!("oncely_duplicates_total", "consumer" => c(), "source" => source.as_str())),
            dead_letters: Reason::ALL
                .iter()
                .map(|reason| {
                    let counter =
                        counter!("oncely_dead_letters_total", "consumer" => c(), "reason" => reason.as_str());
                    (*reason, counter)
                })
                .collect(),
            retries: consumer.retry.delays.iter().map(|delay| (*delay, retry(rung_name(*delay)))).collect(),
            other_retries: retry(OTHER.to_owned()),
            faults: FaultClass::ALL
                .iter()
                .map(|class| {
                    (*class, counter!("oncely_faults_total", "consumer" => c(), "class" => class.as_str()))
                })
                .collect(),
            handler: ["ok", "failed"]
                .map(|result| histogram!("oncely_handler_duration_seconds", "consumer" => c(), "result" => result)),
            stages: Stage::ALL
                .iter()
                .map(|stage| {
                    histogram!("oncely_stage_duration_seconds", "consumer" => c(), "stage" => stage.as_str())
                })
                .collect(),
            precheck: ["hit", "miss", "error"]
                .map(|result| counter!("oncely_precheck_total", "consumer" => c(), "result" => result)),
            precheck_duration: histogram!("oncely_precheck_duration_seconds", "consumer" => c()),
            acknowledgements: ["sent", "stale"]
                .map(|result| counter!("oncely_acknowledgements_total", "consumer" => c(), "result" => result)),
            observed: OBSERVATIONS
                .map(|result| counter!("oncely_observed_messages_total", "consumer" => c(), "result" => result)),
            age: histogram!("oncely_delivery_age_seconds", "consumer" => c()),
            crash_attempts: counter!("oncely_crash_attempts_total", "consumer" => c()),
            taken_over: counter!("oncely_leases_taken_over_total", "consumer" => c()),
            fenced: counter!("oncely_leases_fenced_total", "consumer" => c()),
            commit_unknown: counter!("oncely_commit_unknown_total", "consumer" => c()),
            fallbacks: counter!("oncely_batch_fallbacks_total", "consumer" => c()),
            outages: counter!("oncely_outages_total", "consumer" => c()),
            batch: histogram!("oncely_batch_messages", "consumer" => c()),
            inflight: gauge!("oncely_inflight_messages", "consumer" => c()),
            aside: gauge!("oncely_aside_messages", "consumer" => c()),
            unsettled: gauge!("oncely_unsettled_messages", "consumer" => c()),
            up: gauge!("oncely_consumer_up", "consumer" => c()),
            paused_by_operator: paused("operator"),
            paused_by_environment: paused("environment"),
            failing: gauge!("oncely_consumer_failing", "consumer" => c()),
            contended: gauge!("oncely_consumer_contended", "consumer" => c()),
            last_success: gauge!("oncely_last_success_timestamp_seconds", "consumer" => c()),
            dedupe_horizon: gauge!("oncely_dedupe_horizon_seconds", "consumer" => c()),
        }
    }

    /// Counts a delivery.
    pub fn count_delivery(&self, redelivered: bool) {
        self.deliveries[usize::from(redelivered)].increment(1);
    }

    /// Counts a delivery that was sent to the node that keeps its tenant, or to another one.
    pub fn count_route(&self, is_to_owner: bool) {
        self.routes[usize::from(is_to_owner)].increment(1);
    }

    /// Counts an observed message, by the reason in the trail.
    pub fn count_observed(&self, reason: Option<&str>) {
        let index = match reason {
            None => 0,
            Some("duplicate") => 1,
            Some("unsure") => 2,
            Some(reason) if reason == Reason::KeyConflict.as_str() => 3,
            Some(_) => 4,
        };
        self.observed[index].increment(1);
    }

    /// Counts a settled delivery, and records the time since its arrival. An undecided one is not counted.
    pub fn count_settled(&self, outcome: &Outcome, duration: Duration) {
        let index = match outcome {
            Outcome::Completed { .. } => 0,
            Outcome::Refused { .. } => 1,
            Outcome::Duplicate(source) => {
                self.duplicates[*source as usize].increment(1);
                2
            }
            Outcome::Retried { delay, .. } => {
                self.retries.get(delay).unwrap_or(&self.other_retries).increment(1);
                3
            }
            Outcome::Postponed { .. } => 4,
            Outcome::DeadLettered { rejection, .. } => {
                if let Some((_, counter)) =
                    self.dead_letters.iter().find(|(reason, _)| *reason == rejection.reason)
                {
                    counter.increment(1);
                }
                5
            }
            // Not settled.
            Outcome::Undecided { .. } => return,
        };
        self.outcomes[index].messages.increment(1);
        self.outcomes[index].duration.record(duration);
    }

    /// Counts a failed transaction.
    pub fn count_failure(&self, class: FaultClass) {
        if let Some((_, counter)) = self.faults.iter().find(|(one, _)| *one == class) {
            counter.increment(1);
        }
    }

    /// Records the duration of a call of a handler, by its result.
    pub fn record_handler_call(&self, duration: Duration, ok: bool) {
        self.handler[usize::from(!ok)].record(duration);
    }

    /// Records the duration of a batch's stage.
    pub fn record_stage(&self, stage: Stage, duration: Duration) {
        self.stages[stage as usize].record(duration);
    }

    /// Records the duration of a query of the mirror, and counts its hits and misses; without `hits`, all `messages` as errors.
    pub fn count_precheck(&self, hits: Option<&[bool]>, messages: usize, duration: Duration) {
        self.precheck_duration.record(duration);
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        match hits {
            Some(hits) => {
                let hit_count = hits.iter().filter(|hit| **hit).count();
                self.precheck[0].increment(count(hit_count));
                self.precheck[1].increment(count(hits.len() - hit_count));
            }
            None => self.precheck[2].increment(count(messages)),
        }
    }

    /// Counts acknowledgements, sent or stale.
    pub fn count_acknowledgements(&self, messages: usize, sent: bool) {
        self.acknowledgements[usize::from(!sent)].increment(u64::try_from(messages).unwrap_or(u64::MAX));
    }
}
