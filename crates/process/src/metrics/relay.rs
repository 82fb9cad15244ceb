//! Metrics of a relay.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::OTHER;
use oncely_config::Config;

oncely_core::words! {
    array;
    /// Target of a relay.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Target {
        /// Receives mirror records.
        Redis = "redis",
        /// Receives events.
        Rabbitmq = "rabbitmq",
    }
}

oncely_core::words! {
    array;
    /// Result of a record or an event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RelayResult {
        Done = "done",
        Failed = "failed",
        Parked = "parked",
    }
}

/// Handles of one target.
#[derive(Debug)]
pub struct TargetMetrics {
    results: [Counter; 3],
    pub backlog: Gauge,
    pub oldest_age: Gauge,
    pub lag: Histogram,
    pub duration: Histogram,
    pub last_success: Gauge,
}

impl TargetMetrics {
    /// Counts records or events with this result.
    pub fn count(&self, result: RelayResult, number: u64) {
        self.results[result as usize].increment(number);
    }
}

/// Handles by a name of the configuration; other names are counted together.
#[derive(Debug)]
pub struct HandlesByName<T> {
    by_name: BTreeMap<String, T>,
    other: T,
}

impl<T> HandlesByName<T> {
    fn new<'a>(names: impl Iterator<Item = &'a str>, make: impl Fn(String) -> T) -> Self {
        let by_name = names.map(|name| (name.to_owned(), make(name.to_owned()))).collect();
        Self { by_name, other: make(OTHER.to_owned()) }
    }

    /// Returns the handle of a name; for a name that is not in the configuration, the common one.
    pub fn get(&self, name: &str) -> &T {
        self.by_name.get(name).unwrap_or(&self.other)
    }

    /// Returns the label of a name in metrics: the name itself, or [`OTHER`] if it is not in the configuration.
    pub fn label<'a>(&'a self, name: &'a str) -> &'a str {
        if self.by_name.contains_key(name) { name } else { OTHER }
    }

    /// Returns all handles with their labels; the common one is the last.
    pub fn all(&self) -> impl Iterator<Item = (&str, &T)> {
        self.by_name.iter().map(|(name, one)| (name.as_str(), one)).chain([(OTHER, &self.other)])
    }
}

/// Waiting dead letters of a consumer.
#[derive(Debug)]
pub struct LetterMetrics {
    pub waiting: Gauge,
    pub oldest_age: Gauge,
}

/// Keys of a consumer that are held by leases.
#[derive(Debug)]
pub struct LeaseMetrics {
    pub held: Gauge,
    /// Held keys with an expired lease that no run has taken over.
    pub over: Gauge,
    pub oldest_age: Gauge,
}

/// Metrics of a queue and its related queues.
#[derive(Debug)]
pub struct QueueMetrics {
    /// Messages in the work queue, all retry queues, and the dead-letter queue.
    pub ready: [Gauge; 3],
    pub consumers: [Gauge; 3],
}

/// Handles of the garbage collection.
#[derive(Debug)]
pub struct GcMetrics {
    pub deleted: HandlesByName<Counter>,
    pub last_success: Gauge,
    pub duration: Histogram,
}

impl GcMetrics {
    /// Registers its series with the current recorder.
    pub fn register(config: &Config) -> Self {
        let consumers = config.consumers.iter().map(|consumer| consumer.name.as_str());
        Self {
            deleted: HandlesByName::new(
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
pub struct DoctorMetrics(BTreeMap<&'static str, [Gauge; 2]>);

impl DoctorMetrics {
    /// Registers the series of these checks with the current recorder.
    pub fn register(checks: impl Iterator<Item = &'static str>) -> Self {
        let of = |check: &'static str| {
            let severities = ["warning", "error"];
            let gauges = severities
                .map(|severity| gauge!("oncely_doctor_findings", "check" => check, "severity" => severity));
            (check, gauges)
        };
        Self(checks.map(of).collect())
    }

    /// Sets the numbers of a check's findings.
    #[allow(clippy::cast_precision_loss)] // a few
    pub fn set_findings(&self, check: &str, warnings: usize, errors: usize) {
        if let Some([warning, error]) = self.0.get(check) {
            warning.set(warnings as f64);
            error.set(errors as f64);
        }
    }
}

/// Handles of a relay.
#[derive(Debug)]
pub struct RelayMetrics {
    targets: [TargetMetrics; 2],
    /// Keys that are completed, in_progress and failed.
    pub keys: [Gauge; 3],
    pub letters: HandlesByName<LetterMetrics>,
    pub leases: HandlesByName<LeaseMetrics>,
    /// Number of tenants over their quota.
    pub over_quota: Gauge,
    pub parked_events: Gauge,
    pub audit_days_ahead: Gauge,
    pub oldest_xmin_age: Gauge,
    pub queues: BTreeMap<String, QueueMetrics>,
}

impl RelayMetrics {
    /// Registers all series of a relay with the current recorder.
    pub fn register(config: &Config) -> Self {
        let consumers = || config.consumers.iter().map(|consumer| consumer.name.as_str());
        // A queue has one consumer, so the consumer label adds no series; alerting rules use it to find the queues of a paused consumer.
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
            letters: HandlesByName::new(consumers(), |consumer| LetterMetrics {
                waiting: gauge!("oncely_dead_letters_waiting", "consumer" => consumer.clone()),
                oldest_age: gauge!("oncely_dead_letters_oldest_age_seconds", "consumer" => consumer),
            }),
            leases: HandlesByName::new(consumers(), |consumer| LeaseMetrics {
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
                    let consumers_gauge = |role: &'static str| gauge!("oncely_queue_consumers", "consumer" => consumer.clone(), "queue" => queue.clone(), "role" => role);
                    let roles = ["work", "retry", "dead_letter"];
                    (queue.clone(), QueueMetrics { ready: roles.map(of), consumers: roles.map(consumers_gauge) })
                })
                .collect(),
        }
    }

    pub fn target(&self, target: Target) -> &TargetMetrics {
        &self.targets[target as usize]
    }
}
