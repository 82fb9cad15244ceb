//! Export of spans: a queue that never blocks its senders, and a task that empties it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Limit of waiting spans: about four megabytes.
const QUEUE: usize = 2_048;

/// Limit of spans in one request.
const BATCH: usize = 512;

/// How long spans wait to be sent together.
const DELAY: Duration = Duration::from_millis(500);

/// Limit of one request with its retries; past it its spans are dropped.
const LIMIT: Duration = Duration::from_secs(10);

/// Limit of the last export at the end.
const FLUSH: Duration = Duration::from_secs(1);

/// Interval of log lines about lost spans while the receiver answers.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Queue of waiting spans.
#[derive(Clone, Debug)]
pub(super) struct SpanQueue {
    sender: mpsc::Sender<SpanData>,
    lost: Arc<AtomicU64>,
}

impl SpanQueue {
    /// Adds a span, or drops it if the queue is full.
    pub(super) fn push(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.lose(1);
        }
    }

    /// Returns whether the queue has room, before a span is built. A span without room counts as lost.
    pub(super) fn has_room(&self) -> bool {
        let has_room = self.sender.capacity() > 0;
        if !has_room {
            self.lose(1);
        }
        has_room
    }

    fn lose(&self, spans: usize) {
        self.lost.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Empties the queue until `closing`, then exports the rest, for at most a second.
pub(super) struct SpanSender<E> {
    exporter: E,
    endpoint: String,
    receiver: mpsc::Receiver<SpanData>,
    lost: Arc<AtomicU64>,
    closing: CancellationToken,
    /// Whether the last request failed, which is logged.
    is_away: bool,
    logged: Option<Instant>,
}

impl<E: SpanExporter> SpanSender<E> {
    pub(super) fn new(exporter: E, endpoint: String, closing: CancellationToken) -> (SpanQueue, Self) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let queue = SpanQueue { sender, lost: Arc::clone(&lost) };
        (queue, Self { exporter, endpoint, receiver, lost, closing, is_away: false, logged: None })
    }

    /// Ends with [`Self::closing`], or when all senders are dropped.
    pub(super) async fn run(mut self) {
        let closing = self.closing.clone();
        let over = async {
            closing.cancelled().await;
            tokio::time::sleep(FLUSH).await;
        };
        tokio::select! {
            () = self.send() => {}
            () = over => {}
        }
        let left = u64::try_from(self.receiver.len()).unwrap_or(u64::MAX);
        let lost = self.lost.load(Ordering::Relaxed).saturating_add(left);
        if lost > 0 {
            tracing::warn!(endpoint = self.endpoint, lost, "spans were lost");
        }
    }

    async fn send(&mut self) {
        let closing = self.closing.clone();
        loop {
            let mut spans = Vec::new();
            tokio::select! {
                biased;
                () = closing.cancelled() => self.receiver.close(),
                taken = self.receiver.recv_many(&mut spans, BATCH) => if taken == 0 { return },
            }
            if spans.len() < BATCH {
                tokio::select! {
                    biased;
                    () = closing.cancelled() => {}
                    () = tokio::time::sleep(DELAY) => {}
                }
                self.fill(&mut spans);
            }
            match spans.is_empty() {
                true => return,
                false => self.export(spans).await,
            }
        }
    }

    fn fill(&mut self, spans: &mut Vec<SpanData>) {
        while spans.len() < BATCH
            && let Ok(span) = self.receiver.try_recv()
        {
            spans.push(span);
        }
    }

    /// Exports one request. Lost spans are counted, and logged once: when the receiver stops answering, and when it answers again.
    async fn export(&mut self, spans: Vec<SpanData>) {
        let count = spans.len();
        // Counted first and taken back afterwards: at the end the future may be dropped.
        self.lose(count);
        let error = match tokio::time::timeout(LIMIT, self.exporter.export(spans)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {LIMIT:?}")),
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
                self.lost.fetch_sub(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
                let is_due = self.logged.is_none_or(|at| at.elapsed() >= LOG_AGAIN);
                if self.is_away {
                    let lost = self.lost.swap(0, Ordering::Relaxed);
                    tracing::info!(endpoint, lost, "trace export recovered");
                } else if is_due && self.lost.load(Ordering::Relaxed) > 0 {
                    self.logged = Some(Instant::now());
                    let lost = self.lost.swap(0, Ordering::Relaxed);
                    tracing::warn!(endpoint, lost, "trace receiver too slow; spans were dropped");
                }
                self.is_away = false;
            }
        }
    }

    fn lose(&self, spans: usize) {
        self.lost.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
