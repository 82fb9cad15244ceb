//! Audit fields of a run.

use oncely_postgres::LeaseTrace;

/// The audit fields of a run, owned for as long as it lasts.
#[derive(Clone, Debug)]
pub struct RunTrail {
    #[doc(hidden)]
    pub queue: String,
    #[doc(hidden)]
    pub worker: String,
    #[doc(hidden)]
    pub trace_id: Option<String>,
}

impl RunTrail {
    #[doc(hidden)]
    pub fn as_trace(&self) -> LeaseTrace<'_> {
        LeaseTrace { queue: &self.queue, worker: &self.worker, trace_id: self.trace_id.as_deref() }
    }
}
