//! Metrics of a gateway.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::OTHER;

oncely_core::words! {
    array;
    /// Result of a call of the service.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ServiceCallOutcome {
        Answered = "answered",
        NotSent = "not_sent",
        Unknown = "unknown",
        Cut = "cut",
    }
}

/// Metrics of requests with a key, or of those without one.
#[derive(Debug)]
pub struct RequestMetrics {
    answers: BTreeMap<&'static str, Counter>,
    calls: [Counter; 4],
    pub duration: Histogram,
}

impl RequestMetrics {
    /// Registers the series of requests with a key (`keyed` is `yes`) or without one (`no`), and of these answers.
    fn register(keyed: &'static str, answers: impl Iterator<Item = &'static str>) -> Self {
        let labels = answers.chain([OTHER]);
        let to_counter = |answer: &'static str| {
            (answer, counter!("oncely_gateway_requests_total", "keyed" => keyed, "answer" => answer))
        };
        Self {
            answers: labels.map(to_counter).collect(),
            calls: ServiceCallOutcome::ALL.map(
                |result| counter!("oncely_gateway_calls_total", "keyed" => keyed, "result" => result.as_str()),
            ),
            duration: histogram!("oncely_gateway_request_duration_seconds", "keyed" => keyed),
        }
    }

    /// Counts an answer.
    pub fn count_answer(&self, answer: &str) {
        if let Some(counter) = self.answers.get(answer).or_else(|| self.answers.get(OTHER)) {
            counter.increment(1);
        }
    }

    /// Counts a call of the service.
    pub fn count_call(&self, result: ServiceCallOutcome) {
        self.calls[result as usize].increment(1);
    }
}

/// Handles of a gateway.
#[derive(Debug)]
pub struct GatewayMetrics {
    pub keyed: RequestMetrics,
    pub plain: RequestMetrics,
    pub inflight: Gauge,
    pub connections: Gauge,
    pub unknown_keys: Gauge,
}

impl GatewayMetrics {
    /// Registers the series with the current recorder. `consumer`: consumer of the keys; `answers`: names of all answers.
    pub fn register<I: Iterator<Item = &'static str>>(consumer: &str, answers: impl Fn() -> I) -> Self {
        Self {
            keyed: RequestMetrics::register("yes", answers()),
            plain: RequestMetrics::register("no", answers()),
            inflight: gauge!("oncely_gateway_inflight_requests"),
            connections: gauge!("oncely_gateway_connections"),
            unknown_keys: gauge!("oncely_gateway_unknown_keys", "consumer" => consumer.to_owned()),
        }
    }

    /// Returns the metrics of requests with a key, or of those without one.
    pub fn requests(&self, is_keyed: bool) -> &RequestMetrics {
        if is_keyed { &self.keyed } else { &self.plain }
    }
}
