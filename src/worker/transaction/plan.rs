//! How a batch goes through a transaction.

use crate::pg::LockWait;

/// How messages share a transaction and what becomes of it where one of them fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// All messages at once: the first failure rolls all back.
    Together {
        /// The batch has met another transaction's locks: its handler waits for locks only for a moment.
        contended: bool,
    },
    /// A failure is rolled back by itself: a SQL function runs in parts, and in a part that fails message by message, inside the server;
    /// a Rust handler has a subtransaction for each message.
    Apart {
        /// As above.
        contended: bool,
        /// A body among them is JSON that jsonb refuses: each is parsed by itself, inside the server.
        unparsed: bool,
    },
    /// One message, in a transaction and a subtransaction of its own.
    ByItself {
        /// Another message of the consumer has succeeded beside it.
        witness: bool,
    },
}

impl Plan {
    /// How long the handler waits for locks.
    pub(crate) fn lock_wait(self) -> LockWait {
        match self {
            Self::Together { contended: true } | Self::Apart { contended: true, .. } => LockWait::Moment,
            _ => LockWait::Session,
        }
    }

    /// Is it known that another message of the consumer has succeeded?
    pub(crate) fn has_witness(self) -> bool {
        self == Self::ByItself { witness: true }
    }

    /// Is it about one message alone?
    pub(crate) fn is_by_itself(self) -> bool {
        matches!(self, Self::ByItself { .. })
    }
}
