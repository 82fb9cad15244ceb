//! One try of a batch.

use std::time::Instant;

use chrono::{DateTime, Utc};

use super::plan::Plan;
use super::replies::wants_reply;
use crate::handler::{Run, SqlHandler};
use crate::metrics::Stage;
use crate::pg::{Backend, LockWait, Session};
use crate::traces::BatchTrace;
use crate::worker::candidate::Candidate;
use crate::worker::prediction::{ExpectedKeys, SMALL};
use crate::worker::shared::Shared;

/// One try of a batch: whose messages, how, on which session, and since when.
pub(crate) struct BatchRun<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) trace: &'a BatchTrace,
    /// With distinct identities.
    pub(crate) candidates: &'a [&'a Candidate],
    pub(crate) plan: Plan,
    pub(crate) keys: ExpectedKeys,
    /// The session that serves it.
    pub(crate) backend: Backend,
    /// Of the session's database.
    pub(crate) epoch: String,
    pub(crate) started: Instant,
    /// By the database's clock.
    pub(crate) now: DateTime<Utc>,
}

impl<'a> BatchRun<'a> {
    /// Begins now.
    pub(crate) fn new(
        (shared, trace): (&'a Shared, &'a BatchTrace),
        session: &Session,
        plan: Plan,
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
            now: session.clock.now(),
        }
    }

    /// The handler, where the batch is a transaction of one statement: a small one of a SQL function, whose keys nobody is expected to
    /// have, and where nobody waits for a reply. Everything else goes step by step.
    pub(crate) fn in_one_statement(&self) -> Option<&'a SqlHandler> {
        match (&self.shared.run, self.plan, self.keys) {
            (Run::Sql(handler), Plan::Together { turn: false }, ExpectedKeys::Fresh)
                if self.candidates.len() <= SMALL
                    && !self.candidates.iter().any(|one| wants_reply(self.shared, one)) =>
            {
                Some(handler)
            }
            _ => None,
        }
    }

    /// How long the handler waits for locks. A batch gives way to whatever stands in its way, unless it takes its locks in the same order as
    /// others: it holds many, so that waiting for one may close a circle. So does a message that runs by itself, after half a second: others
    /// of its batch wait behind it. A batch of one waits as long as its session may.
    pub(crate) fn lock_wait(&self) -> LockWait {
        match self.plan {
            plan if plan.has_turn() || plan.is_by_itself() => LockWait::Turn,
            _ if self.candidates.len() == 1 || self.shared.consumer.lock_order.is_some() => LockWait::Session,
            _ => LockWait::Batch,
        }
    }

    /// It has passed a stage that began then.
    pub(crate) fn passed(&self, stage: Stage, began: Instant) {
        self.shared.passed(self.trace, stage, began);
    }

    /// Since it began, in microseconds.
    pub(crate) fn elapsed_us(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}
