//! State of a consumer in this process: reported by its heartbeat and shown by `oncely status`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::candidate::PartialIdentity;
use super::counters::DeliveryCounts;
use oncely_amqp::ChannelLife;
use oncely_core::fault::Fault;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::Outcome;
use oncely_postgres::{DatabaseClock, Pause};

/// An error, its time, and its message, as far as one is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureNotice {
    /// Time of its start, by the database's clock.
    pub since: DateTime<Utc>,
    /// SQLSTATE, where PostgreSQL reported it.
    pub code: Option<String>,
    pub text: String,
    pub tenant: Option<String>,
    pub key: Option<String>,
}

/// New messages that failed in a row, with no success in between. A handler that is broken for all looks like this if its errors are of a
/// message's kind: such messages are tried again, and the consumer goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureStreak {
    /// Time of the first of them, by the database's clock.
    pub since: DateTime<Utc>,
    pub messages: u64,
}

/// Transactions of a consumer that wait for each other's locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockContention {
    /// Time of the first collision, by the database's clock.
    pub since: DateTime<Utc>,
}

/// Number of failures that is no accident: as many poison messages in a row pause a consumer.
const MIN_STREAK_MESSAGES: u64 = 20;

/// Age at which a stall is logged first, and the interval of later logs.
const MIN_LOGGED_AGE: TimeDelta = TimeDelta::seconds(1);
const STALL_LOG_INTERVAL: TimeDelta = TimeDelta::seconds(10);

/// State of a consumer as known in the process. Every method is short, and waits only for the others.
#[derive(Debug)]
pub(crate) struct Health {
    clock: DatabaseClock,
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    completed_at: Option<DateTime<Utc>>,
    stalled: Option<FailureNotice>,
    /// Time at which the stall was logged last.
    logged_at: Option<DateTime<Utc>>,
    failed: Option<FailureNotice>,
    /// The current streak of failures, however short.
    failing: Option<FailureStreak>,
    /// The channel of each queue.
    subscriptions: BTreeMap<String, Weak<ChannelLife>>,
}

/// A consumer's part of a heartbeat. Read leniently: it may be of another build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerReport {
    pub consumer: String,
    /// Counts since the process started.
    pub counts: DeliveryCounts,
    /// Deliveries with copies that don't arrive.
    pub unsettled: usize,
    /// Deliveries in a Citus cluster that were sent to another node than the one that keeps their tenant, and to that one.
    pub routes: [u64; 2],
    pub(crate) paused: Option<Pause>,
    #[serde(flatten)]
    pub condition: Condition,
}

/// A consumer's state at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Time at which a message took effect last.
    pub completed_at: Option<DateTime<Utc>>,
    /// Error that all of the consumer waits for, with its first time.
    pub stalled: Option<FailureNotice>,
    /// The last message that failed.
    pub failed: Option<FailureNotice>,
    /// Failures in a row, if no new message succeeds.
    pub failing: Option<FailureStreak>,
    /// Its own transactions collide, and take turns meanwhile.
    pub contended: Option<LockContention>,
    /// Number of unacknowledged deliveries by queue. A queue without a subscription is missing.
    pub unacknowledged: BTreeMap<String, u64>,
}

impl Condition {
    /// Adds the condition of the same consumer at another node: the earlier of two errors is shown.
    pub(crate) fn add(&mut self, other: Self) {
        self.completed_at = self.completed_at.max(other.completed_at);
        let earlier = |own: Option<FailureNotice>, others: Option<FailureNotice>| match (own, others) {
            (Some(own), Some(others)) if own.since > others.since => Some(others),
            (own, others) => own.or(others),
        };
        self.stalled = earlier(self.stalled.take(), other.stalled);
        self.failed = earlier(self.failed.take(), other.failed);
        self.failing = self.failing.take().or(other.failing);
        self.contended = self.contended.take().or(other.contended);
    }
}

impl Health {
    pub(crate) fn new(clock: DatabaseClock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Records that a message took effect.
    pub(crate) fn record_completion(&self, at: DateTime<Utc>) {
        let mut state = self.lock();
        state.completed_at = state.completed_at.max(Some(at));
    }

    /// Records a message's outcome: a failure is shown and counted in the streak, which a completion or a refusal ends.
    pub(crate) fn record_outcome(&self, identity: &PartialIdentity, outcome: &Outcome) {
        // A repeated failure is no news: a few bad messages fail as often as they are tried.
        let is_new = outcome.attempt() == Some(1);
        match outcome {
            Outcome::Retried { code, detail, .. } => {
                self.record_failure(identity, code.as_deref(), detail, is_new)
            }
            Outcome::DeadLettered { rejection, code, .. } => {
                self.record_failure(identity, code.as_deref(), &rejection.detail, is_new);
            }
            // A refusal shows that the handler works.
            Outcome::Completed { .. } | Outcome::Refused { .. } => self.lock().failing = None,
            Outcome::Duplicate(_) | Outcome::Postponed { .. } | Outcome::Undecided { .. } => {}
        }
    }

    /// Records that a message failed while others go on.
    fn record_failure(&self, identity: &PartialIdentity, code: Option<&str>, text: &str, is_new: bool) {
        let own = |part: &Option<IdentityPart>| part.as_ref().map(|part| part.as_str().to_owned());
        let notice = FailureNotice {
            since: self.clock.now(),
            code: code.map(str::to_owned),
            text: text.to_owned(),
            tenant: own(&identity.tenant),
            key: own(&identity.key),
        };
        let mut state = self.lock();
        if is_new {
            let streak = state.failing.get_or_insert(FailureStreak { since: notice.since, messages: 0 });
            streak.messages += 1;
        }
        state.failed = Some(notice);
    }

    /// Records that nothing goes on: all messages fail with this fault, such as `example`; without one, Oncely's own statements fail. A
    /// repeated call keeps the start. Returns whether to log it: not in the first second, which may end with the next message, and then
    /// every ten.
    pub(crate) fn record_stall(&self, fault: &Fault, example: Option<&Identity>) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let since = state.stalled.as_ref().map_or(now, |before| before.since);
        state.stalled = Some(FailureNotice {
            since,
            code: fault.code.clone(),
            text: fault.message.clone(),
            tenant: example.map(|identity| identity.tenant.as_str().to_owned()),
            key: example.map(|identity| identity.key.as_str().to_owned()),
        });
        let is_due = now - since >= MIN_LOGGED_AGE
            && state.logged_at.is_none_or(|logged_at| now - logged_at >= STALL_LOG_INTERVAL);
        if is_due {
            state.logged_at = Some(now);
        }
        is_due
    }

