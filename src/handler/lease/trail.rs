//! What the trail says of a run.

use crate::pg::LeaseTrace;

/// For the trail, as long as the run lasts.
#[derive(Clone, Debug)]
pub(crate) struct Trail {
    pub(crate) queue: String,
    pub(crate) worker: String,
    pub(crate) trace_id: Option<String>,
}

impl Trail {
    pub(super) fn of(&self) -> LeaseTrace<'_> {
        LeaseTrace { queue: &self.queue, worker: &self.worker, trace_id: self.trace_id.as_deref() }
    }
}
