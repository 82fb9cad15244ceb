//! The list of all metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// A metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Name, with the unit at the end.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Programs that have it: `worker`, `relay`, `both` of these, `gateway`, or `all`.
    pub of: &'static str,
    /// Description.
    pub help: &'static str,
}

/// Label value of names that are not in the configuration.
pub const OTHER: &str = "_other";

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    of: &'static str,
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, of, help }
}

use Kind::{Counter, Gauge, Histogram};

/// All metrics. Names, labels and meanings are part of the public interface.
pub const CATALOGUE: &[Metric] = &[
    metric(
        "oncely_deliveries_total",
        Counter,
        &["consumer", "redelivered"],
        "worker",
        "Deliveries that the broker handed over",
    ),
    metric(
        "oncely_messages_total",
        Counter,
        &["consumer", "outcome"],
        "worker",
        "Settled deliveries, by what became of them",
    ),
    metric(
        "oncely_message_duration_seconds",
        Histogram,
        &["consumer", "outcome"],
        "worker",
        "From the arrival of a delivery until it was settled",
    ),
    metric(
        "oncely_handler_duration_seconds",
        Histogram,
        &["consumer", "result"],
        "worker",
        "One call of a handler: a batch for a SQL function or a batch handler, a message for a handler in Rust. For a small batch of a SQL function it is the one statement that claims, runs, records and commits",
    ),
    metric(
        "oncely_stage_duration_seconds",
        Histogram,
        &["consumer", "stage"],
        "worker",
        "Where a batch's time goes",
    ),
    metric(
        "oncely_delivery_age_seconds",
        Histogram,
        &["consumer"],
        "worker",
        "From a message's property timestamp, where it has one, until its effect committed",
    ),
    metric(
        "oncely_duplicates_total",
        Counter,
        &["consumer", "source"],
        "worker",
        "Duplicates, by who knew them: runs saved",
    ),
    metric(
        "oncely_observed_messages_total",
        Counter,
        &["consumer", "result"],
        "worker",
        "Messages seen by a consumer in mode = \"observe\": first (a new key), duplicate, conflict (another payload), unidentified, unsure (redelivered to the observer, and its key is known)",
    ),
    metric(
        "oncely_dead_letters_total",
        Counter,
        &["consumer", "reason"],
        "worker",
        "Messages that were dead-lettered, by reason code",
    ),
    metric(
        "oncely_retries_total",
        Counter,
        &["consumer", "delay"],
        "worker",
        "Failed runs that are tried again, by the delay until then",
    ),
    metric(
        "oncely_crash_attempts_total",
        Counter,
        &["consumer"],
        "worker",
        "Redelivered messages that a process died with, as they came back",
    ),
    metric(
        "oncely_leases_taken_over_total",
        Counter,
        &["consumer"],
        "worker",
        "Keys that a run took over from one whose lease had ended: its process died, or it stood still",
    ),
    metric(
        "oncely_leases_fenced_total",
        Counter,
        &["consumer"],
        "worker",
        "Runs that lost their lease, and came back: nothing of them counts, but what they called outside has happened",
    ),
    metric(
        "oncely_commit_unknown_total",
        Counter,
        &["consumer"],
        "worker",
        "Commits whose reply was lost: the key decided",
    ),
    metric(
        "oncely_batch_fallbacks_total",
        Counter,
        &["consumer"],
        "worker",
        "Batches that failed as a whole, so that their messages ran again in parts",
    ),
    metric(
        "oncely_outages_total",
        Counter,
        &["consumer"],
        "worker",
        "Times that PostgreSQL was away, or failed for a reason that is no message's",
    ),
    metric("oncely_batch_messages", Histogram, &["consumer"], "worker", "Messages of a batch"),
    metric(
        "oncely_inflight_messages",
        Gauge,
        &["consumer"],
        "worker",
        "Deliveries that are not acknowledged",
    ),
    metric(
        "oncely_prefetch_messages",
        Gauge,
        &["consumer"],
        "worker",
        "Most deliveries that may be unacknowledged",
    ),
    metric(
        "oncely_aside_messages",
        Gauge,
        &["consumer"],
        "worker",
        "Deliveries that wait beside the lanes: nobody answers for their failure yet, or somebody holds their key",
    ),
    metric(
        "oncely_unsettled_messages",
        Gauge,
        &["consumer"],
        "worker",
        "Deliveries whose copies for a retry or dead-letter queue don't arrive",
    ),
    metric(
        "oncely_consumer_up",
        Gauge,
        &["consumer"],
        "worker",
        "1 while it is subscribed to all of its queues",
    ),
    metric(
        "oncely_consumer_paused",
        Gauge,
        &["consumer", "cause"],
        "worker",
        "1 while it is paused: by an operator, or by its environment (no message succeeds)",
    ),
    metric(
        "oncely_consumer_failing",
        Gauge,
        &["consumer"],
        "worker",
        "1 while its last twenty new messages, or more, all failed for reasons that may be their own: they are tried again",
    ),
    metric(
        "oncely_consumer_contended",
        Gauge,
        &["consumer"],
        "worker",
        "1 while its own transactions collide over rows: its batches run one at a time, over all processes",
    ),
    metric(
        "oncely_last_success_timestamp_seconds",
        Gauge,
        &["consumer"],
        "worker",
        "When a message took effect last; 0: not since the process started",
    ),
    metric(
        "oncely_acknowledgements_total",
        Counter,
        &["consumer", "result"],
        "worker",
        "Acknowledgements: sent, or stale (of a channel that was gone; the messages come again)",
    ),
    metric(
        "oncely_precheck_total",
        Counter,
        &["consumer", "result"],
        "worker",
        "Messages that the mirror was asked about: hit, miss, or error (no answer in time)",
    ),
    metric(
        "oncely_precheck_duration_seconds",
        Histogram,
        &["consumer"],
        "worker",
        "One question to the mirror",
    ),
    metric(
        "oncely_dedupe_horizon_seconds",
        Gauge,
        &["consumer"],
        "worker",
        "How old a copy may be and is recognised: the retention that the database holds",
    ),
    metric(
        "oncely_redelivery_horizon_seconds",
        Gauge,
        &["consumer"],
        "worker",
        "The oldest copy that may still come, as configured",
    ),
    metric("oncely_epoch_changes_total", Counter, &[], "worker", "Failovers and restores that were noticed"),
    metric(
        "oncely_mirror_breaker_open",
        Gauge,
        &[],
        "worker",
        "1 while Redis is not asked, because it did not answer",
    ),
    metric("oncely_connected", Gauge, &["server"], "all", "1 while the server answers"),
    metric(
        "oncely_reconnects_total",
        Counter,
        &["server"],
        "all",
        "Connections that were lost and made again",
    ),
    metric(
        "oncely_faults_total",
        Counter,
        &["consumer", "class"],
        "worker",
        "Failed transactions, by whose fault it is",
    ),
    metric(
        "oncely_relay_backlog_records",
        Gauge,
        &["target"],
        "relay",
        "Mirror records (redis) or due events (rabbitmq) that wait, counted up to 10,000",
    ),
    metric(
        "oncely_relay_oldest_age_seconds",
        Gauge,
        &["target"],
        "relay",
        "For how long the oldest of them has waited",
    ),
    metric(
        "oncely_relay_lag_seconds",
        Histogram,
        &["target"],
        "relay",
        "From the commit of a record or event until it arrived, of the oldest one of each batch",
    ),
    metric(
        "oncely_relayed_total",
        Counter,
        &["target", "result"],
        "relay",
        "Mirror records and events: done, failed (tried again), parked",
    ),
    metric(
        "oncely_relay_duration_seconds",
        Histogram,
        &["target"],
        "relay",
        "One batch, from the take to the commit",
    ),
    metric(
        "oncely_relay_last_success_timestamp_seconds",
        Gauge,
        &["target"],
        "relay",
        "When a look at the records or events succeeded last",
    ),
    metric(
        "oncely_keys",
        Gauge,
        &["status"],
        "relay",
        "Keys: completed (as PostgreSQL estimates), in_progress and failed (counted up to 10,000)",
    ),
    metric(
        "oncely_dead_letters_waiting",
        Gauge,
        &["consumer"],
        "relay",
        "Dead letters that wait for somebody",
    ),
    metric(
        "oncely_dead_letters_oldest_age_seconds",
        Gauge,
        &["consumer"],
        "relay",
        "For how long the oldest of them has waited",
    ),
    metric(
        "oncely_leases_held",
        Gauge,
        &["consumer"],
        "relay",
        "Keys that runs hold by leases, counted up to 10,000 of all consumers",
    ),
    metric(
        "oncely_leases_over",
        Gauge,
        &["consumer"],
        "relay",
        "Those of them whose lease has ended, and nobody has taken the key over: its message has not come back yet",
    ),
    metric(
        "oncely_leases_oldest_age_seconds",
        Gauge,
        &["consumer"],
        "relay",
        "For how long the oldest of them has been held",
    ),
    metric(
        "oncely_letter_quota_exceeded",
        Gauge,
        &[],
        "relay",
        "Tenants of which open dead letters are not stored, for their quota: only the dead-letter queue has those messages (`oncely tenant usage`)",
    ),
    metric(
        "oncely_parked_events",
        Gauge,
        &[],
        "relay",
        "Events that were given up and wait for somebody, counted up to 10,000",
    ),
    metric(
        "oncely_gc_deleted_total",
        Counter,
        &["consumer"],
        "relay",
        "Keys past their retention that were deleted",
    ),
    metric(
        "oncely_gc_last_success_timestamp_seconds",
        Gauge,
        &[],
        "relay",
        "When a collection ended well last; 0: not since the process started",
    ),
    metric("oncely_gc_duration_seconds", Histogram, &[], "relay", "One collection"),
    metric(
        "oncely_audit_days_ahead",
        Gauge,
        &[],
        "relay",
        "For how many days ahead the trail has partitions",
    ),
    metric(
        "oncely_postgres_oldest_xmin_age_seconds",
        Gauge,
        &[],
        "relay",
        "For how long the oldest transaction has held back vacuum",
    ),
    metric(
        "oncely_queue_messages_ready",
        Gauge,
        &["consumer", "queue", "role"],
        "relay",
        "Messages ready in a queue: work, retry (all delays together), dead_letter",
    ),
    metric(
        "oncely_queue_consumers",
        Gauge,
        &["consumer", "queue", "role"],
        "relay",
        "Subscriptions to a queue",
    ),
    metric("oncely_doctor_findings", Gauge, &["check", "severity"], "relay", "What the hourly doctor found"),
    metric(
        "oncely_gateway_requests_total",
        Counter,
        &["keyed", "answer"],
        "gateway",
        "Requests that were answered, with a key (yes) or without one (no), by whose answer it was: the service's (upstream), the first request's (replayed), or the problem that the gateway told",
    ),
    metric(
        "oncely_gateway_request_duration_seconds",
        Histogram,
        &["keyed"],
        "gateway",
        "From a request's head to its answer's head",
    ),
    metric("oncely_gateway_inflight_requests", Gauge, &[], "gateway", "Requests whose answer has not begun"),
    metric(
        "oncely_gateway_calls_total",
        Counter,
        &["keyed", "result"],
        "gateway",
        "Calls of the service: answered, not_sent (no connection), unknown (torn, or too late), cut (its client broke off the body)",
    ),
    metric("oncely_gateway_connections", Gauge, &[], "gateway", "Connections of clients"),
    metric(
        "oncely_gateway_unknown_keys",
        Gauge,
        &["consumer"],
        "gateway",
        "Keys that were given up as outcome_unknown and wait for somebody to settle them, of the last 1,000 that were given up",
    ),
    metric("oncely_ready", Gauge, &[], "all", "1 while /readyz says yes"),
    metric("oncely_build_info", Gauge, &["version"], "all", "1"),
    metric("oncely_config_info", Gauge, &["digest"], "all", "1; equal configurations have equal digests"),
];

/// Registers the descriptions with the current recorder.
pub(super) fn describe(of: &str) {
    let is_of = |metric: &&Metric| match metric.of {
        "all" => true,
        "both" => of == "worker" || of == "relay",
        one => one == of,
    };
    for metric in CATALOGUE.iter().filter(is_of) {
        let unit = if metric.name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        match metric.kind {
            Counter => describe_counter!(metric.name, unit, metric.help),
            Gauge => describe_gauge!(metric.name, unit, metric.help),
            Histogram => describe_histogram!(metric.name, unit, metric.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        let mut names = std::collections::BTreeSet::new();
        for metric in CATALOGUE {
            assert!(names.insert(metric.name), "{} is listed twice", metric.name);
            assert!(metric.name.starts_with("oncely_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Counter, "{}", metric.name);
            for label in metric.labels {
                assert!(
                    !["tenant", "key", "host", "process"].contains(label),
                    "{} has an unbounded label",
                    metric.name
                );
            }
        }
    }
}
