//! How a consumer of this process fares: what its heartbeat tells, and `oncely status` shows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::candidate::Known;
use super::counters::Counts;
use crate::amqp::ChannelLife;
use crate::fault::Fault;
use crate::identity::{Identity, IdentityPart};
use crate::outcome::Outcome;
use crate::pg::{Clock, Pause};

/// What went wrong, when, and with which message, as far as one is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trouble {
    /// Since when, by the database's clock.
    pub(crate) since: DateTime<Utc>,
    /// SQLSTATE, where PostgreSQL reported it.
    pub(crate) code: Option<String>,
    pub(crate) text: String,
    pub(crate) tenant: Option<String>,
    pub(crate) key: Option<String>,
}

/// New messages that failed one after the other, with none in between that succeeded. A handler that is broken for all looks like this
/// where its errors are of a message's kind: such messages are tried again, and the consumer goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failing {
    /// Since the first of them, by the database's clock.
    pub(crate) since: DateTime<Utc>,
    pub(crate) messages: u64,
}

/// Transactions of a consumer that wait for each other's locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contended {
    /// Since the first collision, by the database's clock.
    pub(crate) since: DateTime<Utc>,
}

/// So many of them are no accident: as many as make a consumer pause that finds nothing but poison.
const MANY_IN_A_ROW: u64 = 20;

/// When a stall is logged for the first time, and how often then.
const TOLD_AFTER: TimeDelta = TimeDelta::seconds(1);
const TOLD_AGAIN: TimeDelta = TimeDelta::seconds(10);

/// A consumer's state as it is known in the process. Every method is short, and none waits for anything but the others.
#[derive(Debug)]
pub(crate) struct Health {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    completed_at: Option<DateTime<Utc>>,
    stalled: Option<Trouble>,
    /// When the stall was logged last.
    told: Option<DateTime<Utc>>,
    failed: Option<Trouble>,
    /// How many of them there are by now, however few.
    failing: Option<Failing>,
    /// The channel of each queue.
    subscriptions: BTreeMap<String, Weak<ChannelLife>>,
}

/// What a heartbeat says of a consumer. Read leniently: it may be of another build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) consumer: String,
    /// Since the process started.
    pub(crate) counts: Counts,
    /// Deliveries whose copies don't arrive.
    pub(crate) unsettled: usize,
    /// Somebody has paused it.
    pub(crate) paused: Option<Pause>,
    #[serde(flatten)]
    pub(crate) condition: Condition,
}

/// A consumer's state at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    /// When a message took effect last.
    pub(crate) completed_at: Option<DateTime<Utc>>,
    /// All of the consumer waits for this, from its first time on.
    pub(crate) stalled: Option<Trouble>,
    /// The last message that failed.
    pub(crate) failed: Option<Trouble>,
    /// No new message succeeds.
    pub(crate) failing: Option<Failing>,
    /// Its own transactions collide, and take turns meanwhile.
    pub(crate) contended: Option<Contended>,
    /// By queue: deliveries that are not acknowledged. A queue to which there is no subscription now is missing.
    pub(crate) unacknowledged: BTreeMap<String, u64>,
}

impl Health {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// A message took effect.
    pub(crate) fn completed(&self, at: DateTime<Utc>) {
        let mut state = self.lock();
        state.completed_at = state.completed_at.max(Some(at));
    }

    /// Notes what became of a message.
    pub(crate) fn note(&self, known: &Known, outcome: &Outcome) {
        // What fails again says nothing new: a few bad messages fail as often as they are tried.
        let is_new = outcome.attempt() == Some(1);
        match outcome {
            Outcome::Retried { code, detail, .. } => self.failed(known, code.as_deref(), detail, is_new),
            Outcome::DeadLettered { rejection, code, .. } => {
                self.failed(known, code.as_deref(), &rejection.detail, is_new);
            }
            // A no is an answer: the handler works.
            Outcome::Completed { .. } | Outcome::Refused { .. } => self.lock().failing = None,
            Outcome::Duplicate(_) | Outcome::Postponed { .. } | Outcome::Undecided { .. } => {}
        }
    }

