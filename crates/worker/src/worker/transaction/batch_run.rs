//! One try of a batch.

use std::time::Instant;

use chrono::{DateTime, Utc};

use super::plan::BatchPlan;
use super::replies::wants_reply;
use crate::worker::candidate::Candidate;
use crate::worker::prediction::{ExpectedKeys, SMALL_BATCH};
use crate::worker::shared::ConsumerContext;
use oncely_handler::{ConsumerHandler, SqlHandler};
use oncely_postgres::{Backend, LockWait, Session};
use oncely_process::metrics::Stage;
use oncely_process::witnesses::Began;
use oncely_traces::BatchTrace;

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
    /// Its begin, among the tries of its consumer.
    pub(crate) began: Began,
    /// Time of its start by the database's clock.
    pub(crate) now: DateTime<Utc>,
}

impl<'a> BatchRun<'a> {
    /// Begins a try now.
    pub(crate) fn new(
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

    /// Returns the handler if the batch is a transaction of one statement: a small one of a SQL function, with keys expected to be new and
    /// without requested replies. Everything else goes step by step; also where the handler may be slow, to measure its time without that of
    /// the commit.
    pub(crate) fn in_one_statement(&self) -> Option<&'a SqlHandler> {
        match (&self.shared.run, self.plan, self.keys) {
            (ConsumerHandler::Sql(handler), BatchPlan::Together { turn: false }, ExpectedKeys::Fresh)
                if self.candidates.len() <= SMALL_BATCH
                    && !self.shared.pace.as_ref().is_some_and(|pace| pace.needs_handler_time())
                    && !self.candidates.iter().any(|one| wants_reply(self.shared, one)) =>
            {
                Some(handler)
            }
            _ => None,
        }
    }

    /// Returns how long the handler waits for locks. A batch gives way to any other transaction, unless it takes its locks in the same
    /// order as others: it holds many, so that waiting for one may deadlock. So does a message that runs by itself, after half a second:
    /// others of its batch wait behind it. A batch of one waits as long as its session may.
    pub(crate) fn lock_wait(&self) -> LockWait {
        match self.plan {
            plan if plan.has_turn() || plan.is_by_itself() => LockWait::Turn,
            _ if self.candidates.len() == 1 || self.shared.consumer.lock_order.is_some() => LockWait::Session,
            _ => LockWait::Batch,
        }
    }

    /// Records the end of a stage, and its beginning.
    pub(crate) fn passed(&self, stage: Stage, began: Instant) {
        self.shared.passed(self.trace, stage, began);
    }

    /// Returns the microseconds since it began.
    pub(crate) fn elapsed_us(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}
