//! How a batch goes through a transaction.

use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::handler::{Run, SqlHandler};
use crate::pg::{Backend, LockWait, Session};
use crate::worker::batch::candidate::Candidate;
use crate::worker::batch::prediction::{ExpectedKeys, SMALL};
use crate::worker::shared::Shared;
use crate::worker::transaction::replies::wants_reply;

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
            Self::Together { contended: true } | Self::Apart { contended: true } => LockWait::Moment,
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

/// One try of a batch: whose messages, how, on which session, and since when.
pub(crate) struct BatchRun<'a> {
    pub(crate) shared: &'a Shared,
    /// With distinct identities.
    pub(crate) candidates: &'a [&'a Candidate],
    pub(crate) plan: Plan,
    pub(crate) keys: ExpectedKeys,
    /// The session that serves it.
    pub(crate) backend: Backend,
    /// The database's history.
    pub(crate) epoch: String,
    pub(crate) started: Instant,
    /// By the database's clock.
    pub(crate) now: DateTime<Utc>,
}

impl<'a> BatchRun<'a> {
    /// Begins now.
    pub(crate) fn new(
        shared: &'a Shared,
        session: &Session,
        plan: Plan,
        keys: ExpectedKeys,
        candidates: &'a [&'a Candidate],
    ) -> Self {
        Self {
            shared,
            candidates,
            plan,
            keys,
            backend: session.backend,
            epoch: session.cell.epoch.clone(),
            started: Instant::now(),
            now: session.clock.now(),
        }
    }

    /// The handler, where the batch is a transaction of one statement: a small one of a SQL function, whose keys nobody is expected to
    /// have, and where nobody waits for a reply. Everything else goes step by step.
    pub(crate) fn in_one_statement(&self) -> Option<&'a SqlHandler> {
        match (&self.shared.run, self.plan, self.keys) {
            (Run::Sql(handler), Plan::Together { contended: false }, ExpectedKeys::Fresh)
                if self.candidates.len() <= SMALL
                    && !self.candidates.iter().any(|one| wants_reply(self.shared, one)) =>
            {
                Some(handler)
            }
            _ => None,
        }
    }

    /// Since it began, in microseconds.
    pub(crate) fn elapsed_us(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}
