//! `[worker]`, `[relay]`, `[gc]`, `[audit]`, `[dead_letters]` and `[log]`: settings of processes and periodic tasks.

use std::net::SocketAddr;
use std::time::Duration;

use croner::Cron;
use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use super::values::{DAY, HOUR, Length, MILLISECOND, MINUTE, SECOND};
use oncely_postgres::Quota;

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
    /// Returns the limits of a tenant without limits of its own.
    #[doc(hidden)]
    pub fn quota(&self) -> Quota {
        Quota { letters: self.tenant_letters.into(), bytes: self.tenant_bytes.into() }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct WorkerTable {
    /// Name in the audit trail; by default host name and process id.
    #[schemars(extend("x-example" = "host-pid"))]
    pub(crate) name: Option<String>,
    /// Longest time from SIGTERM to the end. Work that is not finished by then is rolled back and comes again; the exit code is 70. Below the 30s that
    /// Kubernetes waits before it kills.
    #[garde(range(min = SECOND, max = SECOND.times(600)))]
    pub(crate) shutdown: Length,
    /// A process with a runtime that stands still for this time (a handler that blocks its threads) ends itself with exit code 70; a program that embeds a
    /// worker or a relay, too.
    #[garde(range(min = SECOND, max = HOUR))]
    pub(crate) watchdog: Length,
    /// Threads of the program `worker`, besides one for each connection to RabbitMQ. SQL functions run in PostgreSQL; the worker's own part is about ten
    /// microseconds a message (docs/src/explanation/performance.md), and more threads wake each other up.
    #[garde(range(min = 1, max = 64))]
    pub(crate) threads: u32,
    /// Address of metrics (/metrics, for Prometheus) and health (/livez, /readyz, /statusz). Anyone who can reach the address can read them: there is no
    /// login, and nothing of messages is in them. By default none.
    #[schemars(extend("x-example" = "127.0.0.1:9464"))]
    pub(crate) listen: Option<String>,
}

impl Default for WorkerTable {
    fn default() -> Self {
        Self { name: None, shutdown: SECOND.times(25), watchdog: MINUTE, threads: 1, listen: None }
    }
}

impl WorkerTable {
    pub(crate) fn into_settings(self, problems: &mut Problems) -> WorkerSettings {
        WorkerSettings {
            name: self.name.unwrap_or_else(process_name),
            shutdown: self.shutdown.0,
            watchdog: self.watchdog.0,
            threads: self.threads,
            listen: parse_listen_address(self.listen, "worker.listen", problems),
        }
    }
}

/// Parses the listen address for metrics and health; `None` if it is not set or invalid.
pub(crate) fn parse_listen_address(
    text: Option<String>,
    place: &str,
    problems: &mut Problems,
) -> Option<SocketAddr> {
    let text = text?;
    if !cfg!(feature = "listener") {
        problems.add(place, "this program is built without the feature `listener`");
    }
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            problems.add(place, format!("{text:?} is not an address like 127.0.0.1:9464 or [::]:9464"));
            None
        }
    }
}

/// Returns `<host>-<process id>`, which is unique among the processes that run at the same time.
pub(crate) fn process_name() -> String {
    format!("{}-{}", host_name().unwrap_or_else(|| "worker".to_owned()), std::process::id())
}