    /// A message failed, and others go on.
    fn failed(&self, known: &Known, code: Option<&str>, text: &str, is_new: bool) {
        let own = |part: &Option<IdentityPart>| part.as_ref().map(|part| part.as_str().to_owned());
        let trouble = Trouble {
            since: self.clock.now(),
            code: code.map(str::to_owned),
            text: text.to_owned(),
            tenant: own(&known.tenant),
            key: own(&known.key),
        };
        let mut state = self.lock();
        if is_new {
            let failing = state.failing.get_or_insert(Failing { since: trouble.since, messages: 0 });
            failing.messages += 1;
        }
        state.failed = Some(trouble);
    }

    /// Nothing goes on: all that is tried fails with this, for example this message; without one, our own statements fail. Said again,
    /// the beginning stays. Is it to be logged? Not in the first second, which may end with the next message, and then every ten.
    pub(crate) fn stalled(&self, fault: &Fault, example: Option<&Identity>) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let since = state.stalled.as_ref().map_or(now, |before| before.since);
        state.stalled = Some(Trouble {
            since,
            code: fault.code.clone(),
            text: fault.message.clone(),
            tenant: example.map(|identity| identity.tenant.as_str().to_owned()),
            key: example.map(|identity| identity.key.as_str().to_owned()),
        });
        let is_due = now - since >= TOLD_AFTER && state.told.is_none_or(|told| now - told >= TOLD_AGAIN);
        if is_due {
            state.told = Some(now);
        }
        is_due
    }

    /// It goes on. Cheap where it never stopped.
    pub(crate) fn resumed(&self) {
        let mut state = self.lock();
        state.stalled = None;
        state.told = None;
    }

    /// A transaction has committed, in which no message succeeded: only a stall of our own statements is over.
    pub(crate) fn committed(&self) {
        let mut state = self.lock();
        if state.stalled.as_ref().is_some_and(|trouble| trouble.key.is_none()) {
            state.stalled = None;
            state.told = None;
        }
    }

    /// A queue is subscribed to by this channel.
    pub(crate) fn subscribed(&self, queue: &str, channel: &Arc<ChannelLife>) {
        self.lock().subscriptions.insert(queue.to_owned(), Arc::downgrade(channel));
    }

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
            failing: state.failing.clone().filter(|failing| failing.messages >= MANY_IN_A_ROW),
            contended: None,
            unacknowledged: state
                .subscriptions
                .iter()
                .filter_map(|(queue, channel)| Some((queue.clone(), unacknowledged(channel)?)))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment: a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::fault::FaultClass;

    #[test]
    fn a_stall_keeps_its_beginning_until_it_is_over() {
        let health = Health::new(Clock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let missing = Fault::new(FaultClass::Environment, Some("42P01".to_owned()), "no such table");
        health.stalled(&missing, None);
        let first = health.condition().stalled.unwrap();
        let identity = Identity {
            tenant: IdentityPart::new(b"acme").unwrap(),
            consumer: IdentityPart::new(b"payments").unwrap(),
            key: IdentityPart::new(b"k1").unwrap(),
        };
        std::thread::sleep(std::time::Duration::from_millis(2));
        health.stalled(&missing, Some(&identity));
        let second = health.condition().stalled.unwrap();
        assert_eq!((second.since, second.key.as_deref()), (first.since, Some("k1")));
        health.committed();
        let third = health.condition().stalled.unwrap();
        assert_eq!(third.since, first.since, "a dead letter is no success");
        health.resumed();
        assert_eq!(health.condition().stalled, None);
        health.stalled(&missing, None);
        health.committed();
        assert_eq!(health.condition().stalled, None, "our own statements work again");
    }

    #[test]
    fn a_handler_fails_when_twenty_new_messages_in_a_row_do() {
        let health = Health::new(Clock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let note = |outcome: Outcome| health.note(&Known::default(), &outcome);
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
        note(Outcome::Duplicate(crate::outcome::DuplicateSource::Mirror));
        assert_eq!(messages(), Some(20), "nothing ran");
        note(Outcome::Refused { attempt: 1, reason: String::new() });
        assert_eq!(messages(), None, "a no is an answer");
    }

    #[test]
    fn the_last_completion_never_goes_back() {
        let health = Health::new(Clock::new(DateTime::UNIX_EPOCH, Instant::now()));
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        health.completed(at(2).unwrap());
        health.completed(at(1).unwrap());
        assert_eq!(health.condition().completed_at, at(2));
    }
}
