//! The traces of a process.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::consumer::ConsumerTraces;
use super::event::EventTraces;
use super::export::Sending;
use super::first_run::FirstRuns;
use super::receiver;
use super::tracer::Tracer;
use crate::config::{Config, Consumer, Problems};
use crate::handler::Run;
use crate::pg::{Door, PgSettings, Timelines};

/// Of looking up first runs: it must not outlast what waits for it.
const LOOK_UP: Duration = Duration::from_secs(1);

/// For what is left at the end. It goes on beside the closing of connections.
const END: Duration = Duration::from_secs(2);

/// The traces of a process; nothing at all without an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    at_work: Option<AtWork>,
}

#[derive(Debug)]
struct AtWork {
    tracer: Arc<Tracer>,
    sending: JoinHandle<()>,
    look_ups: Vec<JoinHandle<()>>,
    /// No more first runs are looked up.
    ending: CancellationToken,
    /// No more spans come.
    closing: CancellationToken,
}

impl Traces {
    /// Starts sending, where there is an endpoint.
    ///
    /// # Errors
    /// When the settings can't be used.
    pub(crate) fn start(program: &str, config: &Config) -> Result<Self, Problems> {
        let Some(settings) = &config.traces else { return Ok(Self::default()) };
        let exporter = receiver::exporter(settings, config, program).map_err(|error| {
            let mut problems = Problems::default();
            let where_from = "is one of the variables OTEL_EXPORTER_OTLP_… set?";
            problems.add("traces", format!("can't be sent: {error} ({where_from})"));
            problems
        })?;
        let closing = CancellationToken::new();
        let (queue, sending) = Sending::new(exporter, settings.endpoint.clone(), closing.clone());
        let tracer = Arc::new(Tracer::new(settings.clone(), queue));
        tracing::info!(endpoint = settings.endpoint, "traces: spans are sent");
        Ok(Self {
            at_work: Some(AtWork {
                tracer,
                sending: tokio::spawn(sending.run()),
                look_ups: Vec::new(),
                ending: CancellationToken::new(),
                closing,
            }),
        })
    }

    /// Those of a consumer.
    pub(crate) fn consumer(
        &mut self,
        config: &Config,
        consumer: &Consumer,
        run: &Run,
        timelines: &Timelines,
    ) -> ConsumerTraces {
        let Some(at_work) = &mut self.at_work else { return ConsumerTraces::default() };
        let postgres = PgSettings {
            connect_timeout: LOOK_UP,
            statement_timeout: LOOK_UP,
            lock_timeout: LOOK_UP,
            ..config.postgres.clone()
        };
        let door = Door::new(postgres, config.cell.clone(), timelines.clone());
        let name = format!("oncely worker {} {} traces", config.worker.name, consumer.name);
        let (first_runs, looking) =
            FirstRuns::new(Arc::clone(&at_work.tracer), consumer.name.clone(), door, name);
        at_work.look_ups.push(tokio::spawn(looking.run(at_work.ending.clone())));
        ConsumerTraces::new(Arc::clone(&at_work.tracer), consumer, run, first_runs)
    }

    /// Those of events on their way out.
    pub(crate) fn events(&self) -> EventTraces {
        EventTraces(self.at_work.as_ref().map(|at_work| Arc::clone(&at_work.tracer)))
    }

    /// Sends what is left, for two seconds at most. Nothing must be at work any more.
    pub(crate) async fn end(self) {
        let Some(at_work) = self.at_work else { return };
        at_work.ending.cancel();
        let ended = async {
            for look_up in at_work.look_ups {
                // One that failed has lost spans, nothing else.
                let _ = look_up.await;
            }
            at_work.closing.cancel();
            let _ = at_work.sending.await;
        };
        // It ends by itself within that: a second for the look-ups, a second for the rest.
        let _ = tokio::time::timeout(END, ended).await;
    }
}
