//! `[events]`: publishing of events to RabbitMQ.

use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use super::values::{DAY, Length, MILLISECOND, MINUTE, SECOND};
use oncely_core::retry::RetryPolicy;

/// Publishing of events by the relay.
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
    pub fn delay_after(&self, attempt: u32, is_reply: bool) -> Option<Duration> {
        if is_reply && attempt >= self.max_reply_attempts {
            return None;
        }
        self.retry.delay_after(attempt)
    }
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct EventsTable {
    /// Events (oncely.emit) published in one transaction of the relay.
    #[garde(range(min = 1, max = 5_000))]
    pub(crate) batch: u32,
    /// Concurrent transactions, each with connections of its own to PostgreSQL and RabbitMQ: one waits for the broker's confirms while the other works
    /// on the database.
    #[garde(range(min = 1, max = 16))]
    pub(crate) lanes: u32,
    /// Retries of an event that the broker refuses or returns (no queue is bound, the exchange is missing, a queue is full): after these delays (the last
    /// one repeats), until it is parked after max_attempts (`oncely outbox list`). An outage costs no attempt.
    #[garde(dive)]
    pub(crate) retry: EventRetryTable,
    /// Largest number of attempts for a reply: its requester seldom comes back.
    #[garde(range(min = 1, max = 1_000))]
    pub(crate) max_reply_attempts: u32,
}

impl Default for EventsTable {
    fn default() -> Self {
        Self { batch: 500, lanes: 2, retry: EventRetryTable::default(), max_reply_attempts: 3 }
    }
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct EventRetryTable {
    #[garde(inner(range(min = MILLISECOND, max = DAY.times(7))))]
    delays: Vec<Length>,
    #[garde(range(min = 1, max = 1_000))]
    max_attempts: u32,
}

impl Default for EventRetryTable {
    fn default() -> Self {
        let delays = vec![SECOND, SECOND.times(5), SECOND.times(30), MINUTE.times(2), MINUTE.times(10)];
        Self { delays, max_attempts: 12 }
    }
}

impl EventsTable {
    /// Checks the delays, and converts the table.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> EventSettings {
        const DELAYS_SETTING: &str = "events.retry.delays";
        let Self { batch, lanes, retry: EventRetryTable { delays, max_attempts }, max_reply_attempts } = self;
        if delays.is_empty() {
            problems.add(DELAYS_SETTING, "is empty: without a delay a retry is a hot loop");
        }
        let delays = check_rising(delays, DELAYS_SETTING, problems);
        let retry = RetryPolicy { delays, max_attempts, ..RetryPolicy::default() };
        EventSettings { batch, lanes, retry, max_reply_attempts }
    }
}

/// Checks that delays don't decrease, and converts them.
pub(crate) fn check_rising(delays: Vec<Length>, place: &str, problems: &mut Problems) -> Vec<Duration> {
    if delays.windows(2).any(|pair| pair[0] > pair[1]) {
        problems.add(place, "must not decrease");
    }
    delays.into_iter().map(Duration::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_given_up_sooner_than_an_event() {
        let mut problems = Problems::default();
        let settings = EventsTable::default().into_settings(&mut problems);
        assert!(problems.is_empty());
        assert_eq!(settings.delay_after(2, true), Some(Duration::from_secs(5)));
        assert_eq!(settings.delay_after(3, true), None);
        assert_eq!(settings.delay_after(11, false), Some(Duration::from_secs(600)));
        assert_eq!(settings.delay_after(12, false), None);
    }
}
