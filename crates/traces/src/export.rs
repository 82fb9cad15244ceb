//! Export of spans: a queue that never blocks its senders, and a task that empties it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Limit of waiting spans: about four megabytes.
const MAX_QUEUED_SPANS: usize = 2_048;

/// Limit of spans in one request.
const MAX_SPANS_PER_REQUEST: usize = 512;

/// Time for which spans wait to be sent together.
const EXPORT_DELAY: Duration = Duration::from_millis(500);

/// Limit of one request with its retries; past it its spans are dropped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit of the last export at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of log lines about lost spans while the receiver answers.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Queue of waiting spans.
#[derive(Clone, Debug)]
pub(super) struct SpanQueue {
    sender: mpsc::Sender<SpanData>,
    lost_count: Arc<AtomicU64>,
}

impl SpanQueue {
    /// Adds a span, or drops it if the queue is full.
    pub(super) fn push(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.count_lost(1);
        }
    }

    /// Returns whether the queue has room, before a span is built. If not, counts the span as lost.
    pub(super) fn check_room(&self) -> bool {
        let has_room = self.sender.capacity() > 0;
        if !has_room {
            self.count_lost(1);
        }
        has_room
    }

    fn count_lost(&self, spans: usize) {
        self.lost_count.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Task that empties the queue until `close_token` is cancelled, then exports the remaining spans, for at most a second.
pub(super) struct SpanSender<E> {
    exporter: E,
    endpoint: String,
    receiver: mpsc::Receiver<SpanData>,
    lost_count: Arc<AtomicU64>,
    close_token: CancellationToken,
    /// Whether the last request failed, which is logged.
    is_away: bool,
    logged_at: Option<Instant>,
}

impl<E: SpanExporter> SpanSender<E> {
    pub(super) fn new(exporter: E, endpoint: String, close_token: CancellationToken) -> (SpanQueue, Self) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_SPANS);
        let lost_count = Arc::new(AtomicU64::new(0));
        let queue = SpanQueue { sender, lost_count: Arc::clone(&lost_count) };
        (
            queue,
            Self { exporter, endpoint, receiver, lost_count, close_token, is_away: false, logged_at: None },
        )
    }

    /// Exports spans until [`Self::close_token`] is cancelled or all senders are dropped, then the remaining ones for at most a
    /// second. Logs the number of lost spans.
    pub(super) async fn run(mut self) {
        let close_token = self.close_token.clone();
        let deadline = async {
            close_token.cancelled().await;
            tokio::time::sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send() => {}
            () = deadline => {}
        }
        let waiting = u64::try_from(self.receiver.len()).unwrap_or(u64::MAX);
        let lost = self.lost_count.load(Ordering::Relaxed).saturating_add(waiting);
        if lost > 0 {
            tracing::warn!(endpoint = self.endpoint, lost, "spans were lost");
        }
    }

    /// Sends spans in groups, after a short wait for more, until no more can come.
    async fn send(&mut self) {
        let close_token = self.close_token.clone();
        loop {
            let mut spans = Vec::new();
            tokio::select! {
                biased;
                () = close_token.cancelled() => self.receiver.close(),
                count = self.receiver.recv_many(&mut spans, MAX_SPANS_PER_REQUEST) => if count == 0 { return },
            }
            if spans.len() < MAX_SPANS_PER_REQUEST {
                tokio::select! {
                    biased;
                    () = close_token.cancelled() => {}
                    () = tokio::time::sleep(EXPORT_DELAY) => {}
                }
                self.fill(&mut spans);
            }
            match spans.is_empty() {
                true => return,
                false => self.export(spans).await,
            }
        }
    }

    /// Takes waiting spans up to the limit of a request.
    fn fill(&mut self, spans: &mut Vec<SpanData>) {
        while spans.len() < MAX_SPANS_PER_REQUEST
            && let Ok(span) = self.receiver.try_recv()
        {
            spans.push(span);
        }
    }

    /// Exports one request. Lost spans are counted, and logged once: when the receiver stops answering, and when it answers again.
    async fn export(&mut self, spans: Vec<SpanData>) {
        let count = spans.len();
        // Counted first and taken back afterwards: at the end the future may be dropped.
        self.count_lost(count);
        let error = match tokio::time::timeout(EXPORT_TIMEOUT, self.exporter.export(spans)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {EXPORT_TIMEOUT:?}")),
        };
        let endpoint = &self.endpoint;
        match error {
            Some(error) if !self.is_away => {
                self.is_away = true;
                tracing::warn!(
                    endpoint,
                    error,
                    "trace export failed; dropping spans, messages are not affected"
                );
            }
            Some(_) => {}
            None => {
                self.lost_count.fetch_sub(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
                let is_due = self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
                if self.is_away {
                    let lost = self.lost_count.swap(0, Ordering::Relaxed);
                    tracing::info!(endpoint, lost, "trace export recovered");
                } else if is_due && self.lost_count.load(Ordering::Relaxed) > 0 {
                    self.logged_at = Some(Instant::now());
                    let lost = self.lost_count.swap(0, Ordering::Relaxed);
                    tracing::warn!(endpoint, lost, "trace receiver too slow; spans were dropped");
                }
                self.is_away = false;
            }
        }
    }

    fn count_lost(&self, spans: usize) {
        self.lost_count.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
