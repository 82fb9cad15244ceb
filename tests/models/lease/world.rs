//! What there is: a key's row, two runs, two copies of a message, a provider.

use std::time::Duration;

use chrono::{DateTime, Utc};
use oncely_core::decide::{KeyRecord, KeyStatus};

/// Ticks of a lease.
pub const LEASE: u8 = 2;
/// Ticks of a run, at the most.
pub const MAX_RUN: u8 = 4;
/// Ticks for which the provider knows a key, where it forgets: a little less than this by our books.
pub const WINDOW: u8 = 3;
/// Runs without a word after which the message is given up.
pub const MAX_CRASHES: u8 = 3;

/// What a step's rule says, and what the other side remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Repeated; the other side knows its keys for ever.
    Pay,
    /// Repeated within a window, for which the other side knows them.
    Charge,
    /// Repeated; the other side knows nothing.
    Mail,
    /// Not repeated.
    Once,
}

/// How it works; all but the first are known to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Right,
    CompleteWithoutToken,
    /// What was read before decides, though it is another one's meanwhile.
    TakeoverFromSnapshot,
    /// Whoever has the name of its holder renews a key.
    RenewByOwnerName,
    /// The claimant's clock says whether a lease is over.
    WorkerClockExpiry,
    InFlightIsDuplicate,
    AckAtClaim,
    /// A result that can't be stored at once is taken for a call that failed.
    ReleaseWhenSavingFailed,
    CheckpointWithoutToken,
    StepKeyPerAttempt,
    WindowIgnored,
    UnknownRepeated,
    /// A process is granted again what it holds, though a run of it is at work.
    ReentrantByProcess,
    NoRunCeiling,
    /// Who has no lease takes a key that ran under one for one that failed.
    RetakeHeld,
    CollectHeld,
    /// A stored result is not looked at.
    StoredIgnored,
    /// The outcome of a call is refused once its lease is lost.
    LateOutcomeLost,
    /// A run for which an outcome was unknown keeps its lease when it becomes known.
    DoubterKeepsItsLease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    Absent,
    InProgress,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    Open,
    Started {
        /// By the database's clock.
        since: u8,
        /// Whose call it is.
        token: u8,
        /// The last run that was told that its outcome is unknown; 0: none.
        doubted_by: u8,
    },
    Done,
}

/// The key's row, as it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    pub status: Status,
    pub token: u8,
    /// A run holds it, by that token.
    pub is_held: bool,
    pub ends: u8,
    pub run_ends: u8,
    pub crashes: u8,
    pub step: Step,
    pub round: u8,
}

impl Row {
    pub const ABSENT: Self = Self {
        status: Status::Absent,
        token: 0,
        is_held: false,
        ends: 0,
        run_ends: 0,
        crashes: 0,
        step: Step::Open,
        round: 0,
    };

    pub fn is_held_by(&self, token: u8) -> bool {
        self.is_held && self.token == token
    }

    /// As production reads it, a tick being a second.
    pub fn record(&self, is_leased: bool) -> Option<KeyRecord> {
        let status = match self.status {
            Status::Absent => return None,
            Status::InProgress => KeyStatus::InProgress,
            Status::Done => KeyStatus::Completed,
            Status::Failed => KeyStatus::Failed,
        };
        Some(KeyRecord {
            status,
            fingerprint: None,
            attempts: 0,
            crash_attempts: 0,
            reason: None,
            last_error: None,
            error_code: None,
            not_before: self.is_held.then(|| moment(self.ends)),
            is_running: false,
            is_leased,
        })
    }
}

pub fn moment(tick: u8) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + Duration::from_secs(u64::from(tick))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    /// It has seen the row as it was, a lease that is over in it.
    Saw(Row),
    /// Its claim was committed, and the answer lost.
    Claimed,
    Begins,
    /// The step is announced; the call by this key is not yet made.
    Sends(u8),
    /// It happened; the result is not stored.
    Called,
    /// It was told that the outcome of an earlier run's call is unknown.
    Doubts,
    Ends,
    /// What is to be acknowledged is committed.
    Settles,
}

/// A run. It may have lost its key without knowing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub at: At,
    pub copy: usize,
    pub token: u8,
    pub is_frozen: bool,
    /// Time went by between the announcement and the call.
    pub is_late: bool,
    /// Its channel is gone: the copy is in the queue again, and an acknowledgement reaches nobody.
    pub has_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copy {
    Ready,
    Unacked,
    Acked,
    Dead,
}

/// What must not have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    pub completed_twice: bool,
    /// Somebody completed, stored or renewed what another one held.
    pub not_holder: bool,
    /// A lease was taken before its end.
    pub taken_early: bool,
    pub token_again: bool,
    pub past_window: bool,
    pub stored_called: bool,
    pub acked_open: bool,
    pub too_long: bool,
    /// A run without a lease, or a collection, met a held key.
    pub trespassed: bool,
    pub killed_nobody: bool,
    /// A key was given up as unknown although the outcome of its call was known.
    pub outcome_lost: bool,
}

/// What should be possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    pub takeover: bool,
    pub fenced: bool,
    pub late_finish: bool,
    pub unknown: bool,
    pub late_outcome: bool,
    pub replay: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub clock: u8,
    pub row: Row,
    /// The row before the last commit: what a standby may have.
    pub standby: Row,
    pub lost_commit: bool,
    pub runs: [Option<Run>; 2],
    pub copies: [Copy; 2],
    pub calls: u8,
    pub effects: u8,
    /// Keys that came to the provider, and when first.
    pub known: Vec<(u8, u8)>,
    /// Runs that there may be beside the first: takeovers, failures, keys given back.
    pub excuses: u8,
    /// Tokens that were granted.
    pub greatest: u8,
    pub completions: u8,
    /// Deaths and freezes, and clocks that jumped.
    pub deaths: u8,
    pub left: Budget,
    pub wrong: Wrong,
    pub seen: Seen,
}

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub freezes: u8,
    pub lost_replies: u8,
    pub channels: u8,
    pub tears: u8,
    pub releases: u8,
    pub jumps: u8,
    pub failovers: u8,
}
