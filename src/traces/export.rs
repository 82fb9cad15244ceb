//! The way of spans to the receiver: a queue that never makes anybody wait, and a task that empties it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Most spans that wait: about four megabytes.
const QUEUE: usize = 2_048;

/// Most spans in one request.
const BATCH: usize = 512;

/// How long spans wait for others to go with them.
const DELAY: Duration = Duration::from_millis(500);

/// For one request with its retries; what it held is dropped then.
const LIMIT: Duration = Duration::from_secs(10);

/// For what is left at the end.
const FLUSH: Duration = Duration::from_secs(1);

/// How often lost spans are logged while the receiver answers.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Where spans wait.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<SpanData>,
    lost: Arc<AtomicU64>,
}

impl Queue {
    /// Hands a span over, or drops it where too many wait.
    pub(super) fn push(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.lose(1);
        }
    }

    /// Is there room for more? Asked before a span is made. What finds none is counted as lost.
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

/// Empties the queue until `closing`, and then what is left, for a second at most.
pub(super) struct Sending<E> {
    exporter: E,
    endpoint: String,
    receiver: mpsc::Receiver<SpanData>,
    lost: Arc<AtomicU64>,
    closing: CancellationToken,
    /// The last request failed, and that is logged.
    is_away: bool,
    logged: Option<Instant>,
}

impl<E: SpanExporter> Sending<E> {
    pub(super) fn new(exporter: E, endpoint: String, closing: CancellationToken) -> (Queue, Self) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let queue = Queue { sender, lost: Arc::clone(&lost) };
        (queue, Self { exporter, endpoint, receiver, lost, closing, is_away: false, logged: None })
    }

    /// Ends with [`Self::closing`], or when nobody can hand over any more.
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

    /// One request. What is lost is counted, and said once: when the receiver stops answering, and when it answers again.
    async fn export(&mut self, spans: Vec<SpanData>) {
        let count = spans.len();
        // Counted before, and taken back after: at the end the future may be dropped.
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
                    "spans do not arrive and are dropped; messages are not affected"
                );
            }
            Some(_) => {}
            None => {
                self.lost.fetch_sub(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
                let is_due = self.logged.is_none_or(|at| at.elapsed() >= LOG_AGAIN);
                if self.is_away {
                    let lost = self.lost.swap(0, Ordering::Relaxed);
                    tracing::info!(endpoint, lost, "spans arrive again");
                } else if is_due && self.lost.load(Ordering::Relaxed) > 0 {
                    self.logged = Some(Instant::now());
                    let lost = self.lost.swap(0, Ordering::Relaxed);
                    tracing::warn!(endpoint, lost, "there are more spans than the receiver takes");
                }
                self.is_away = false;
            }
        }
    }

    fn lose(&self, spans: usize) {
        self.lost.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
