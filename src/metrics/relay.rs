//! What a relay counts.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::OTHER;
use crate::config::Config;

/// Where a relay brings things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Mirror records.
    Redis,
    /// Events.
    Rabbitmq,
}

impl Target {
    pub(crate) const ALL: [Self; 2] = [Self::Redis, Self::Rabbitmq];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// What became of a record or event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayResult {
    Done,
    Failed,
    Parked,
}

impl RelayResult {
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Parked];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Parked => "parked",
        }
    }
}

/// Handles of one target.
#[derive(Debug)]
pub(crate) struct TargetMetrics {
    results: [Counter; 3],
    pub(crate) backlog: Gauge,
    pub(crate) oldest_age: Gauge,
    pub(crate) lag: Histogram,
    pub(crate) duration: Histogram,
    pub(crate) last_success: Gauge,
}

impl TargetMetrics {
    pub(crate) fn count(&self, result: RelayResult, number: u64) {
        self.results[result as usize].increment(number);
    }
}

/// Handles by a name of the configuration; what is not in it is counted together.
#[derive(Debug)]
pub(crate) struct Named<T> {
    known: BTreeMap<String, T>,
    other: T,
}

impl<T> Named<T> {
    fn new<'a>(names: impl Iterator<Item = &'a str>, make: impl Fn(String) -> T) -> Self {
        let known = names.map(|name| (name.to_owned(), make(name.to_owned()))).collect();
        Self { known, other: make(OTHER.to_owned()) }
    }

    pub(crate) fn of(&self, name: &str) -> &T {
        self.known.get(name).unwrap_or(&self.other)
    }

    /// The name under which it is told.
    pub(crate) fn name_of<'a>(&'a self, name: &'a str) -> &'a str {
        if self.known.contains_key(name) { name } else { OTHER }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &T)> {
        self.known.iter().map(|(name, one)| (name.as_str(), one)).chain([(OTHER, &self.other)])
    }
}

/// Dead letters of a consumer that wait.
#[derive(Debug)]
pub(crate) struct LetterMetrics {
    pub(crate) waiting: Gauge,
    pub(crate) oldest_age: Gauge,
}

/// Keys of a consumer that runs hold by leases.
#[derive(Debug)]
pub(crate) struct LeaseMetrics {
    pub(crate) held: Gauge,
    /// Of those: their time is over, and nobody has taken the key over.
    pub(crate) over: Gauge,
    pub(crate) oldest_age: Gauge,
}

/// A queue and those that belong to it.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    /// Of the work queue, the retry queues together, and the dead-letter queue.
    pub(crate) ready: [Gauge; 3],
    pub(crate) consumers: [Gauge; 3],
}

/// Handles of the garbage collection.
#[derive(Debug)]
pub(crate) struct GcMetrics {
    pub(crate) deleted: Named<Counter>,
    pub(crate) last_success: Gauge,
    pub(crate) duration: Histogram,
}

impl GcMetrics {
    /// Makes its series.
    pub(crate) fn new(config: &Config) -> Self {
        let consumers = config.consumers.iter().map(|consumer| consumer.name.as_str());
        Self {
            deleted: Named::new(
                consumers,
                |consumer| counter!("oncely_gc_deleted_total", "consumer" => consumer),
            ),
            last_success: gauge!("oncely_gc_last_success_timestamp_seconds"),
            duration: histogram!("oncely_gc_duration_seconds"),
        }
    }
}

/// Handles of the doctor's findings.
#[derive(Debug)]
pub(crate) struct DoctorMetrics(BTreeMap<&'static str, [Gauge; 2]>);

impl DoctorMetrics {
    /// Makes the series of these checks.
    pub(crate) fn new(checks: impl Iterator<Item = &'static str>) -> Self {
        let of = |check: &'static str| {
            let severities = ["warning", "error"];
            let gauges = severities
                .map(|severity| gauge!("oncely_doctor_findings", "check" => check, "severity" => severity));
            (check, gauges)
        };
        Self(checks.map(of).collect())
    }

    /// A check has so many findings.
    #[allow(clippy::cast_precision_loss)] // a few
    pub(crate) fn found(&self, check: &str, warnings: usize, errors: usize) {
        if let Some([warning, error]) = self.0.get(check) {
            warning.set(warnings as f64);
            error.set(errors as f64);
        }
    }
}