    /// Records that the consumer goes on: ends a stall.
    pub(crate) fn record_resumption(&self) {
        let mut state = self.lock();
        state.stalled = None;
        state.logged_at = None;
    }

    /// Records that Oncely's own statements succeed, though no message did: ends a stall that they caused.
    pub(crate) fn record_statement_success(&self) {
        let mut state = self.lock();
        if state.stalled.as_ref().is_some_and(|notice| notice.key.is_none()) {
            state.stalled = None;
            state.logged_at = None;
        }
    }

    /// Records the channel of a queue's subscription.
    pub(crate) fn record_subscription(&self, queue: &str, channel: &Arc<ChannelLife>) {
        self.lock().subscriptions.insert(queue.to_owned(), Arc::downgrade(channel));
    }

    /// Returns the consumer's condition for the heartbeat.
    pub(crate) fn condition(&self) -> Condition {
        let state = self.lock();
        let unacknowledged = |channel: &Weak<ChannelLife>| {
            let channel = channel.upgrade().filter(|channel| !channel.is_over())?;
            Some(channel.unacknowledged())
        };
        Condition {
            completed_at: state.completed_at,
            stalled: state.stalled.clone(),
            failed: state.failed.clone(),
            failing: state.failing.clone().filter(|failing| failing.messages >= MIN_STREAK_MESSAGES),
            contended: None,
            unacknowledged: state
                .subscriptions
                .iter()
                .filter_map(|(queue, channel)| Some((queue.clone(), unacknowledged(channel)?)))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        // Every change is one assignment: a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use oncely_core::fault::FaultClass;

    #[test]
    fn a_stall_keeps_its_beginning_until_it_is_over() {
        let health = Health::new(DatabaseClock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let missing = Fault::new(FaultClass::Environment, Some("42P01".to_owned()), "no such table");
        health.record_stall(&missing, None);
        let first = health.condition().stalled.unwrap();
        let identity = Identity {
            tenant: IdentityPart::new(b"acme").unwrap(),
            consumer: IdentityPart::new(b"payments").unwrap(),
            key: IdentityPart::new(b"k1").unwrap(),
        };
        std::thread::sleep(std::time::Duration::from_millis(2));
        health.record_stall(&missing, Some(&identity));
        let second = health.condition().stalled.unwrap();
        assert_eq!((second.since, second.key.as_deref()), (first.since, Some("k1")));
        health.record_statement_success();
        let third = health.condition().stalled.unwrap();
        assert_eq!(third.since, first.since, "a dead letter is no success");
        health.record_resumption();
        assert_eq!(health.condition().stalled, None);
        health.record_stall(&missing, None);
        health.record_statement_success();
        assert_eq!(health.condition().stalled, None, "our own statements work again");
    }

    #[test]
    fn a_handler_fails_when_twenty_new_messages_in_a_row_do() {
        let health = Health::new(DatabaseClock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let note = |outcome: Outcome| health.record_outcome(&PartialIdentity::default(), &outcome);
        let failed = |attempt| Outcome::Retried {
            attempt,
            delay: std::time::Duration::from_secs(1),
            code: Some("P0001".to_owned()),
            detail: "the till does not open".to_owned(),
        };
        let messages = || health.condition().failing.map(|failing| failing.messages);
        (0..19).for_each(|_| note(failed(1)));
        (0..100).for_each(|_| note(failed(2)));
        assert_eq!(messages(), None, "a few bad messages fail often");
        note(failed(1));
        assert_eq!(messages(), Some(20));
        note(Outcome::Duplicate(oncely_core::outcome::DuplicateSource::Mirror));
        assert_eq!(messages(), Some(20), "nothing ran");
        note(Outcome::Refused { attempt: 1, reason: String::new() });
        assert_eq!(messages(), None, "a no is an answer");
    }

    #[test]
    fn the_last_completion_never_goes_back() {
        let health = Health::new(DatabaseClock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        health.record_completion(at(2).unwrap());
        health.record_completion(at(1).unwrap());
        assert_eq!(health.condition().completed_at, at(2));
    }
}
