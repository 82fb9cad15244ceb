//! What is on the screen, and what a person has done to it.

use chrono::{DateTime, Utc};

use super::super::output::Times;
use super::servers::{Asked, Database, Depths};
use crate::config::Config;
use crate::overview::{ConsumerOverview, ConsumerState};

/// By what consumers are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    /// Those that stand still first.
    State,
    Ready,
    Done,
    DeadLetters,
}

impl Sort {
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

/// What the keys mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Table,
    Help,
    /// Why is the consumer paused, or does it go on?
    Reason {
        consumer: String,
        pause: bool,
        text: String,
    },
}

/// A consumer as a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) overview: ConsumerOverview,
    /// Messages ready in its queues; `None` where that is not known.
    pub(super) ready: Option<u64>,
    /// Most deliveries that its workers may hold.
    pub(super) prefetch: u64,
    /// Dead letters that wait.
    pub(super) letters: i64,
}

/// A consumer's settings, as far as the screen wants them.
struct Configured {
    name: String,
    queues: Vec<String>,
    prefetch: u64,
}

/// Everything that a frame is drawn from.
pub(super) struct View {
    pub(super) times: Times,
    pub(super) sort: Sort,
    pub(super) mode: Mode,
    /// The consumer that is selected.
    pub(super) selected: Option<String>,
    /// What became of the last change.
    pub(super) told: Option<String>,
    /// The last answers.
    pub(super) asked: Option<Asked>,
    /// What PostgreSQL said last, and when it did, by this machine's clock.
    pub(super) known: Option<(Database, DateTime<Utc>)>,
    configured: Vec<Configured>,
}

impl View {
    pub(super) fn new(config: &Config, times: Times) -> Self {
        let configured = config.consumers.iter().map(|consumer| Configured {
            name: consumer.name.as_str().to_owned(),
            queues: consumer.queues.clone(),
            prefetch: u64::from(consumer.prefetch),
        });
        Self {
            times,
            sort: Sort::default(),
            mode: Mode::default(),
            selected: None,
            told: None,
            asked: None,
            known: None,
            configured: configured.collect(),
        }
    }

    /// Takes new answers. What PostgreSQL said last stays while it is away.
    pub(super) fn take(&mut self, asked: Asked) {
        if let Ok(database) = &asked.postgres {
            self.known = Some((database.clone(), asked.at));
        }
        self.asked = Some(asked);
    }

    /// The consumers in their order.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some((database, _)) = &self.known else { return Vec::new() };
        let depths = self.asked.as_ref().and_then(|asked| asked.rabbitmq.as_ref().ok());
        let overviews = database.overview.consumers.iter();
        let mut rows: Vec<Row> = overviews.map(|overview| self.row(overview, database, depths)).collect();
        match self.sort {
            Sort::Name => {}
            Sort::State => rows.sort_by_key(|row| row.overview.state),
            Sort::Ready => rows.sort_by_key(|row| std::cmp::Reverse(row.ready)),
            Sort::Done => rows.sort_by_key(|row| std::cmp::Reverse(row.overview.done)),
            Sort::DeadLetters => rows.sort_by_key(|row| std::cmp::Reverse(row.letters)),
        }
        rows
    }

    fn row(&self, overview: &ConsumerOverview, database: &Database, depths: Option<&Depths>) -> Row {
        let own = self.configured.iter().find(|one| one.name == overview.consumer);
        let queues = own.map_or(&[][..], |one| &one.queues);
        let counted = queues.iter().map(|queue| depths.and_then(|depths| *depths.get(queue)?));
        let sum = counted.map(|depth| depth.map(|depth| u64::from(depth.ready))).sum::<Option<u64>>();
        let workers = u64::try_from(overview.workers).unwrap_or(u64::MAX);
        let each = own.map_or(0, |one| one.prefetch.saturating_mul(one.queues.len() as u64));
        Row {
            overview: with_queues(overview, queues, depths),
            ready: sum.filter(|_| !queues.is_empty()),
            prefetch: each.saturating_mul(workers),
            letters: database.letters.get(&overview.consumer).copied().unwrap_or(0),
        }
    }

    /// The row that is selected; the first one as long as none is.
    pub(super) fn selection(&self, rows: &[Row]) -> Option<usize> {
        let named = self.selected.as_deref();
        let found = rows.iter().position(|row| Some(row.overview.consumer.as_str()) == named);
        found.or(if rows.is_empty() { None } else { Some(0) })
    }

    /// Selects the next row, or the one before.
    pub(super) fn select(&mut self, down: bool) {
        let rows = self.rows();
        let Some(at) = self.selection(&rows) else { return };
        let next = if down { (at + 1).min(rows.len() - 1) } else { at.saturating_sub(1) };
        self.selected = Some(rows[next].overview.consumer.clone());
    }

    /// Asks why the selected consumer is to be paused, or to go on.
    pub(super) fn ask_reason(&mut self) {
        let rows = self.rows();
        let Some(row) = self.selection(&rows).map(|at| &rows[at]) else { return };
        self.mode = Mode::Reason {
            consumer: row.overview.consumer.clone(),
            pause: row.overview.state != ConsumerState::Paused,
            text: String::new(),
        };
    }
}

/// What the broker knows, and no heartbeat: that a queue is not there, or that nobody takes from it.
fn with_queues(overview: &ConsumerOverview, queues: &[String], depths: Option<&Depths>) -> ConsumerOverview {
    let one = overview.clone();
    // Both say more than the broker does.
    if matches!(one.state, ConsumerState::Paused | ConsumerState::Stalled) {
        return one;
    }
    let known = |queue: &&String| depths.and_then(|depths| depths.get(*queue)).copied();
    if let Some(missing) = queues.iter().find(|queue| known(queue) == Some(None)) {
        let reason = format!("the queue {missing} does not exist (oncely topology apply)");
        return ConsumerOverview { state: ConsumerState::NoQueue, reason: Some(reason), since: None, ..one };
    }
    let is_unattended =
        |queue: &&String| known(queue).flatten().is_some_and(|depth| depth.subscriptions == 0);
    match queues.iter().find(is_unattended).filter(|_| one.state != ConsumerState::NoWorker) {
        Some(queue) => {
            let reason = format!("no worker is subscribed to the queue {queue}");
            ConsumerOverview { state: ConsumerState::Unattended, reason: Some(reason), since: None, ..one }
        }
        None => one,
    }
}