/// Handles of a relay.
#[derive(Debug)]
pub(crate) struct RelayMetrics {
    targets: [TargetMetrics; 2],
    /// completed, in_progress, failed.
    pub(crate) keys: [Gauge; 3],
    pub(crate) letters: Named<LetterMetrics>,
    pub(crate) leases: Named<LeaseMetrics>,
    /// Tenants that are over their quota.
    pub(crate) over_quota: Gauge,
    pub(crate) parked_events: Gauge,
    pub(crate) audit_days_ahead: Gauge,
    pub(crate) oldest_xmin_age: Gauge,
    pub(crate) queues: BTreeMap<String, QueueMetrics>,
}

impl RelayMetrics {
    /// Makes all series of a relay.
    pub(crate) fn new(config: &Config) -> Self {
        let consumers = || config.consumers.iter().map(|consumer| consumer.name.as_str());
        // A queue has one consumer, so its name makes no more series; by it a rule knows whose queue a paused consumer's is.
        let queues = config.consumers.iter().flat_map(|consumer| {
            consumer.queues.iter().map(|queue| (consumer.name.as_str().to_owned(), queue))
        });
        Self {
            targets: Target::ALL.map(|target| {
                let target = target.as_str();
                TargetMetrics {
                    results: RelayResult::ALL.map(
                        |result| counter!("oncely_relayed_total", "target" => target, "result" => result.as_str()),
                    ),
                    backlog: gauge!("oncely_relay_backlog_records", "target" => target),
                    oldest_age: gauge!("oncely_relay_oldest_age_seconds", "target" => target),
                    lag: histogram!("oncely_relay_lag_seconds", "target" => target),
                    duration: histogram!("oncely_relay_duration_seconds", "target" => target),
                    last_success: gauge!("oncely_relay_last_success_timestamp_seconds", "target" => target),
                }
            }),
            keys: ["completed", "in_progress", "failed"].map(|status| gauge!("oncely_keys", "status" => status)),
            letters: Named::new(consumers(), |consumer| LetterMetrics {
                waiting: gauge!("oncely_dead_letters_waiting", "consumer" => consumer.clone()),
                oldest_age: gauge!("oncely_dead_letters_oldest_age_seconds", "consumer" => consumer),
            }),
            leases: Named::new(consumers(), |consumer| LeaseMetrics {
                held: gauge!("oncely_leases_held", "consumer" => consumer.clone()),
                over: gauge!("oncely_leases_over", "consumer" => consumer.clone()),
                oldest_age: gauge!("oncely_leases_oldest_age_seconds", "consumer" => consumer),
            }),
            over_quota: gauge!("oncely_letter_quota_exceeded"),
            parked_events: gauge!("oncely_parked_events"),
            audit_days_ahead: gauge!("oncely_audit_days_ahead"),
            oldest_xmin_age: gauge!("oncely_postgres_oldest_xmin_age_seconds"),
            queues: queues
                .map(|(consumer, queue)| {
                    let of = |role: &'static str| gauge!("oncely_queue_messages_ready", "consumer" => consumer.clone(), "queue" => queue.clone(), "role" => role);
                    let by = |role: &'static str| gauge!("oncely_queue_consumers", "consumer" => consumer.clone(), "queue" => queue.clone(), "role" => role);
                    let roles = ["work", "retry", "dead_letter"];
                    (queue.clone(), QueueMetrics { ready: roles.map(of), consumers: roles.map(by) })
                })
                .collect(),
        }
    }

    pub(crate) fn target(&self, target: Target) -> &TargetMetrics {
        &self.targets[target as usize]
    }
}
