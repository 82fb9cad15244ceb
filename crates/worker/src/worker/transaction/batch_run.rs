//! One try of a batch, and its plan.

use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::worker::candidate::Candidate;
use crate::worker::prediction::ExpectedKeys;
use crate::worker::shared::ConsumerContext;
use oncely_postgres::{Backend, LockWait, Session};
use oncely_process::metrics::Stage;
use oncely_process::witnesses::Began;
use oncely_traces::BatchTrace;

/// Way in which messages share a transaction, and the consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchPlan {
    /// All messages at once: the first failure rolls all back.
    Together {
        /// No other batch of the consumer runs beside it, in any process.
        turn: bool,
    },
    /// A failure is rolled back by itself: a SQL function runs in parts, and in a part that fails message by message, inside the server;
    /// a Rust handler has a subtransaction for each message.
    Apart {
        /// No other batch of the consumer runs beside it, in any process.
        turn: bool,
        /// Each message has a subtransaction from the start: many fail.
        each: bool,
        /// A body among them is JSON that jsonb refuses: each is parsed by itself, inside the server.
        unparsed: bool,
    },
    /// One message, in a transaction and a subtransaction of its own.
    ByItself {
        /// Another message of the batch has succeeded.
        witness: bool,
        /// It has not run before in this batch.
        first: bool,
    },
}

impl BatchPlan {
    /// Returns whether the batch is the consumer's only one, in any process.
    pub(crate) fn has_turn(self) -> bool {
        matches!(self, Self::Together { turn: true } | Self::Apart { turn: true, .. })
    }

    /// Returns whether another message of the batch is known to have succeeded.
    pub(crate) fn has_witness(self) -> bool {
        matches!(self, Self::ByItself { witness: true, .. })
    }

    /// Returns whether the plan is for one message alone.
    pub(crate) fn is_by_itself(self) -> bool {
        matches!(self, Self::ByItself { .. })
    }
}

/// One try of a batch: its messages, plan, session and start.
pub(crate) struct BatchRun<'a> {
    pub(crate) shared: &'a ConsumerContext,
    pub(crate) trace: &'a BatchTrace,
    /// Its messages, with distinct identities.
    pub(crate) candidates: &'a [&'a Candidate],
    pub(crate) plan: BatchPlan,
    pub(crate) keys: ExpectedKeys,
    /// The session that serves it.
    pub(crate) backend: Backend,
    /// Epoch of the session's database.
    pub(crate) epoch: String,
    pub(crate) started: Instant,
    /// Its start, among the tries of its consumer.
    pub(crate) began: Began,
    /// Time of its start by the database's clock.
    pub(crate) now: DateTime<Utc>,
}

impl<'a> BatchRun<'a> {
    /// Begins a try: records its start by this process's clock and the database's, and registers it with the consumer's progress.
    pub(crate) fn begin(
        (shared, trace): (&'a ConsumerContext, &'a BatchTrace),
        session: &Session,
        plan: BatchPlan,
        keys: ExpectedKeys,
        candidates: &'a [&'a Candidate],
    ) -> Self {
        Self {
            shared,
            trace,
            candidates,
            plan,
            keys,
            backend: session.backend,
            epoch: session.cell.epoch.clone(),
            started: Instant::now(),
            began: shared.progress.begin(),
            now: session.clock.now(),
        }
    }

    /// Returns the limit of the handler's waits for locks. A batch gives way to any other transaction, unless it takes its locks in the
    /// same order as others: it holds many, so that waiting for one may deadlock. So does a message that runs by itself, after half a
    /// second: others of its batch wait behind it. A batch of one waits as long as its session may.
    pub(crate) fn lock_wait(&self) -> LockWait {
        match self.plan {
            plan if plan.has_turn() || plan.is_by_itself() => LockWait::Turn,
            _ if self.candidates.len() == 1 || self.shared.consumer.lock_order.is_some() => LockWait::Session,
            _ => LockWait::Batch,
        }
    }

    /// Records a stage that lasted from `began` until now.
    pub(crate) fn record_stage(&self, stage: Stage, began: Instant) {
        self.shared.record_stage(self.trace, stage, began);
    }

    /// Returns the microseconds since the try began.
    pub(crate) fn elapsed_us(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}
