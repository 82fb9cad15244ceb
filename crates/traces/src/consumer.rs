//! The traces of a consumer.

use std::sync::Arc;

use super::batch::BatchTrace;
use super::consumer_spans::ConsumerSpans;
use super::first_run::FirstRuns;
use super::tracer::Tracer;
use oncely_config::ConsumerSettings;
use oncely_handler::ConsumerHandler;

/// Traces of a consumer; empty without an endpoint.
#[derive(Clone, Debug, Default)]
pub struct ConsumerTraces(Option<Arc<ConsumerSpans>>);

impl ConsumerTraces {
    pub(super) fn new(
        tracer: Arc<Tracer>,
        consumer: &ConsumerSettings,
        handler: &ConsumerHandler,
        first_runs: FirstRuns,
    ) -> Self {
        let is_in_postgres = matches!(handler, ConsumerHandler::Sql(_));
        Self(Some(Arc::new(ConsumerSpans {
            tracer,
            consumer: consumer.name.clone(),
            is_in_postgres,
            first_runs,
        })))
    }

    /// Begins a batch with this number of messages.
    pub fn begin_batch(&self, messages: usize) -> BatchTrace {
        BatchTrace::begin(self.0.as_ref(), messages)
    }
}
