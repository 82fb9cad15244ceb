//! Looks up the first runs of duplicates, in the background, in small batches, and only for spans that are exported.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TraceId;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::span::{build_trace_context, new_link};
use super::tracer::Tracer;
use oncely_core::identity::IdentityPart;
use oncely_postgres::{self as pg, Session, SessionFactory};

/// Limit of waiting duplicates. Beyond it their spans get no link.
const MAX_QUEUED_DUPLICATES: usize = 256;

/// Limit of duplicates in one query.
const MAX_DUPLICATES_PER_QUERY: usize = 64;

/// Limit of a query, including the connection.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Idle time after which the connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Queue of duplicates that wait for their first runs.
#[derive(Debug)]
pub(super) struct FirstRuns {
    tracer: Arc<Tracer>,
    sender: mpsc::Sender<Duplicate>,
}

#[derive(Debug)]
struct Duplicate {
    span: SpanData,
    tenant: IdentityPart,
    key: IdentityPart,
}

/// Task that looks up first runs.
pub(super) struct FirstRunLookup {
    tracer: Arc<Tracer>,
    consumer: IdentityPart,
    factory: SessionFactory,
    application: String,
    receiver: mpsc::Receiver<Duplicate>,
    session: Option<Session>,
}

impl FirstRuns {
    pub(super) fn new(
        tracer: Arc<Tracer>,
        consumer: IdentityPart,
        factory: SessionFactory,
        application: String,
    ) -> (Self, FirstRunLookup) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_DUPLICATES);
        let first_runs = Self { tracer: Arc::clone(&tracer), sender };
        (first_runs, FirstRunLookup { tracer, consumer, factory, application, receiver, session: None })
    }

    /// Queues a duplicate's span, which is exported when its first run is known or can't be queried. If the queue is full, exports the span
    /// at once, without a link.
    pub(super) fn look_up(&self, span: SpanData, tenant: &IdentityPart, key: &IdentityPart) {
        let duplicate = Duplicate { span, tenant: tenant.clone(), key: key.clone() };
        if let Err(error) = self.sender.try_send(duplicate) {
            self.tracer.push(error.into_inner().span);
        }
    }
}

impl FirstRunLookup {
    /// Looks up first runs and exports the spans, until `end_token` is cancelled; then makes one last query.
    pub(super) async fn run(mut self, end_token: CancellationToken) {
        loop {
            let mut duplicates = Vec::new();
            tokio::select! {
                biased;
                () = end_token.cancelled() => self.receiver.close(),
                count = self.receiver.recv_many(&mut duplicates, MAX_DUPLICATES_PER_QUERY) => if count == 0 { break },
                () = tokio::time::sleep(IDLE_TIMEOUT), if self.session.is_some() => {
                    self.close().await;
                    continue;
                }
            }
            if end_token.is_cancelled() {
                while let Ok(duplicate) = self.receiver.try_recv() {
                    duplicates.push(duplicate);
                }
            }
            self.add_links(&mut duplicates).await;
            for duplicate in duplicates {
                self.tracer.push(duplicate.span);
            }
            if end_token.is_cancelled() {
                break;
            }
        }
        self.close().await;
    }

    /// Closes the session, if one is open.
    async fn close(&mut self) {
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    /// Queries the first runs, and adds links to them. Duplicates get none if PostgreSQL does not answer within [`QUERY_TIMEOUT`].
    async fn add_links(&mut self, duplicates: &mut [Duplicate]) {
        if duplicates.is_empty() {
            return;
        }
        let mut session = self.session.take();
        let query = async {
            let keys: Vec<_> =
                duplicates.iter().map(|duplicate| (&duplicate.tenant, &duplicate.key)).collect();
            let mut session = match session.take().filter(|session| self.factory.record_timeline(session)) {
                Some(session) => session,
                None => self.factory.open(&self.application).await?,
            };
            let first_runs = pg::read_first_runs(&mut session.connection, &self.consumer, &keys).await?;
            Ok::<_, pg::NoSession>((session, first_runs))
        };
        // A session without an answer is dropped.
        let (session, first_runs) = match tokio::time::timeout(QUERY_TIMEOUT, query).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                tracing::debug!(consumer = %self.consumer, error = %error, "first runs are not known");
                return;
            }
            Err(_) => return,
        };
        self.session = Some(session);
        for (position, trace_id) in first_runs {
            // Clients that claim by SQL may store any text.
            if let Some(duplicate) = duplicates.get_mut(position)
                && trace_id.len() == 32
                && let Ok(trace) = TraceId::from_hex(&trace_id)
                && trace != TraceId::INVALID
            {
                duplicate.span.links.links.push(new_link(build_trace_context(trace), "first_run"));
                duplicate.span.attributes.push(KeyValue::new("oncely.duplicate_of", trace_id));
            }
        }
    }
}
