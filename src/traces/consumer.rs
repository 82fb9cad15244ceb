//! The traces of a consumer.

use std::sync::Arc;

use super::batch::BatchTrace;
use super::consumer_spans::ConsumerSpans;
use super::first_run::FirstRuns;
use super::tracer::Tracer;
use crate::config::Consumer;
use crate::handler::Run;

/// The traces of a consumer; nothing at all without an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConsumerTraces(Option<Arc<ConsumerSpans>>);

impl ConsumerTraces {
    pub(super) fn new(tracer: Arc<Tracer>, consumer: &Consumer, run: &Run, first_runs: FirstRuns) -> Self {
        let in_postgres = matches!(run, Run::Sql(_));
        Self(Some(Arc::new(ConsumerSpans {
            tracer,
            consumer: consumer.name.clone(),
            in_postgres,
            first_runs,
        })))
    }

    /// A batch of so many messages begins.
    pub(crate) fn batch(&self, messages: usize) -> BatchTrace {
        BatchTrace::new(self.0.as_ref(), messages)
    }
}
