//! The broker, the table and the workers.

use oncely_core::decide::{KeyRecord, KeyStatus};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::reason::{Reason, Rejection};
use oncely_core::settlement::Settlement;

/// What a message's handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Good,
    /// Fails once.
    Flaky,
    /// Fails always, and says so.
    Poison,
    /// Ends the process.
    Killer,
}

/// A message as published.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    pub key: u8,
    pub payload: u8,
    pub kind: Kind,
}

/// A message at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Queued {
    pub id: u8,
    pub redelivered: bool,
    /// How often it came back.
    pub returned: u8,
}

/// A message at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    pub id: u8,
    pub redelivered: bool,
    pub tag: u8,
    /// The channel that it came on is gone.
    pub stale: bool,
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// Its handler failed, or its key is another payload's.
    Rejected,
    /// It ended too many processes.
    Crash,
    /// The broker's delivery limit.
    Limit,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub status: Status,
    pub payload: u8,
    pub attempts: u8,
    /// Runs that were begun under suspicion and did not end.
    pub crashes: u8,
}

/// A row's state, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Absent,
    InProgress,
    Completed,
    Failed,
}

impl Row {
    /// As the look-up returns it.
    pub fn record(&self) -> Option<KeyRecord> {
        let status = match self.status {
            Status::Absent => return None,
            Status::InProgress => KeyStatus::InProgress,
            Status::Completed => KeyStatus::Completed,
            Status::Failed => KeyStatus::Failed,
        };
        Some(KeyRecord {
            status,
            fingerprint: Some(print(self.payload)),
            attempts: self.attempts.into(),
            crash_attempts: self.crashes.into(),
            reason: None,
            last_error: None,
            error_code: None,
            not_before: None,
            is_running: false,
            is_leased: false,
        })
    }
}

/// A payload's fingerprint.
pub fn print(payload: u8) -> Fingerprint {
    Fingerprint::new([0; 4], [payload; 12])
}

/// An [`Outcome`] without its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Completed,
    Duplicate,
    Retried {
        attempt: u8,
    },
    /// `attempt` is 0 where it did not run.
    Dead {
        attempt: u8,
        why: Why,
    },
}

impl Fate {
    /// As production has it; what the broker is told follows from that.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Completed => Outcome::Completed { attempt: 1, response: None },
            Self::Duplicate => Outcome::Duplicate(DuplicateSource::Postgres),
            Self::Retried { attempt } => Outcome::Retried {
                attempt: attempt.into(),
                delay: std::time::Duration::from_secs(1),
                code: None,
                detail: String::new(),
            },
            Self::Dead { attempt, .. } => Outcome::DeadLettered {
                attempt: attempt.into(),
                rejection: Rejection::new(Reason::Poison, ""),
                code: None,
                letter: None,
            },
        }
    }
}

/// Messages that go through one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portion {
    pub items: Vec<Delivery>,
    /// They may have killed a process: their runs are counted before they begin.
    pub suspect: bool,
    /// Nothing else runs in the process meanwhile.
    pub alone: bool,
    /// The run at hand is counted.
    pub marked: bool,
}

/// Where a lane is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    /// The handlers have run, COMMIT has not been sent. `aborted`: PostgreSQL will answer it with a rollback.
    Open {
        portion: Portion,
        fates: Vec<Option<Fate>>,
        aborted: bool,
    },
    /// Committed, as far as the worker knows.
    Settling {
        acks: Vec<Delivery>,
        copies: Vec<(Delivery, Fate)>,
        published: bool,
        all: Vec<Delivery>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    pub todo: Vec<Portion>,
    pub phase: Phase,
}

/// A worker's process with its one channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub next_tag: u8,
    /// The broker's side of the channel.
    pub unacked: Vec<(u8, Queued)>,
    /// Delivered, and not yet taken by a lane.
    pub intake: Vec<Delivery>,
    pub settlement: Settlement,
    pub lanes: Vec<Lane>,
}

/// Faults that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    pub crashes: u8,
    pub resets: u8,
    pub lost_replies: u8,
    pub swallowed: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Sorted: any of them may be delivered next.
    pub ready: Vec<Queued>,
    pub dead: Vec<(u8, Why)>,
    pub rows: Vec<Row>,
    /// By message.
    pub effects: Vec<u8>,
    pub processes: Vec<Process>,
    pub faults: Faults,
    /// A tag was acknowledged that is not outstanding on its channel: the broker would close it.
    pub acked_twice: bool,
}

impl Process {
    /// What the lanes have in their hands.
    pub fn in_hand(&mut self) -> impl Iterator<Item = &mut Delivery> {
        self.lanes.iter_mut().flat_map(|lane| {
            let todo = lane.todo.iter_mut().flat_map(|portion| &mut portion.items);
            let (items, acks, copies, all) = match &mut lane.phase {
                Phase::Idle => (None, None, None, None),
                Phase::Open { portion, .. } => (Some(&mut portion.items), None, None, None),
                Phase::Settling { acks, copies, all, .. } => (None, Some(acks), Some(copies), Some(all)),
            };
            todo.chain(items.into_iter().flatten())
                .chain(acks.into_iter().flatten())
                .chain(copies.into_iter().flatten().map(|(delivery, _)| delivery))
                .chain(all.into_iter().flatten())
        })
    }
}

impl State {
    /// Nothing is left to do.
    pub fn settled(&self) -> bool {
        self.ready.is_empty() && self.processes.iter().all(|process| process.unacked.is_empty())
    }

    /// Is this message still somewhere at the broker?
    pub fn is_held(&self, id: u8) -> bool {
        self.ready.iter().any(|queued| queued.id == id)
            || self.dead.iter().any(|(dead, _)| *dead == id)
            || self.processes.iter().any(|process| process.unacked.iter().any(|(_, queued)| queued.id == id))
    }

    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.processes.iter().flat_map(|process| &process.lanes)
    }
}
