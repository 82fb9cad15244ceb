//! Logs failures: each key by name at first, and then each kind of failure once a minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::candidate::PartialIdentity;
use oncely_core::identity::IdentityPart;
use oncely_core::outcome::Outcome;
use oncely_core::reason::Reason;

/// Time over which failures are counted for one line.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of keys of a group that are named in a minute, at their first failure and when they are given up.
const MAX_NAMED_KEYS: u32 = 10;
/// Maximum number of kinds of failure in a minute; those beyond share a line, since handlers choose their SQLSTATEs.
const MAX_GROUPS: usize = 100;

/// The failures of one consumer.
#[derive(Debug)]
pub(crate) struct FailureLog {
    consumer: IdentityPart,
    minute: Mutex<Minute>,
}

/// Kind of failure: given up for this reason, or (without one) to be tried again; SQLSTATE.
type FailureKind = (Option<&'static str>, Option<String>);

#[derive(Debug)]
struct Minute {
    start: Instant,
    groups: BTreeMap<FailureKind, GroupTally>,
}

/// Failures of a group in a minute.
#[derive(Debug, Default)]
struct GroupTally {
    named: u32,
    /// Number of failures beyond the named ones.
    more: u64,
    example: Option<LoggedFailure>,
}

/// One message's failure. Its texts hold no payload, and its key is escaped when it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoggedFailure {
    tenant: Option<IdentityPart>,
    key: Option<IdentityPart>,
    pub attempt: u32,
    pub reason: Option<Reason>,
    pub code: Option<String>,
    detail: String,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum FailureLine {
    One(LoggedFailure),
    More(u64, LoggedFailure),
}

impl LoggedFailure {
    /// Returns the failure of an outcome; `None` for an outcome without one.
    fn from_outcome(identity: &PartialIdentity, outcome: &Outcome) -> Option<Self> {
        let (attempt, reason, code, detail) = match outcome {
            Outcome::Retried { attempt, code, detail, .. } => (*attempt, None, code, detail),
            Outcome::DeadLettered { attempt, rejection, code, .. } => {
                (*attempt, Some(rejection.reason), code, &rejection.detail)
            }
            Outcome::Completed { .. }
            | Outcome::Refused { .. }
            | Outcome::Duplicate(_)
            | Outcome::Postponed { .. }
            | Outcome::Undecided { .. } => return None,
        };
        Some(Self {
            tenant: identity.tenant.clone(),
            key: identity.key.clone(),
            attempt,
            reason,
            code: code.clone(),
            detail: detail.clone(),
        })
    }

    /// Returns whether the failure is logged by name: the first failure of a key, and its end.
    fn is_news(&self) -> bool {
        self.reason.is_some() || self.attempt <= 1
    }
}

impl Minute {
    /// Counts a failure. Returns its line; `None` if the failure is not logged by name, but is part of the minute's counts.
    fn count_failure(&mut self, failure: LoggedFailure) -> Option<FailureLine> {
        let mut group = (failure.reason.map(Reason::as_str), failure.code.clone());
        if !self.groups.contains_key(&group) && self.groups.len() >= MAX_GROUPS {
            group.1 = None;
        }
        let tally = self.groups.entry(group).or_default();
        if failure.is_news() && tally.named < MAX_NAMED_KEYS {
            tally.named += 1;
            return Some(FailureLine::One(failure));
        }
        tally.more += 1;
        tally.example = Some(failure);
        None
    }

    /// Takes the counted failures of a minute that is over (with `is_final`, of the current minute) as lines, and begins the next minute.
    fn take_finished(&mut self, now: Instant, is_final: bool) -> Vec<FailureLine> {
        if !is_final && now.saturating_duration_since(self.start) < LOG_INTERVAL {
            return Vec::new();
        }
        self.start = now;
        let groups = std::mem::take(&mut self.groups);
        groups.into_values().filter_map(|tally| Some(FailureLine::More(tally.more, tally.example?))).collect()
    }
}

impl FailureLog {
    /// Starts the log of a consumer, with an empty minute from now on.
    pub(crate) fn start(consumer: IdentityPart) -> Self {
        let minute = Minute { start: Instant::now(), groups: BTreeMap::new() };
        Self { consumer, minute: Mutex::new(minute) }
    }

    /// Logs a message's outcome if it is a failure.
    pub(crate) fn record_outcome(&self, identity: &PartialIdentity, outcome: &Outcome) {
        let Some(failure) = LoggedFailure::from_outcome(identity, outcome) else { return };
        let lines = self.with_minute(|minute| {
            let mut lines = minute.take_finished(Instant::now(), false);
            lines.extend(minute.count_failure(failure));
            lines
        });
        self.log_lines(lines);
    }

    /// Logs the rest of a minute that is over; at the end (`is_final`) of the current one.
    pub(crate) fn flush(&self, is_final: bool) {
        let lines = self.with_minute(|minute| minute.take_finished(Instant::now(), is_final));
        self.log_lines(lines);
    }

    /// Changes the state of the current minute under its lock.
    fn with_minute<T>(&self, change: impl FnOnce(&mut Minute) -> T) -> T {
        // A panic leaves at worst a wrong count.
        change(&mut self.minute.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Logs lines of single and of counted failures.
    fn log_lines(&self, lines: Vec<FailureLine>) {
        for line in lines {
            let (count, failure) = match &line {
                FailureLine::One(failure) => (None, failure),
                FailureLine::More(count, failure) => (Some(*count), failure),
            };
            let text = match (count.is_some(), failure.reason.is_some()) {
                (false, true) => "message dead-lettered",
                (false, false) => "message failed; retrying",
                (true, true) => "more messages dead-lettered; the fields show one",
                (true, false) => "more runs failed and are retried; the fields show one",
            };
            tracing::warn!(
                consumer = %self.consumer,
                count,
                tenant = failure.tenant.as_ref().map(tracing::field::display),
                key = failure.key.as_ref().map(tracing::field::display),
                attempt = failure.attempt,
                reason = failure.reason.map(Reason::as_str),
                sqlstate = failure.code,
                detail = failure.detail,
                "{text}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(key: &str, attempt: u32, code: &str) -> LoggedFailure {
        LoggedFailure {
            tenant: IdentityPart::new(b"acme").ok(),
            key: IdentityPart::new(key.as_bytes()).ok(),
            attempt,
            reason: None,
            code: Some(code.to_owned()),
            detail: "boom".to_owned(),
        }
    }

    fn minute() -> Minute {
        Minute { start: Instant::now(), groups: BTreeMap::new() }
    }

    #[test]
    fn a_key_is_named_at_its_first_failure_and_its_next_ones_are_counted() {
        let mut minute = minute();
        let first = failure("k", 1, "42P01");
        assert_eq!(minute.count_failure(first.clone()), Some(FailureLine::One(first)));
        for attempt in 2..=4 {
            assert_eq!(minute.count_failure(failure("k", attempt, "42P01")), None);
        }
        let later = minute.start + LOG_INTERVAL;
        assert_eq!(minute.take_finished(later - Duration::from_secs(1), false), []);
        assert_eq!(minute.take_finished(later, false), [FailureLine::More(3, failure("k", 4, "42P01"))]);
        assert_eq!(minute.take_finished(later + LOG_INTERVAL, false), [], "told once");
    }

    #[test]
    fn a_flood_is_ten_names_and_one_line() {
        let mut minute = minute();
        let named =
            (0..500).filter_map(|n| minute.count_failure(failure(&format!("k-{n}"), 1, "P0001"))).count();
        assert_eq!(named, 10);
        assert_eq!(
            minute.take_finished(Instant::now(), true),
            [FailureLine::More(490, failure("k-499", 1, "P0001"))]
        );
    }

    #[test]
    fn kinds_beyond_a_hundred_share_a_line() {
        let mut minute = minute();
        for n in 0..500 {
            minute.count_failure(failure("k", 2, &format!("Z{n:04}")));
        }
        assert!(minute.groups.len() <= MAX_GROUPS + 1);
    }
}
