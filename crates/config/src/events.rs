//! `[events]`: publishing of events to RabbitMQ.

use std::time::Duration;

use super::{Problems, Section};
use oncely_core::retry::RetryPolicy;

/// How the relay publishes events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventSettings {
    /// Maximum number of events in one transaction.
    pub batch: u32,
    /// Number of concurrent transactions, each with its own connections to PostgreSQL and RabbitMQ.
    pub lanes: u32,
    /// Retries of events that the broker refused or returned, until they are parked.
    pub retry: RetryPolicy,
    /// Maximum number of attempts for replies: a requester that is gone seldom comes back.
    pub max_reply_attempts: u32,
}

impl EventSettings {
    /// Returns the delay after the `attempt`-th failure (counted from 1), or `None` if the event is parked.
    #[must_use]
    pub fn after(&self, attempt: u32, reply: bool) -> Option<Duration> {
        if reply && attempt >= self.max_reply_attempts {
            return None;
        }
        self.retry.after(attempt)
    }
}

pub(super) fn events(mut section: Section, problems: &mut Problems) -> EventSettings {
    let batch = section.integer("batch", 500, 1..=5_000, problems);
    let lanes = section.integer("lanes", 2, 1..=16, problems);
    let max_reply_attempts = section.integer("max_reply_attempts", 3, 1..=1_000, problems);
    let mut table = section.table("retry", problems);
    let delays = table
        .durations("delays", problems)
        .unwrap_or_else(|| [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec());
    let max_attempts = table.integer("max_attempts", 12, 1..=1_000, problems);
    if delays.is_empty() {
        problems.add(table.place("delays"), "is empty: without a delay a retry is a hot loop");
    }
    if delays.windows(2).any(|pair| pair[0] > pair[1]) {
        problems.add(table.place("delays"), "must not fall");
    }
    table.finish(problems);
    section.finish(problems);
    let retry = RetryPolicy { delays, max_attempts, ..RetryPolicy::default() };
    EventSettings { batch, lanes, retry, max_reply_attempts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_given_up_sooner_than_an_event() {
        let mut problems = Problems::default();
        let settings = events(Section::new("events", figment::value::Dict::new()), &mut problems);
        assert!(problems.is_empty());
        assert_eq!(settings.after(2, true), Some(Duration::from_secs(5)));
        assert_eq!(settings.after(3, true), None);
        assert_eq!(settings.after(11, false), Some(Duration::from_secs(600)));
        assert_eq!(settings.after(12, false), None);
    }
}
