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

use Kind::{Counter, Gauge, Histogram};

/// Makes the list: by programs, each metric with its kind, name, labels and description.
macro_rules! catalogue {
    ($($of:literal { $($kind:ident $name:literal [$($label:literal),*] $help:literal;)* })*) => {
        /// All metrics. Names, labels and meanings are part of the public interface.
        pub const CATALOGUE: &[Metric] = &[$($(
            Metric { name: $name, kind: $kind, labels: &[$($label),*], of: $of, help: $help },
        )*)*];
    };
}

catalogue! {
    "worker" {
        Counter "oncely_deliveries_total" ["consumer", "redelivered"] "Deliveries that the broker handed over";
        Counter "oncely_routed_messages_total" ["consumer", "route"]
            "Deliveries in a Citus cluster: owner (sent to the node that keeps the tenant), forwarded (sent to the node of postgres.url, as no other is known)";
        Counter "oncely_messages_total" ["consumer", "outcome"] "Settled deliveries, by what became of them";
        Histogram "oncely_message_duration_seconds" ["consumer", "outcome"] "From the arrival of a delivery until it was settled";
        Histogram "oncely_handler_duration_seconds" ["consumer", "result"]
            "One call of a handler: a batch for a SQL function or a batch handler, a message for a handler in Rust. For a small batch of a SQL function it is the one statement that claims, runs, records and commits";
        Histogram "oncely_stage_duration_seconds" ["consumer", "stage"] "Where a batch's time goes";
        Histogram "oncely_delivery_age_seconds" ["consumer"] "From a message's property timestamp, where it has one, until its effect committed";
        Counter "oncely_duplicates_total" ["consumer", "source"] "Duplicates, by who knew them: runs saved";
        Counter "oncely_observed_messages_total" ["consumer", "result"]
            "Messages seen by a consumer in mode = \"observe\": first (a new key), duplicate, conflict (another payload), unidentified, unsure (redelivered to the observer, and its key is known)";
        Counter "oncely_dead_letters_total" ["consumer", "reason"] "Messages that were dead-lettered, by reason code";
        Counter "oncely_retries_total" ["consumer", "delay"] "Failed runs that are tried again, by the delay until then";
        Counter "oncely_crash_attempts_total" ["consumer"] "Redelivered messages that a process died with, as they came back";
        Counter "oncely_leases_taken_over_total" ["consumer"]
            "Keys that a run took over from one whose lease had ended: its process died, or it stood still";
        Counter "oncely_leases_fenced_total" ["consumer"]
            "Runs that lost their lease, and came back: nothing of them counts, but what they called outside has happened";
        Counter "oncely_commit_unknown_total" ["consumer"] "Commits whose reply was lost: the key decided";
        Counter "oncely_batch_fallbacks_total" ["consumer"] "Batches that failed as a whole, so that their messages ran again in parts";
        Counter "oncely_outages_total" ["consumer"] "Times that PostgreSQL was away, or failed for a reason that is no message's";
        Histogram "oncely_batch_messages" ["consumer"] "Messages of a batch";
        Gauge "oncely_inflight_messages" ["consumer"] "Deliveries that are not acknowledged";
        Gauge "oncely_prefetch_messages" ["consumer"] "Most deliveries that may be unacknowledged";
        Gauge "oncely_aside_messages" ["consumer"]
            "Deliveries that wait beside the lanes: the cause of their failure is undecided, or another session holds their key";
        Gauge "oncely_unsettled_messages" ["consumer"] "Deliveries whose copies for a retry or dead-letter queue don't arrive";
        Gauge "oncely_consumer_up" ["consumer"] "1 while it is subscribed to all of its queues";
        Gauge "oncely_consumer_paused" ["consumer", "cause"] "1 while it is paused: by an operator, or by its environment (no message succeeds)";
        Gauge "oncely_consumer_failing" ["consumer"]
            "1 while its last twenty new messages, or more, all failed for reasons that may be their own: they are tried again";
        Gauge "oncely_consumer_contended" ["consumer"]
            "1 while its own transactions collide over rows: its batches run one at a time, over all processes";
        Gauge "oncely_last_success_timestamp_seconds" ["consumer"] "When a message took effect last; 0: not since the process started";
        Counter "oncely_acknowledgements_total" ["consumer", "result"]
            "Acknowledgements: sent, or stale (of a channel that was gone; the messages come again)";
        Counter "oncely_precheck_total" ["consumer", "result"] "Messages that the mirror was asked about: hit, miss, or error (no answer in time)";
        Histogram "oncely_precheck_duration_seconds" ["consumer"] "One question to the mirror";
        Gauge "oncely_dedupe_horizon_seconds" ["consumer"] "How old a copy may be and is recognised: the retention that the database holds";
        Gauge "oncely_redelivery_horizon_seconds" ["consumer"] "The oldest copy that may still come, as configured";
        Counter "oncely_epoch_changes_total" [] "Failovers and restores that were noticed";
        Gauge "oncely_mirror_breaker_open" [] "1 while Redis is not asked, because it did not answer";
    }
    "all" {
        Gauge "oncely_connected" ["server"] "1 while the server answers";
        Counter "oncely_reconnects_total" ["server"] "Connections that were lost and made again";
    }
    "worker" {
        Counter "oncely_faults_total" ["consumer", "class"] "Failed transactions, by whose fault it is";
    }
    "relay" {
        Gauge "oncely_relay_backlog_records" ["target"] "Mirror records (redis) or due events (rabbitmq) that wait, counted up to 10,000";
        Gauge "oncely_relay_oldest_age_seconds" ["target"] "For how long the oldest of them has waited";
        Histogram "oncely_relay_lag_seconds" ["target"] "From the commit of a record or event until it arrived, of the oldest one of each batch";
        Counter "oncely_relayed_total" ["target", "result"] "Mirror records and events: done, failed (tried again), parked";
        Histogram "oncely_relay_duration_seconds" ["target"] "One batch, from the take to the commit";
        Gauge "oncely_relay_last_success_timestamp_seconds" ["target"] "When a look at the records or events succeeded last";
        Gauge "oncely_keys" ["status"] "Keys: completed (as PostgreSQL estimates), in_progress and failed (counted up to 10,000)";
        Gauge "oncely_dead_letters_waiting" ["consumer"] "Dead letters that wait for an operator";
        Gauge "oncely_dead_letters_oldest_age_seconds" ["consumer"] "For how long the oldest of them has waited";
        Gauge "oncely_leases_held" ["consumer"] "Keys that runs hold by leases, counted up to 10,000 of all consumers";
        Gauge "oncely_leases_over" ["consumer"]
            "Those of them whose lease has ended and whose key was not taken over: its message has not come back yet";
        Gauge "oncely_leases_oldest_age_seconds" ["consumer"] "For how long the oldest of them has been held";
        Gauge "oncely_letter_quota_exceeded" []
            "Tenants of which open dead letters are not stored, for their quota: only the dead-letter queue has those messages (`oncely tenant usage`)";
        Gauge "oncely_parked_events" [] "Events that were given up and wait for an operator, counted up to 10,000";
        Counter "oncely_gc_deleted_total" ["consumer"] "Keys past their retention that were deleted";
        Gauge "oncely_gc_last_success_timestamp_seconds" [] "When a collection ended well last; 0: not since the process started";
        Histogram "oncely_gc_duration_seconds" [] "One collection";
        Gauge "oncely_audit_days_ahead" [] "For how many days ahead the trail has partitions";
        Gauge "oncely_postgres_oldest_xmin_age_seconds" [] "For how long the oldest transaction has held back vacuum";
        Gauge "oncely_queue_messages_ready" ["consumer", "queue", "role"] "Messages ready in a queue: work, retry (all delays together), dead_letter";
        Gauge "oncely_queue_consumers" ["consumer", "queue", "role"] "Subscriptions to a queue";
        Gauge "oncely_doctor_findings" ["check", "severity"] "What the hourly doctor found";
    }
    "gateway" {
        Counter "oncely_gateway_requests_total" ["keyed", "answer"]
            "Requests that were answered, with a key (yes) or without one (no), by whose answer it was: the service's (upstream), the first request's (replayed), or the problem that the gateway told";
        Histogram "oncely_gateway_request_duration_seconds" ["keyed"] "From a request's head to its answer's head";
        Gauge "oncely_gateway_inflight_requests" [] "Requests whose answer has not begun";
        Counter "oncely_gateway_calls_total" ["keyed", "result"]
            "Calls of the service: answered, not_sent (no connection), unknown (torn, or too late), cut (its client broke off the body)";
        Gauge "oncely_gateway_connections" [] "Connections of clients";
        Gauge "oncely_gateway_unknown_keys" ["consumer"]
            "Keys that were given up as outcome_unknown and wait for an operator to settle them, of the last 1,000 that were given up";
    }
    "all" {
        Gauge "oncely_ready" [] "1 while /readyz says yes";
        Gauge "oncely_build_info" ["version"] "1";
        Gauge "oncely_config_info" ["digest"] "1; equal configurations have equal digests";
    }
}

/// Registers the descriptions of a program's metrics with the current recorder.
pub(super) fn register_descriptions(of: &str) {
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
