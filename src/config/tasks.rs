//! `[worker]`, `[relay]`, `[gc]`, `[audit]`, `[dead_letters]` and `[log]`: what the processes do beside their messages.

use std::net::SocketAddr;
use std::time::Duration;

use croner::Cron;

use super::{Problems, Section};
use crate::pg::Quota;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The worker process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// Name in the audit trail; by default `<host>-<process id>`.
    pub name: String,
    /// From SIGTERM to the end: then what still runs is left to redelivery, and the exit code is 70.
    pub shutdown: Duration,
    /// A process whose runtime stands still for so long ends itself (exit code 70).
    pub watchdog: Duration,
    /// Threads of the stock worker's runtime; a program that embeds a worker has its own.
    pub threads: u32,
    /// Where it tells metrics and health.
    pub listen: Option<SocketAddr>,
}

/// The relay process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelaySettings {
    /// Mirror records taken at once.
    pub batch: u32,
    /// Longest pause between two looks at an empty mirror queue.
    pub poll: Duration,
    /// Where it tells metrics and health.
    pub listen: Option<SocketAddr>,
}

/// The garbage collection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GcSettings {
    /// When it runs.
    pub schedule: Cron,
    /// The expression as written.
    pub expression: String,
    /// Keys deleted in one transaction.
    pub batch: u32,
    /// Percent of the time in which it works; the rest it pauses.
    pub load: u32,
}

/// The audit trail.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditSettings {
    /// Partitions older than this are dropped.
    pub retention: Duration,
    /// Are duplicates listed, not just counted? Costs a row each.
    pub duplicates: bool,
    /// For how long ahead partitions are made.
    pub ahead: Duration,
}

/// The searchable copies of dead letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterSettings {
    /// Largest body in bytes that is stored.
    pub max_body: u32,
    /// Of how many letters of a tenant the message is stored.
    pub tenant_letters: u32,
    /// How many bytes of their bodies and headers.
    pub tenant_bytes: u32,
}

impl DeadLetterSettings {
    pub(crate) fn quota(&self) -> Quota {
        Quota { letters: self.tenant_letters.into(), bytes: self.tenant_bytes.into() }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logging.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogSettings {
    /// How lines look.
    pub format: LogFormat,
    /// Which lines: a `tracing` filter such as `info` or `oncely=debug,info`.
    pub level: String,
    /// Whether PostgreSQL's own texts of errors are told, in the log, the trail, dead letters and their headers. They may hold what a
    /// message held; without them there is the condition, its SQLSTATE, and the names of constraint, table and column.
    pub server_errors: bool,
}

pub(super) fn worker(mut section: Section, problems: &mut Problems) -> WorkerSettings {
    let settings = WorkerSettings {
        name: section.text("name", problems).unwrap_or_else(process_name),
        shutdown: section.duration("shutdown", 25 * SECOND, SECOND..=600 * SECOND, problems),
        watchdog: section.duration("watchdog", 60 * SECOND, SECOND..=3_600 * SECOND, problems),
        threads: section.integer("threads", 1, 1..=64, problems),
        listen: listen(&mut section, "listen", problems),
    };
    section.finish(problems);
    settings
}

/// Where metrics and health are told.
pub(super) fn listen(
    section: &mut Section,
    key: &'static str,
    problems: &mut Problems,
) -> Option<SocketAddr> {
    let text = section.text(key, problems)?;
    if !cfg!(feature = "listener") {
        problems.add(section.place(key), "this program is built without the feature `listener`");
    }
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            let what = format!("{text:?} is not an address like 127.0.0.1:9464 or [::]:9464");
            problems.add(section.place(key), what);
            None
        }
    }
}

/// `<host>-<process id>`: unique among the processes that run at the same time.
pub(crate) fn process_name() -> String {
    format!("{}-{}", host().unwrap_or_else(|| "worker".to_owned()), std::process::id())
}

/// What this machine calls itself.
pub(crate) fn host() -> Option<String> {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
}

pub(super) fn relay(mut section: Section, problems: &mut Problems) -> RelaySettings {
    let settings = RelaySettings {
        batch: section.integer("batch", 100, 1..=10_000, problems),
        poll: section.duration(
            "poll",
            Duration::from_millis(500),
            Duration::from_millis(1)..=60 * SECOND,
            problems,
        ),
        listen: listen(&mut section, "listen", problems),
    };
    section.finish(problems);
    settings
}

/// The first night hour at an odd minute, so that not every system's tasks meet.
const NIGHTLY: &str = "17 3 * * *";

pub(super) fn gc(mut section: Section, problems: &mut Problems) -> Option<GcSettings> {
    let expression = section.text("schedule", problems).unwrap_or_else(|| NIGHTLY.to_owned());
    let schedule = expression.parse::<Cron>().map_err(|error| error.to_string()).and_then(|cron| {
        // Some expressions parse but never come true, like 31 February.
        match cron.find_next_occurrence(&chrono::Utc::now(), false) {
            Ok(_) => Ok(cron),
            Err(error) => Err(format!("it never happens: {error}")),
        }
    });
    if let Err(error) = &schedule {
        problems.add(
            section.place("schedule"),
            format!(
                "is not a cron expression like {NIGHTLY:?} (minute hour day month weekday, UTC): {error}"
            ),
        );
    }
    let batch = section.integer("batch", 5_000, 1..=100_000, problems);
    let load = section.integer("load", 20, 1..=100, problems);
    section.finish(problems);
    Some(GcSettings { schedule: schedule.ok()?, expression, batch, load })
}

pub(super) fn audit(mut section: Section, problems: &mut Problems) -> AuditSettings {
    let settings = AuditSettings {
        retention: section.duration("retention", 90 * DAY, DAY..=3_650 * DAY, problems),
        duplicates: section.boolean("duplicates", false, problems),
        ahead: section.duration("ahead", 28 * DAY, 7 * DAY..=366 * DAY, problems),
    };
    section.finish(problems);
    settings
}

pub(super) fn dead_letters(mut section: Section, problems: &mut Problems) -> DeadLetterSettings {
    let settings = DeadLetterSettings {
        max_body: section.integer("max_body", 256 << 10, 0..=(16 << 20), problems),
        tenant_letters: section.integer("tenant_letters", 100_000, 0..=u32::MAX, problems),
        tenant_bytes: section.integer("tenant_bytes", 1 << 30, 0..=u32::MAX, problems),
    };
    section.finish(problems);
    settings
}

pub(super) fn log(mut section: Section, problems: &mut Problems) -> LogSettings {
    let level = section.text("level", problems).unwrap_or_else(|| "info".to_owned());
    if level.parse::<tracing_subscriber::filter::targets::Targets>().is_err() {
        problems.add(
            section.place("level"),
            "must be a level (error, warn, info, debug, trace) or a filter like oncely=debug,info",
        );
    }
    let settings = LogSettings {
        format: section.choice(
            "format",
            LogFormat::Text,
            &[("text", LogFormat::Text), ("json", LogFormat::Json)],
            problems,
        ),
        level,
        server_errors: section.boolean("server_errors", false, problems),
    };
    section.finish(problems);
    settings
}