/// Returns the name of this machine; `None` if the operating system does not tell it.
pub fn host_name() -> Option<String> {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct RelayTable {
    /// Mirror records taken in one transaction. A record carries the tags of a whole batch.
    #[garde(range(min = 1, max = 10_000))]
    pub(crate) batch: u32,
    /// Longest pause between two reads of the mirror queue or the events while they are empty. A relay without events is notified of new ones, and does
    /// not wait for its next read; an event whose transaction can't notify (max_prepared_transactions or synchronous_standby_names is set) waits for up to
    /// this long.
    #[garde(range(min = MILLISECOND, max = MINUTE))]
    pub(crate) poll: Length,
    /// As worker.listen, for the relay.
    #[schemars(extend("x-example" = "127.0.0.1:9465"))]
    pub(crate) listen: Option<String>,
}

impl Default for RelayTable {
    fn default() -> Self {
        Self { batch: 100, poll: MILLISECOND.times(500), listen: None }
    }
}

impl RelayTable {
    pub(crate) fn into_settings(self, problems: &mut Problems) -> RelaySettings {
        RelaySettings {
            batch: self.batch,
            poll: self.poll.0,
            listen: parse_listen_address(self.listen, "relay.listen", problems),
        }
    }
}

/// Default schedule of the garbage collection: at night and at an odd minute, so that the tasks of different systems don't coincide.
const DEFAULT_SCHEDULE: &str = "17 3 * * *";

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct GcTable {
    /// Times at which keys past their retention are deleted, as the database knows it (`oncely retention list`): minute hour day month weekday (a sixth
    /// field in front: seconds), in UTC.
    pub(crate) schedule: String,
    /// Keys deleted in one transaction.
    #[garde(range(min = 1, max = 100_000))]
    pub(crate) batch: u32,
    /// Percent of the time in which it works; the rest it pauses. It deletes ten times as fast as messages can come: at 100 it halves their rate
    /// meanwhile.
    #[garde(range(min = 1, max = 100))]
    pub(crate) load: u32,
}

impl Default for GcTable {
    fn default() -> Self {
        Self { schedule: DEFAULT_SCHEDULE.to_owned(), batch: 5_000, load: 20 }
    }
}

impl GcTable {
    /// Checks the schedule, and converts the table; `None` if the schedule is invalid or never matches.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> Option<GcSettings> {
        let expression = self.schedule;
        let schedule = expression.parse::<Cron>().map_err(|error| error.to_string()).and_then(|cron| {
            // Some expressions parse but never match, such as 31 February.
            match cron.find_next_occurrence(&chrono::Utc::now(), false) {
                Ok(_) => Ok(cron),
                Err(error) => Err(format!("it never happens: {error}")),
            }
        });
        if let Err(error) = &schedule {
            let message = format!(
                "is not a cron expression like {DEFAULT_SCHEDULE:?} (minute hour day month weekday, UTC): {error}"
            );
            problems.add("gc.schedule", message);
        }
        Some(GcSettings { schedule: schedule.ok()?, expression, batch: self.batch, load: self.load })
    }
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct AuditTable {
    /// Age at which weekly partitions are dropped. Not shorter than any retention: the trail outlives the keys. The database keeps them for
    /// oncely.cell.audit_floor (30 days) in any case.
    #[garde(range(min = DAY, max = DAY.times(3_650)))]
    pub(crate) retention: Length,
    /// true lists each duplicate with the place that knew it (mirror, postgres, batch). A row each; without it a duplicate costs no write.
    pub(crate) duplicates: bool,
    /// Time ahead for which the relay creates partitions.
    #[garde(range(min = DAY.times(7), max = DAY.times(366)))]
    pub(crate) ahead: Length,
}

impl Default for AuditTable {
    fn default() -> Self {
        Self { retention: DAY.times(90), duplicates: false, ahead: DAY.times(28) }
    }
}

impl From<AuditTable> for AuditSettings {
    fn from(table: AuditTable) -> Self {
        Self { retention: table.retention.0, duplicates: table.duplicates, ahead: table.ahead.0 }
    }
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct DeadLettersTable {
    /// Largest body in bytes that the searchable copy of a dead letter holds. A larger one is in the dead-letter queue alone: it can't be shown, and is
    /// requeued from there.
    #[garde(range(min = 0, max = 16_777_216))]
    pub(crate) max_body: u32,
    /// Letters of one tenant with a message in the searchable copy. Over that a letter's message is in the dead-letter queue alone, too. `oncely tenant
    /// limit` sets other limits for one tenant.
    pub(crate) tenant_letters: u32,
    /// Bytes of their bodies and headers; the same holds over that.
    pub(crate) tenant_bytes: u32,
}

impl Default for DeadLettersTable {
    fn default() -> Self {
        Self { max_body: 256 << 10, tenant_letters: 100_000, tenant_bytes: 1 << 30 }
    }
}

impl From<DeadLettersTable> for DeadLetterSettings {
    fn from(table: DeadLettersTable) -> Self {
        let DeadLettersTable { max_body, tenant_letters, tenant_bytes } = table;
        Self { max_body, tenant_letters, tenant_bytes }
    }
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogTable {
    /// "text" for people, "json" for machines: one object a line, on stderr.
    pub(crate) format: LogFormat,
    /// error, warn, info, debug, trace; or by module: "oncely=debug,info". RUST_LOG has the last word.
    pub(crate) level: String,
    /// true writes PostgreSQL's own texts of errors too, to the log, the trail, dead letters and their headers. They may quote values of a message (a
    /// failed cast quotes its value), so by default there is the condition, its SQLSTATE and the names of constraint, table and column. Texts that
    /// a handler writes on purpose (raise exception, oncely.reject, HandlerError) are always written: put no secrets into them.
    pub(crate) server_errors: bool,
}

impl Default for LogTable {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned(), server_errors: false }
    }
}

impl LogTable {
    pub(crate) fn into_settings(self, problems: &mut Problems) -> LogSettings {
        if self.level.parse::<tracing_subscriber::filter::targets::Targets>().is_err() {
            let message =
                "must be a level (error, warn, info, debug, trace) or a filter like oncely=debug,info";
            problems.add("log.level", message);
        }
        LogSettings { format: self.format, level: self.level, server_errors: self.server_errors }
    }
}
