//! `[worker]`, `[relay]`, `[gc]`, `[audit]`, `[dead_letters]` and `[log]`: settings of processes and periodic tasks.

use std::net::SocketAddr;
use std::time::Duration;

use croner::Cron;

use super::{Problems, Section};
use oncely_postgres::Quota;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The worker process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// Name in the audit trail; by default `<host>-<process id>`.
    pub name: String,
    /// Limit from SIGTERM to the end; past it the remaining work is left to redelivery, and the exit code is 70.
    pub shutdown: Duration,
    /// A process with a runtime that stalls for this time ends itself (exit code 70).
    pub watchdog: Duration,
    /// Threads of the stock worker's runtime; a program that embeds a worker has its own.
    pub threads: u32,
    /// Listen address for metrics and health.
    pub listen: Option<SocketAddr>,
}

/// The relay process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelaySettings {
    /// Maximum number of mirror records in one batch.
    pub batch: u32,
    /// Longest pause between two queries of an empty mirror queue.
    pub poll: Duration,
    /// Listen address for metrics and health.
    pub listen: Option<SocketAddr>,
}

/// The garbage collection.
#[derive(Clone, Debug)]
pub struct GcSettings {
    /// Schedule of its runs.
    pub schedule: Cron,
    /// The schedule's expression.
    pub expression: String,
    /// Number of keys deleted in one transaction.
    pub batch: u32,
    /// Percentage of the time in which it works.
    pub load: u32,
}

/// The audit trail.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditSettings {
    /// Age at which partitions are dropped.
    pub retention: Duration,
    /// Whether each duplicate gets a row, or is only counted.
    pub duplicates: bool,
    /// How far ahead partitions are created.
    pub ahead: Duration,
}

/// The searchable copies of dead letters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterSettings {
    /// Maximum size in bytes of a stored body.
    pub max_body: u32,
    /// Maximum number of a tenant's letters with a stored message.
    pub tenant_letters: u32,
    /// Maximum bytes of their bodies and headers.
    pub tenant_bytes: u32,
}

impl DeadLetterSettings {
    #[doc(hidden)]
    pub fn quota(&self) -> Quota {
        Quota { letters: self.tenant_letters.into(), bytes: self.tenant_bytes.into() }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for humans.
    Text,
    /// One JSON object per line.
    Json,
}

/// Logging.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogSettings {
    /// Format of lines.
    pub format: LogFormat,
    /// Filter of lines, in the syntax of `tracing`, such as `info` or `oncely=debug,info`.
    pub level: String,
    /// Whether PostgreSQL's error texts appear in the log, the trail, dead letters and their headers. They may quote values of a message;
    /// without them only the condition, its SQLSTATE, and the names of constraint, table and column appear.
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

/// Takes the listen address for metrics and health.
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

/// Returns `<host>-<process id>`, which is unique among the processes that run at the same time.
pub(crate) fn process_name() -> String {
    format!("{}-{}", host().unwrap_or_else(|| "worker".to_owned()), std::process::id())
}

/// Returns the name of this machine.
pub fn host() -> Option<String> {
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

/// The first night hour at an odd minute, so that the tasks of different systems don't coincide.
const NIGHTLY: &str = "17 3 * * *";

pub(super) fn gc(mut section: Section, problems: &mut Problems) -> Option<GcSettings> {
    let expression = section.text("schedule", problems).unwrap_or_else(|| NIGHTLY.to_owned());
    let schedule = expression.parse::<Cron>().map_err(|error| error.to_string()).and_then(|cron| {
        // Some expressions parse but never match, such as 31 February.
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
