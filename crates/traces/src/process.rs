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
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Limit of the last export, which runs while connections are closed.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Traces of a process; empty without an endpoint.
#[derive(Debug, Default)]
pub struct Traces {
    tasks: Option<TraceTasks>,
}

#[derive(Debug)]
struct TraceTasks {
    tracer: Arc<Tracer>,
    sender: JoinHandle<()>,
    look_ups: Vec<JoinHandle<()>>,
    /// Stops looking up first runs.
    end_token: CancellationToken,
    /// Signals that no more spans come.
    close_token: CancellationToken,
}

impl Traces {
    /// Starts the export of spans; without an endpoint the traces are empty.
    ///
    /// # Errors
    /// If the settings can't be used.
    pub fn start(program: &str, config: &Config) -> Result<Self, Problems> {
        let Some(settings) = &config.traces else { return Ok(Self::default()) };
        let exporter = receiver::build_exporter(settings, config, program).map_err(|error| {
            let mut problems = Problems::default();
            let hint = "is one of the variables OTEL_EXPORTER_OTLP_… set?";
            problems.add("traces", format!("can't be sent: {error} ({hint})"));
            problems
        })?;
        let close_token = CancellationToken::new();
        let (queue, sender) = SpanSender::new(exporter, settings.endpoint.clone(), close_token.clone());
        let tracer = Arc::new(Tracer::start(settings.clone(), queue));
        tracing::info!(endpoint = settings.endpoint, "trace export started");
        Ok(Self {
            tasks: Some(TraceTasks {
                tracer,
                sender: tokio::spawn(sender.run()),
                look_ups: Vec::new(),
                end_token: CancellationToken::new(),
                close_token,
            }),
        })
    }

    /// Creates the traces of a consumer, and starts its task that looks up first runs.
    pub fn start_consumer(
        &mut self,
        config: &Config,
        consumer: &ConsumerSettings,
        handler: &ConsumerHandler,
        timelines: &Timelines,
    ) -> ConsumerTraces {
        let Some(tasks) = &mut self.tasks else { return ConsumerTraces::default() };
        let postgres = PgSettings {
            connect_timeout: LOOK_UP_TIMEOUT,
            statement_timeout: LOOK_UP_TIMEOUT,
            lock_timeout: LOOK_UP_TIMEOUT,
            ..config.postgres.clone()
        };
        let factory = SessionFactory::new(postgres, config.cell.clone(), timelines.clone());
        let name = format!("oncely worker {} {} traces", config.worker.name, consumer.name);
        let (first_runs, look_up) =
            FirstRuns::new(Arc::clone(&tasks.tracer), consumer.name.clone(), factory, name);
        tasks.look_ups.push(tokio::spawn(look_up.run(tasks.end_token.clone())));
        ConsumerTraces::new(Arc::clone(&tasks.tracer), consumer, handler, first_runs)
    }

    /// Returns the traces of published events.
    pub fn events(&self) -> EventTraces {
        EventTraces(self.tasks.as_ref().map(|tasks| Arc::clone(&tasks.tracer)))
    }

    /// Exports the remaining spans, for at most two seconds. To be called when no consumer and no lane is at work any more.
    pub async fn end(self) {
        let Some(tasks) = self.tasks else { return };
        tasks.end_token.cancel();
        let finishing = async {
            for look_up in tasks.look_ups {
                // A failed task has lost spans only.
                let _ = look_up.await;
            }
            tasks.close_token.cancel();
            let _ = tasks.sender.await;
        };
        // Normally within that limit: a second for the look-ups, a second for the last export.
        let _ = tokio::time::timeout(LAST_EXPORT_TIMEOUT, finishing).await;
    }
}
