//! What is run: who consumes what, or publishes it.

/// One side of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) consumer: Consumer,
    pub(crate) queue_type: QueueType,
    pub(crate) messages: u64,
    /// Each so many-th message is rejected by the handler; 0 for none.
    pub(crate) poison_every: u64,
    /// Of ten messages, how many the handler refuses.
    pub(crate) refused_of_ten: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Consumer {
    /// The usual way: `bench naive`.
    Naive(Keys),
    /// The same with work on hot rows.
    NaiveHot(Hot),
    Ours(Ours),
    /// The rows of ours by bare inserts: `bench raw`.
    Raw,
    /// Only acknowledges: `bench consume`.
    Bare,
    /// Nobody: what is measured fills the queue.
    Nobody(Publisher),
}

/// What empties a table of events into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publisher {
    /// Our relay; the events have so many ordering keys, or none.
    Relay { ordering_keys: u64 },
    /// The same messages by a bare client, without a database: `bench publish`.
    Bare,
    /// The relay of the crates outbox-core and outbox-postgres: `bench-outbox`.
    OutboxCore,
}

/// The baseline's table of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// What is needed.
    Lean,
    /// As published, with an index more.
    Article,
    /// What is needed; claimed and completed in two transactions, with work that does nothing between them.
    Held,
}

impl Keys {
    pub(crate) fn schema(self) -> &'static str {
        match self {
            Self::Lean | Self::Held => include_str!("naive_keys.sql"),
            Self::Article => include_str!("article_keys.sql"),
        }
    }
}

/// Our programs, with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct Ours {
    pub(crate) handler: Handler,
    pub(crate) workers: usize,
    pub(crate) relay: bool,
    /// Worker and relay tell their metrics, and somebody reads them each second.
    pub(crate) metrics: bool,
}

impl Ours {
    /// A worker and a relay.
    pub(crate) fn full(handler: Handler) -> Self {
        Self { handler, workers: 1, relay: true, metrics: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    /// A SQL function for a batch.
    Batch,
    /// The same with a rule that rejects messages.
    StrictBatch,
    /// The same, and each tenth message or so emits an event.
    Announcing,
    /// The same with a branch that misses its table.
    BranchBatch,
    /// A SQL function per message.
    PerMessage,
    /// Rust, one INSERT per message.
    Rust,
    /// Rust, one INSERT per batch.
    RustBatch,
    /// A SQL function that works on hot rows.
    Hot(Hot),
    /// Rust, under leases: so many runs at the same time, each of so many milliseconds, and no effect.
    Leased { concurrency: u32, call: u64 },
}

impl Handler {
    /// The line of the consumer's configuration.
    pub(crate) fn line(self) -> String {
        let line = match self {
            Self::Leased { concurrency, .. } => return format!("lease = {{ concurrency = {concurrency} }}"),
            Self::Batch => "handler = { function = \"bench.capture_payments\", batch = true }",
            Self::StrictBatch => "handler = { function = \"bench.capture_valid_payments\", batch = true }",
            Self::Announcing => "handler = { function = \"bench.capture_and_announce\", batch = true }",
            // One attempt, so that what becomes of those messages is known when the others are done.
            Self::BranchBatch => {
                "handler = { function = \"bench.capture_by_branch\", batch = true }\nretry = { delays = [\"1s\"], max_attempts = 1 }"
            }
            Self::PerMessage => "handler = { function = \"bench.capture_payment\" }",
            Self::Hot(hot) => hot.line(),
            Self::Rust | Self::RustBatch => "",
        };
        line.to_owned()
    }
}

/// Work on rows that many messages share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hot {
    /// One of 15 rows of stock, six of ten messages refused.
    Stock,
    /// One row.
    OneRow,
    /// Two of 100 rows, in random order.
    TwoRows,
    /// 15 rows of stock by a batch function, in the order of the messages.
    Batch,
    /// Events with 15 ordering keys.
    Events,
}

impl Hot {
    fn line(self) -> &'static str {
        match self {
            Self::Stock => "handler = { function = \"bench.sell\" }",
            Self::OneRow => "handler = { function = \"bench.count_one\" }",
            Self::TwoRows => "handler = { function = \"bench.move_two\" }",
            Self::Batch => "handler = { function = \"bench.sell_batch\", batch = true }",
            Self::Events => "handler = { function = \"bench.capture_and_emit\" }",
        }
    }

    /// The baseline's word for it.
    pub(crate) fn naive(self) -> &'static str {
        match self {
            Self::Stock | Self::Batch => "stock",
            Self::OneRow => "one-row",
            Self::TwoRows => "two-rows",
            Self::Events => "events",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueType {
    Classic,
    Quorum,
}

impl QueueType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

impl Job {
    pub(crate) fn naive(queue_type: QueueType, messages: u64) -> Self {
        Self {
            consumer: Consumer::Naive(Keys::Article),
            queue_type,
            messages,
            poison_every: 0,
            refused_of_ten: 0,
        }
    }

    pub(crate) fn ours(ours: Ours, queue_type: QueueType, messages: u64) -> Self {
        Self { consumer: Consumer::Ours(ours), queue_type, messages, poison_every: 0, refused_of_ten: 0 }
    }

    pub(crate) fn publisher(publisher: Publisher, messages: u64) -> Self {
        Self {
            consumer: Consumer::Nobody(publisher),
            queue_type: QueueType::Classic,
            messages,
            poison_every: 0,
            refused_of_ten: 0,
        }
    }

    /// Messages that the handler rejects.
    pub(crate) fn poisoned(&self) -> u64 {
        self.messages.checked_div(self.poison_every).unwrap_or(0)
    }

    /// Messages that the handler refuses; the first has number 1.
    pub(crate) fn refused(&self) -> u64 {
        (1..=self.messages).filter(|number| number % 10 < self.refused_of_ten).count() as u64
    }
}
