//! Heartbeats of processes.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// The identity of this process.
#[derive(Clone, Debug)]
pub struct Process {
    pub id: Uuid,
    /// `worker`, `relay` or `gateway`.
    pub kind: &'static str,
    pub name: String,
    pub host: String,
    /// A digest of its configuration.
    pub config_digest: String,
}

/// Whether a process does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It has not started working, for this reason.
    Starting(String),
    /// It is working.
    Ready,
    /// It has worked, and can't at the moment, for this reason.
    Unready(String),
    /// It is stopping on request.
    Stopping,
}

impl Readiness {
    /// Returns the value for `oncely.processes.state` and `/readyz`.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Starting(_) => "starting",
            Self::Ready => "ready",
            Self::Unready(_) => "unready",
            Self::Stopping => "stopping",
        }
    }

    /// Returns the reason why the process is not ready; `None` if it is ready or stopping.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Starting(reason) | Self::Unready(reason) => Some(reason),
            Self::Ready | Self::Stopping => None,
        }
    }
}

/// Time after which a process that was not seen is silent: two beats (five seconds each) are missing, and the second had two more seconds.
/// Including the time of a query, a stalled process is reported within 15 seconds.
pub const SILENCE_TIME: TimeDelta = TimeDelta::seconds(12);

/// Maximum length of a reported reason, in bytes.
const MAX_REASON_BYTES: usize = 1_000;

/// Disables waiting for disk and standby at commit, for the rest of the session: a lost heartbeat is followed by the next.
pub async fn disable_synchronous_commit(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select set_config('synchronous_commit', 'off', false)").fetch_one(connection).await?;
    Ok(())
}

/// Records that this process is alive, its readiness, and the state of its consumers.
pub async fn record_heartbeat(
    connection: &mut PgConnection,
    process: &Process,
    readiness: &Readiness,
    consumers: &Value,
) -> sqlx::Result<()> {
    let reason = readiness.reason().map(|reason| &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)]);
    sqlx::query!(
        "select oncely.beat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)::text",
        process.id,
        process.kind,
        process.name,
        env!("CARGO_PKG_VERSION"),
        process.host,
        i32::try_from(std::process::id()).unwrap_or(i32::MAX),
        process.config_digest,
        readiness.state(),
        reason,
        consumers
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Records a regular end of this process.
pub async fn record_end(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select oncely.leave($1)::text", id).fetch_one(connection).await?;
    Ok(())
}

/// Removes the rows of silent processes that match, on behalf of an operator; a filter of `None` matches any. Returns the number removed.
pub async fn forget(
    connection: &mut PgConnection,
    (host, name, pid): (Option<&str>, Option<&str>, Option<i32>),
    user: &str,
    note: Option<&str>,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"select oncely.forget_processes($1, $2, $3, $4, $5) as "gone!""#,
        host,
        name,
        pid,
        user,
        note
    )
    .fetch_one(connection)
    .await
}

/// Removes the rows of processes last seen before a time. Returns the number removed.
pub async fn delete_processes_before(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"select oncely.bury_processes($1) as "buried!""#, before)
        .fetch_one(connection)
        .await
}

/// A process as last reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    pub kind: String,
    pub name: String,
    pub version: String,
    pub host: String,
    pub pid: i32,
    pub config_digest: String,
    /// [`Readiness::state`], with its reason.
    pub state: String,
    pub reason: Option<String>,
    pub login: String,
    pub started_at: DateTime<Utc>,
    pub last_seen_at: DateTime<Utc>,
    pub consumers: Value,
}

/// Maximum number of processes listed per login, the last seen ones: a login that reports many hides no other's.
const MAX_PROCESSES_PER_LOGIN: i64 = 100;

/// Maximum number of bytes of all reports on consumers that are read.
const MAX_REPORT_BYTES: i64 = 4 << 20;
/// Maximum number of values in these reports: a value of three bytes takes some hundred as a tree.
const MAX_REPORT_VALUES: i64 = 1 << 17;

/// Lists processes seen since a time; workers last. Beyond the limit of all reports, those of each login's older processes are empty.
pub async fn list_processes(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> sqlx::Result<Vec<ProcessRow>> {
    let rows = sqlx::query!(
        // As text: JSON may hold values that Rust can't represent, and one row must not hide the others.
        r#"with seen as (
            select p.*, p.consumers::text as report,
                row_number() over (partition by p.login order by p.last_seen_at desc, p.id) as place
            from oncely.processes as p
            where p.last_seen_at >= $1
        ), counted as (
            select s.*, sum(octet_length(s.report)) over w as bytes,
                sum(length(s.report) - length(translate(s.report, '[{:,', ''))) over w as "values"
            from seen as s
            where s.place <= $2
            window w as (order by s.place, octet_length(s.report), s.id)
        )
        select kind, name, version, host, pid, config_digest, state, reason, login, oncely.bounded(started_at) as "started_at!",
            oncely.bounded(last_seen_at) as "last_seen_at!",
            case when bytes <= $3::bigint and "values" <= $4::bigint then report else '[]' end as "consumers!"
        from counted
        order by kind, name, started_at, id"#,
        since,
        MAX_PROCESSES_PER_LOGIN,
        MAX_REPORT_BYTES,
        MAX_REPORT_VALUES
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter().map(|row| ProcessRow {
        kind: row.kind,
        name: row.name,
        version: row.version,
        host: row.host,
        pid: row.pid,
        config_digest: row.config_digest,
        state: row.state,
        reason: row.reason,
        login: row.login,
        started_at: row.started_at,
        last_seen_at: row.last_seen_at,
        consumers: serde_json::from_str(&row.consumers).unwrap_or_default(),
    });
    Ok(rows.collect())
}
