//! What the worker does, and the mistakes that it must not make.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// What production does.
    None,
    /// A handler swallows an error, nothing of ours is written after it, and COMMIT's answer `ROLLBACK` is not read.
    TagIgnored,
    /// Acknowledges as soon as the handler has run.
    AckBeforeCommit,
    /// Acknowledges on whatever channel is open now: tags restart at 1.
    StaleAck,
    /// Acknowledges up to the highest tag of the batch.
    AckOverGap,
    /// Acknowledges each message again after the batch.
    AckTwice,
    /// Takes a commit whose reply was lost for a failed run.
    UnknownIsFailure,
}

/// What happens to messages that were delivered before and are not known as done: one of them may have killed the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing.
    Never,
    /// Their runs are counted; at first they run together, from the second time on each alone in the process.
    GroupThenAlone,
    /// Their runs are counted, and each runs alone in the process.
    Alone,
    /// Their runs are counted, and they always run together.
    GroupAlways,
    /// As [`Self::GroupThenAlone`], but the process's other lanes go on meanwhile.
    AloneInItsLane,
}

/// Runs that did not end before a message is given up.
pub const MAX_CRASHES: u8 = 3;
