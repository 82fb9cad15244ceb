//! The content of the screen, and the user's input.

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
    pub(super) fn next(self) -> Self {
        match self {
            Self::Name => Self::State,
            Self::State => Self::Ready,
            Self::Ready => Self::Done,
            Self::Done => Self::DeadLetters,
            Self::DeadLetters => Self::Name,
        }
    }

    pub(super) fn shown(self) -> &'static str {
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
    /// Messages ready in its queues; `None` if unknown.
    pub(super) ready: Option<u64>,
    /// Maximum number of deliveries that its live workers may hold; `None` if it is not configured here, or has none.
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

/// All data that a frame is drawn from.
pub(super) struct ScreenState {
    pub(super) times: Times,
    pub(super) sort: SortOrder,
    pub(super) mode: ScreenMode,
    /// The selected consumer.
    pub(super) selected: Option<String>,
    /// Result of the last change.
    pub(super) told: Option<String>,
    /// The last answers.
    pub(super) asked: Option<ServerAnswers>,
    /// The last answer of PostgreSQL, with its time by this machine's clock.
    pub(super) known: Option<(DatabaseAnswer, DateTime<Utc>)>,
    configured: Vec<ConfiguredConsumer>,
}

impl ScreenState {
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
            told: None,
            asked: None,
            known: None,
            configured: configured.collect(),
        }
    }

    /// Takes new answers. The last answer of PostgreSQL is kept while it is unreachable.
    pub(super) fn take(&mut self, asked: ServerAnswers) {
        if let Ok(database) = &asked.snapshot.postgres {
            self.known = Some((database.clone(), asked.at));
        }
        self.asked = Some(asked);
    }

    /// Returns the consumers in their order.
    pub(super) fn rows(&self) -> Vec<ConsumerRow> {
        let Some((database, _)) = &self.known else { return Vec::new() };
        let overviews = database.overview.consumers.iter();
        let mut rows: Vec<ConsumerRow> = overviews.map(|overview| self.row(overview, database)).collect();
        match self.sort {
            SortOrder::Name => {}
            SortOrder::State => rows.sort_by_key(|row| row.overview.state),
            SortOrder::Ready => rows.sort_by_key(|row| std::cmp::Reverse(row.ready)),
            SortOrder::Done => rows.sort_by_key(|row| std::cmp::Reverse(row.overview.done)),
            SortOrder::DeadLetters => rows.sort_by_key(|row| std::cmp::Reverse(row.letters)),
        }
        rows
    }

    fn row(&self, overview: &ConsumerOverview, database: &DatabaseAnswer) -> ConsumerRow {
        let own = self.configured.iter().find(|one| one.name == overview.consumer);
        let queues =
            self.asked.as_ref().map(|asked| asked.snapshot.queues(&overview.consumer)).unwrap_or_default();
        let ready = queues.iter().map(|queue| queue.ready.map(u64::from)).sum::<Option<u64>>();
        let workers = u64::try_from(overview.workers).unwrap_or(u64::MAX);
        ConsumerRow {
            overview: overview.with_queues(&queues),
            ready: ready.filter(|_| !queues.is_empty()),
            prefetch: own.map(|one| one.prefetch.saturating_mul(workers)).filter(|limit| *limit > 0),
            letters: database.letters.get(&overview.consumer).copied().unwrap_or(0),
        }
    }

    /// Returns the selected row; the first one if none is selected.
    pub(super) fn selection(&self, rows: &[ConsumerRow]) -> Option<usize> {
        let named = self.selected.as_deref();
        let found = rows.iter().position(|row| Some(row.overview.consumer.as_str()) == named);
        found.or(if rows.is_empty() { None } else { Some(0) })
    }

    /// Selects the next or the previous row.
    pub(super) fn select(&mut self, down: bool) {
        let rows = self.rows();
        let Some(at) = self.selection(&rows) else { return };
        let next = if down { (at + 1).min(rows.len() - 1) } else { at.saturating_sub(1) };
        self.selected = Some(rows[next].overview.consumer.clone());
    }

    /// Asks for the reason of pausing or resuming the selected consumer.
    pub(super) fn ask_reason(&mut self) {
        let rows = self.rows();
        let Some(row) = self.selection(&rows).map(|at| &rows[at]) else { return };
        self.mode = ScreenMode::Reason {
            consumer: row.overview.consumer.clone(),
            pause: row.overview.state != ConsumerState::Paused,
            text: String::new(),
        };
    }
}
