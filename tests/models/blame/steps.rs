//! What can happen next.

use std::time::Duration;

use chrono::DateTime;
use oncely::blame::{Blame, Circumstances, blame};
use oncely::decide::{FailureDecision, KeyRecord, KeyStatus, after_failure, wait};
use oncely::fault::{Fault, FaultClass};
use oncely::retry::RetryPolicy;

/// What the worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// What production does.
    Right,
    /// Takes every error of the environment's kind for the message's.
    ChargesAll,
    /// Takes every error of the environment's kind for the environment's, and waits with the message.
    Pins,
    /// Runs a copy whenever it comes.
    CopiesSpend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Succeeds while the environment works.
    Good,
    /// Fails like the environment, always.
    Branch,
}

/// A world to explore.
#[derive(Clone)]
pub struct World {
    pub policy: Policy,
    pub kinds: Vec<Kind>,
    /// Of each message.
    pub copies: u8,
    pub ticks: u8,
    /// How often the environment breaks.
    pub breaks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub broken: bool,
    breaks: u8,
    pub tick: u8,
    completed: u8,
    pub messages: Vec<Message>,
    /// The lane is at this one until it succeeds.
    pinned: Option<(usize, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// When each of its copies comes, the soonest first.
    pub copies: Vec<u8>,
    pub attempts: u8,
    not_before: u8,
    answered: bool,
    /// What was completed when it failed first with nobody to answer for it.
    pub undecided: Option<u8>,
    pub done: bool,
    pub dead: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A message's first copy, which comes at this tick, runs.
    Deliver(usize, u8),
    Tick,
    Break,
    Heal,
}

impl World {
    pub fn start(&self) -> State {
        let message = Message {
            copies: vec![0; usize::from(self.copies)],
            attempts: 0,
            not_before: 0,
            answered: false,
            undecided: None,
            done: false,
            dead: false,
        };
        State {
            broken: false,
            breaks: self.breaks,
            tick: 0,
            completed: 0,
            messages: vec![message; self.kinds.len()],
            pinned: None,
        }
    }

    pub fn good(&self) -> impl Iterator<Item = usize> {
        (0..self.kinds.len()).filter(|m| self.kinds[*m] == Kind::Good)
    }

    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for (m, message) in state.messages.iter().enumerate() {
            match message.copies.first() {
                Some(&at) if at <= state.tick && state.pinned.is_none_or(|pinned| pinned == (m, at)) => {
                    actions.push(Action::Deliver(m, at));
                }
                _ => {}
            }
        }
        if state.tick < self.ticks {
            actions.push(Action::Tick);
        }
        match state.broken {
            true => actions.push(Action::Heal),
            false if state.breaks > 0 => actions.push(Action::Break),
            false => {}
        }
    }

    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.tick += 1,
            Action::Break => {
                state.broken = true;
                state.breaks -= 1;
            }
            Action::Heal => state.broken = false,
            Action::Deliver(m, at) => self.deliver(state, m, at),
        }
    }

    fn deliver(&self, state: &mut State, m: usize, at: u8) {
        let tick = state.tick;
        let message = &mut state.messages[m];
        message.copies.remove(0);
        if message.done || message.dead {
            return;
        }
        let time = |tick: u8| DateTime::from_timestamp(tick.into(), 0).unwrap();
        let record = KeyRecord {
            status: KeyStatus::InProgress,
            fingerprint: None,
            attempts: message.attempts.into(),
            crash_attempts: 0,
            reason: None,
            last_error: None,
            error_code: None,
            not_before: Some(time(message.not_before)),
            is_running: false,
            is_leased: false,
        };
        if wait(&record, time(tick)).is_some() && self.policy != Policy::CopiesSpend {
            message.put(message.not_before);
            return;
        }
        let retry = RetryPolicy { delays: vec![Duration::from_secs(1)], max_attempts: 3, max_crashes: 3 };
        if !state.broken && self.kinds[m] == Kind::Good {
            message.done = true;
            message.undecided = None;
            state.completed += 1;
            state.pinned = None;
            return;
        }
        let next = u32::from(message.attempts) + 1;
        let circumstances = Circumstances {
            by_itself: true,
            witness: message.answered || message.undecided.is_some_and(|before| state.completed > before),
            alone: false,
            is_last: retry.after(next).is_none(),
            persists: false,
        };
        let verdict = match self.policy {
            Policy::ChargesAll => Blame::Message(FaultClass::Transient),
            Policy::Pins => {
                state.pinned = Some((m, at));
                Blame::Nobody
            }
            Policy::Right | Policy::CopiesSpend => blame(FaultClass::Environment, circumstances),
        };
        match verdict {
            Blame::Message(class) => {
                message.attempts += 1;
                message.answered = true;
                message.undecided = None;
                match after_failure(&Fault::new(class, None, "model"), next, &retry) {
                    FailureDecision::Retry(_) => {
                        message.not_before = tick + 1;
                        message.put(tick + 1);
                    }
                    _ => message.dead = true,
                }
            }
            Blame::Batch | Blame::Nobody => {
                message.undecided.get_or_insert(state.completed);
                message.put(at);
            }
        }
    }
}

impl Message {
    fn put(&mut self, at: u8) {
        self.copies.push(at);
        self.copies.sort_unstable();
    }
}
