//! The traces of a process.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::consumer::ConsumerTraces;
use super::event::EventTraces;
use super::export::SpanSender;
use super::first_run::FirstRuns;
use super::receiver;
use super::tracer::Tracer;
use oncely_config::{Config, ConsumerSettings, Problems};
use oncely_handler::ConsumerHandler;
use oncely_postgres::{PgSettings, SessionFactory, Timelines};

/// Limit of looking up first runs at the end.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Limit of the last export, which runs while connections are closed.
const END: Duration = Duration::from_secs(2);

/// Traces of a process; empty without an endpoint.
#[derive(Debug, Default)]
pub struct Traces {
    at_work: Option<TraceTasks>,
}

#[derive(Debug)]
struct TraceTasks {
    tracer: Arc<Tracer>,
    sending: JoinHandle<()>,
    look_ups: Vec<JoinHandle<()>>,
    /// Stops looking up first runs.
    ending: CancellationToken,
    /// Signals that no more spans come.
    closing: CancellationToken,
}

impl Traces {
    /// Starts the export, if there is an endpoint.
    ///
    /// # Errors
    /// If the settings can't be used.
    pub fn start(program: &str, config: &Config) -> Result<Self, Problems> {
        let Some(settings) = &config.traces else { return Ok(Self::default()) };
        let exporter = receiver::exporter(settings, config, program).map_err(|error| {
            let mut problems = Problems::default();
            let where_from = "is one of the variables OTEL_EXPORTER_OTLP_… set?";
            problems.add("traces", format!("can't be sent: {error} ({where_from})"));
            problems
        })?;
        let closing = CancellationToken::new();
        let (queue, sending) = SpanSender::new(exporter, settings.endpoint.clone(), closing.clone());
        let tracer = Arc::new(Tracer::new(settings.clone(), queue));
        tracing::info!(endpoint = settings.endpoint, "trace export started");
        Ok(Self {
            at_work: Some(TraceTasks {
                tracer,
                sending: tokio::spawn(sending.run()),
                look_ups: Vec::new(),
                ending: CancellationToken::new(),
                closing,
            }),
        })
    }

    /// Returns the traces of a consumer.
    pub fn consumer(
        &mut self,
        config: &Config,
        consumer: &ConsumerSettings,
        run: &ConsumerHandler,
        timelines: &Timelines,
    ) -> ConsumerTraces {
        let Some(at_work) = &mut self.at_work else { return ConsumerTraces::default() };
        let postgres = PgSettings {
            connect_timeout: LOOK_UP,
            statement_timeout: LOOK_UP,
            lock_timeout: LOOK_UP,
            ..config.postgres.clone()
        };
        let factory = SessionFactory::new(postgres, config.cell.clone(), timelines.clone());
        let name = format!("oncely worker {} {} traces", config.worker.name, consumer.name);
        let (first_runs, looking) =
            FirstRuns::new(Arc::clone(&at_work.tracer), consumer.name.clone(), factory, name);
        at_work.look_ups.push(tokio::spawn(looking.run(at_work.ending.clone())));
        ConsumerTraces::new(Arc::clone(&at_work.tracer), consumer, run, first_runs)
    }

    /// Returns the traces of published events.
    pub fn events(&self) -> EventTraces {
        EventTraces(self.at_work.as_ref().map(|at_work| Arc::clone(&at_work.tracer)))
    }

    /// Exports the rest, for at most two seconds. Nothing may be at work any more.
    pub async fn end(self) {
        let Some(at_work) = self.at_work else { return };
        at_work.ending.cancel();
        let ended = async {
            for look_up in at_work.look_ups {
                // A failed task has lost spans only.
                let _ = look_up.await;
            }
            at_work.closing.cancel();
            let _ = at_work.sending.await;
        };
        // It ends by itself within that: a second for the look-ups, a second for the rest.
        let _ = tokio::time::timeout(END, ended).await;
    }
}
