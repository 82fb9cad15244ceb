//! Looks up the first runs of duplicates, in the background, in small batches, and only for spans that are exported.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TraceId;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::span::{link, whole_trace};
use super::tracer::Tracer;
use oncely_core::identity::IdentityPart;
use oncely_postgres::{self as pg, Session, SessionFactory};

/// Limit of waiting duplicates. Beyond it their spans get no link.
const QUEUE: usize = 256;

/// Limit of duplicates in one query.
const BATCH: usize = 64;

/// Limit of a query, including the connection.
const LIMIT: Duration = Duration::from_secs(1);

/// Idle time after which the connection is closed.
const IDLE: Duration = Duration::from_secs(30);

/// Queue of duplicates that wait for their first runs.
#[derive(Debug)]
pub(super) struct FirstRuns {
    tracer: Arc<Tracer>,
    waiting: mpsc::Sender<Duplicate>,
}

#[derive(Debug)]
struct Duplicate {
    span: SpanData,
    tenant: IdentityPart,
    key: IdentityPart,
}

/// The task that queries.
pub(super) struct FirstRunLookup {
    tracer: Arc<Tracer>,
    consumer: IdentityPart,
    factory: SessionFactory,
    application: String,
    waiting: mpsc::Receiver<Duplicate>,
    session: Option<Session>,
}

impl FirstRuns {
    pub(super) fn new(
        tracer: Arc<Tracer>,
        consumer: IdentityPart,
        factory: SessionFactory,
        application: String,
    ) -> (Self, FirstRunLookup) {
        let (sender, waiting) = mpsc::channel(QUEUE);
        let first_runs = Self { tracer: Arc::clone(&tracer), waiting: sender };
        (first_runs, FirstRunLookup { tracer, consumer, factory, application, waiting, session: None })
    }

    /// Exports the span when its first run is known, or can't be queried.
    pub(super) fn look_up(&self, span: SpanData, tenant: &IdentityPart, key: &IdentityPart) {
        let duplicate = Duplicate { span, tenant: tenant.clone(), key: key.clone() };
        if let Err(error) = self.waiting.try_send(duplicate) {
            self.tracer.push(error.into_inner().span);
        }
    }
}

impl FirstRunLookup {
    /// Ends with `ending`, after one last query.
    pub(super) async fn run(mut self, ending: CancellationToken) {
        loop {
            let mut duplicates = Vec::new();
            tokio::select! {
                biased;
                () = ending.cancelled() => self.waiting.close(),
                taken = self.waiting.recv_many(&mut duplicates, BATCH) => if taken == 0 { break },
                () = tokio::time::sleep(IDLE), if self.session.is_some() => {
                    self.close().await;
                    continue;
                }
            }
            if ending.is_cancelled() {
                while let Ok(duplicate) = self.waiting.try_recv() {
                    duplicates.push(duplicate);
                }
            }
            self.complete(&mut duplicates).await;
            for duplicate in duplicates {
                self.tracer.push(duplicate.span);
            }
            if ending.is_cancelled() {
                break;
            }
        }
        self.close().await;
    }

    async fn close(&mut self) {
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    /// Adds the links. Runs that PostgreSQL does not return in time get none.
    async fn complete(&mut self, duplicates: &mut [Duplicate]) {
        if duplicates.is_empty() {
            return;
        }
        let mut session = self.session.take();
        let asked = async {
            let keys: Vec<_> = duplicates.iter().map(|one| (&one.tenant, &one.key)).collect();
            let mut open = match session.take().filter(|open| self.factory.admits(open)) {
                Some(open) => open,
                None => self.factory.open(&self.application).await?,
            };
            let found = pg::first_runs(&mut open.connection, &self.consumer, &keys).await?;
            Ok::<_, pg::NoSession>((open, found))
        };
        // A session without an answer is dropped.
        let (open, found) = match tokio::time::timeout(LIMIT, asked).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => {
                tracing::debug!(consumer = %self.consumer, error = %error, "first runs are not known");
                return;
            }
            Err(_) => return,
        };
        self.session = Some(open);
        for (position, trace_id) in found {
            // Clients that claim by SQL may store any text.
            if let Some(duplicate) = duplicates.get_mut(position)
                && trace_id.len() == 32
                && let Ok(trace) = TraceId::from_hex(&trace_id)
                && trace != TraceId::INVALID
            {
                duplicate.span.links.links.push(link(whole_trace(trace), "first_run"));
                duplicate.span.attributes.push(KeyValue::new("oncely.duplicate_of", trace_id));
            }
        }
    }
}
