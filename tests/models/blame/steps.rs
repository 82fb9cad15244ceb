//! What can happen next.

use std::time::Duration;

use chrono::DateTime;
use oncely_core::blame::{Blame, Circumstances, blame};
use oncely_core::decide::{FailureDecision, KeyRecord, KeyStatus, decide_after_failure, remaining_wait};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::retry::RetryPolicy;

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
    /// Takes any success that is known at the end of a try for a witness, whenever it began.
    AnySuccess,
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
    /// It has failed, and the cause is undecided.
    pub undecided: bool,
    /// Another one that began after its first failure has succeeded; with `AnySuccess`, any other one.
    witnessed: bool,
    at_work: Option<Try>,
    pub done: bool,
    pub dead: bool,
}

/// A try between its begin and its commit. Its handler is called once, at any moment in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Try {
    /// When its copy came.
    at: u8,
    /// The messages that had failed when it began, a bit for each.
    after: u8,
    /// Its message had a witness when it began.
    witness: bool,
    fails: Option<bool>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A message's first copy, which comes at this tick, begins to run.
    Begin(usize, u8),
    /// Its handler is called.
    Call(usize),
    /// Its failure is judged, and the result committed.
    End(usize),
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
            undecided: false,
            witnessed: false,
            at_work: None,
            done: false,
            dead: false,
        };
        State {
            broken: false,
            breaks: self.breaks,
            tick: 0,
            messages: vec![message; self.kinds.len()],
            pinned: None,
        }
    }

    pub fn good(&self) -> impl Iterator<Item = usize> {
        (0..self.kinds.len()).filter(|m| self.kinds[*m] == Kind::Good)
    }

    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for (m, message) in state.messages.iter().enumerate() {
            if let Some(one) = message.at_work {
                actions.push(if one.fails.is_some() { Action::End(m) } else { Action::Call(m) });
                continue;
            }
            match message.copies.first() {
                Some(&at) if at <= state.tick && state.pinned.is_none_or(|pinned| pinned == (m, at)) => {
                    actions.push(Action::Begin(m, at));
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
            Action::Begin(m, at) => self.begin(state, m, at),
            Action::Call(m) => {
                let fails = state.broken || self.kinds[m] == Kind::Branch;
                if let Some(one) = &mut state.messages[m].at_work {
                    one.fails = Some(fails);
                }
            }
            Action::End(m) => self.end(state, m),
        }
    }

    fn begin(&self, state: &mut State, m: usize, at: u8) {
        let tick = state.tick;
        let failed = state.messages.iter().enumerate().filter(|(_, other)| other.undecided);
        let after = failed.fold(0, |set, (other, _)| set | 1 << other);
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
        if remaining_wait(&record, time(tick)).is_some() && self.policy != Policy::CopiesSpend {
            message.put(message.not_before);
            return;
        }
        message.at_work = Some(Try { at, after, witness: message.witnessed, fails: None });
    }

    fn end(&self, state: &mut State, m: usize) {
        let tick = state.tick;
        let Some(Try { at, after, witness, fails }) = state.messages[m].at_work.take() else { return };
        if fails == Some(false) {
            for (other, message) in state.messages.iter_mut().enumerate() {
                let began_after = after & 1 << other != 0;
                message.witnessed |= message.undecided && (began_after || self.policy == Policy::AnySuccess);
            }
            let message = &mut state.messages[m];
            message.done = true;
            message.undecided = false;
            message.witnessed = false;
            state.pinned = None;
            return;
        }
        let message = &mut state.messages[m];
        let retry = RetryPolicy { delays: vec![Duration::from_secs(1)], max_attempts: 3, max_crashes: 3 };
        let next = u32::from(message.attempts) + 1;
        let circumstances = Circumstances {
            is_by_itself: true,
            has_witness: match self.policy {
                Policy::AnySuccess => message.witnessed,
                _ => witness || message.answered,
            },
            is_alone: false,
            is_persistent: false,
        };
        let verdict = match self.policy {
            Policy::ChargesAll => Blame::Message(FaultClass::Transient),
            Policy::Pins => {
                state.pinned = Some((m, at));
                Blame::Unknown
            }
            Policy::Right | Policy::CopiesSpend | Policy::AnySuccess => {
                blame(FaultClass::Environment, circumstances)
            }
        };
        match verdict {
            Blame::Message(class) => {
                message.attempts += 1;
                message.answered = true;
                message.undecided = false;
                message.witnessed = false;
                match decide_after_failure(&Fault::new(class, None, "model"), next, &retry) {
                    FailureDecision::Retry(_) => {
                        message.not_before = tick + 1;
                        message.put(tick + 1);
                    }
                    _ => message.dead = true,
                }
            }
            Blame::Batch | Blame::Unknown => {
                message.undecided = true;
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
