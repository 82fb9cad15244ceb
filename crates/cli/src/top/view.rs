//! The state of the screen: the servers' answers, and the user's input.

use chrono::{DateTime, Utc};

use super::super::output::Times;
use super::servers::{DatabaseAnswer, ServerAnswers};
use oncely_config::Config;
use oncely_ops::overview::{ConsumerOverview, ConsumerState};

/// Sort order of consumers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortOrder {
    #[default]
    Name,
    /// Consumers that don't run first.
    State,
    Ready,
    Done,
    DeadLetters,
}

impl SortOrder {
    /// Returns the order that follows in the cycle.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Name => Self::State,
            Self::State => Self::Ready,
            Self::Ready => Self::Done,
            Self::Done => Self::DeadLetters,
            Self::DeadLetters => Self::Name,
        }
    }

    /// Returns the order as the bottom line names it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::State => "state",
            Self::Ready => "ready",
            Self::Done => "done",
            Self::DeadLetters => "dead letters",
        }
    }
}

/// The meaning of pressed keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ScreenMode {
    #[default]
    Table,
    Help,
    /// The reason for a pause or a resume is being typed.
    Reason {
        consumer: String,
        pause: bool,
        text: String,
    },
}

/// A consumer as a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConsumerRow {
    pub(super) overview: ConsumerOverview,
    /// Messages ready in its queues; `None` if RabbitMQ does not answer, or a queue is missing.
    pub(super) ready: Option<u64>,
    /// Maximum number of deliveries that its live workers may hold; `None` if it is not configured here, or has no live worker.
    pub(super) prefetch: Option<u64>,
    /// Waiting dead letters.
    pub(super) letters: i64,
}

/// A consumer's settings that the screen needs.
struct ConfiguredConsumer {
    name: String,
    /// Of all its queues.
    prefetch: u64,
}

/// All data that the screen is drawn from.
pub(super) struct ScreenState {
    pub(super) times: Times,
    pub(super) sort: SortOrder,
    pub(super) mode: ScreenMode,
    /// The selected consumer.
    pub(super) selected: Option<String>,
    /// Result of the last change.
    pub(super) message: Option<String>,
    /// The last answers.
    pub(super) answers: Option<ServerAnswers>,
    /// The last answer of PostgreSQL, with its time by this machine's clock.
    pub(super) last_database: Option<(DatabaseAnswer, DateTime<Utc>)>,
    configured: Vec<ConfiguredConsumer>,
}

impl ScreenState {
    /// Creates the state of a screen without answers.
    pub(super) fn new(config: &Config, times: Times) -> Self {
        let configured = config.consumers.iter().map(|consumer| ConfiguredConsumer {
            name: consumer.name.as_str().to_owned(),
            prefetch: u64::from(consumer.prefetch).saturating_mul(consumer.queues.len() as u64),
        });
        Self {
            times,
            sort: SortOrder::default(),
            mode: ScreenMode::default(),
            selected: None,
            message: None,
            answers: None,
            last_database: None,
            configured: configured.collect(),
        }
    }

    /// Replaces the answers. The last answer of PostgreSQL is kept while it is unreachable.
    pub(super) fn update(&mut self, answers: ServerAnswers) {
        if let Ok(database) = &answers.snapshot.postgres {
            self.last_database = Some((database.clone(), answers.at));
        }
        self.answers = Some(answers);
    }

    /// Returns the consumers in their order.
    pub(super) fn rows(&self) -> Vec<ConsumerRow> {
        let Some((database, _)) = &self.last_database else { return Vec::new() };
        let overviews = database.overview.consumers.iter();
        let mut rows: Vec<ConsumerRow> = overviews.map(|overview| self.to_row(overview, database)).collect();
        match self.sort {
            SortOrder::Name => {}
            SortOrder::State => rows.sort_by_key(|row| row.overview.state),
            SortOrder::Ready => rows.sort_by_key(|row| std::cmp::Reverse(row.ready)),
            SortOrder::Done => rows.sort_by_key(|row| std::cmp::Reverse(row.overview.done)),
            SortOrder::DeadLetters => rows.sort_by_key(|row| std::cmp::Reverse(row.letters)),
        }
        rows
    }

    /// Combines a consumer's overview with its queues, settings and dead letters.
    fn to_row(&self, overview: &ConsumerOverview, database: &DatabaseAnswer) -> ConsumerRow {
        let configured = self.configured.iter().find(|one| one.name == overview.consumer);
        let queues = self
            .answers
            .as_ref()
            .map(|answers| answers.snapshot.queues(&overview.consumer))
            .unwrap_or_default();
        let ready = queues.iter().map(|queue| queue.ready.map(u64::from)).sum::<Option<u64>>();
        let workers = u64::try_from(overview.workers).unwrap_or(u64::MAX);
        ConsumerRow {
            overview: overview.with_queues(&queues),
            ready: ready.filter(|_| !queues.is_empty()),
            prefetch: configured.map(|one| one.prefetch.saturating_mul(workers)).filter(|limit| *limit > 0),
            letters: database.letters.get(&overview.consumer).copied().unwrap_or(0),
        }
    }

    /// Returns the index of the selected row; of the first one if none is selected; `None` without rows.
    pub(super) fn selected_index(&self, rows: &[ConsumerRow]) -> Option<usize> {
        let selected = self.selected.as_deref();
        let found = rows.iter().position(|row| Some(row.overview.consumer.as_str()) == selected);
        found.or(if rows.is_empty() { None } else { Some(0) })
    }

    /// Selects the next or the previous row.
    pub(super) fn move_selection(&mut self, down: bool) {
        let rows = self.rows();
        let Some(at) = self.selected_index(&rows) else { return };
        let next = if down { (at + 1).min(rows.len() - 1) } else { at.saturating_sub(1) };
        self.selected = Some(rows[next].overview.consumer.clone());
    }

    /// Begins the input of the reason for pausing or resuming the selected consumer.
    pub(super) fn begin_reason_input(&mut self) {
        let rows = self.rows();
        let Some(row) = self.selected_index(&rows).map(|at| &rows[at]) else { return };
        self.mode = ScreenMode::Reason {
            consumer: row.overview.consumer.clone(),
            pause: row.overview.state != ConsumerState::Paused,
            text: String::new(),
        };
    }
}
