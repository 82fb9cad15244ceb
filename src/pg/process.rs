//! Heartbeats.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// Who this process is.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: Uuid,
    /// `worker`, `relay` or `gateway`.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) host: String,
    /// Names its configuration.
    pub(crate) config_digest: String,
}

/// Whether a process does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// It has not done any yet: why.
    Starting(String),
    /// It does.
    Ready,
    /// It has, and can't at the moment: why.
    Unready(String),
    /// It was told to stop.
    Stopping,
}

impl Readiness {
    /// As `oncely.processes.state` and `/readyz` have it.
    pub(crate) fn state(&self) -> &'static str {
        match self {
            Self::Starting(_) => "starting",
            Self::Ready => "ready",
            Self::Unready(_) => "unready",
            Self::Stopping => "stopping",
        }
    }

    /// Why it is not ready.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Starting(reason) | Self::Unready(reason) => Some(reason),
            Self::Ready | Self::Stopping => None,
        }
    }
}

/// A process that was not seen for so long is silent: two beats (of five seconds each) did not come, and the second one had two seconds
/// more. With the time that a look takes, one that stands still is told of within 15 seconds.
pub(crate) const SILENT: TimeDelta = TimeDelta::seconds(12);

/// Longest reason that is told, in bytes.
const REASON: usize = 1_000;

/// From now on commits of this session wait neither for the disk nor for a standby: a heartbeat that is lost is followed by the next.
pub(crate) async fn commit_casually(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select set_config('synchronous_commit', 'off', false)").fetch_one(connection).await?;
    Ok(())
}

/// Says that this process lives, whether it is ready, and how its consumers fare.
pub(crate) async fn beat(
    connection: &mut PgConnection,
    process: &Process,
    readiness: &Readiness,
    consumers: &Value,
) -> Result<(), sqlx::Error> {
    let reason = readiness.reason().map(|reason| &reason[..reason.floor_char_boundary(REASON)]);
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

/// Says that this process ends in peace.
pub(crate) async fn leave(connection: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.leave($1)::text", id).fetch_one(connection).await?;
    Ok(())
}

/// Removes the rows of silent processes, each filter off where it is `None`, on behalf of a person. Returns how many.
pub(crate) async fn forget(
    connection: &mut PgConnection,
    (host, name, pid): (Option<&str>, Option<&str>, Option<i32>),
    user: &str,
    note: Option<&str>,
) -> Result<i64, sqlx::Error> {
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

/// Removes the rows of processes that nobody has seen since. Returns how many.
pub(crate) async fn bury(connection: &mut PgConnection, before: DateTime<Utc>) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.bury_processes($1) as "buried!""#, before)
        .fetch_one(connection)
        .await
}

/// A process as it said last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessRow {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) config_digest: String,
    /// [`Readiness::state`], with its reason.
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) login: String,
    pub(crate) started_at: DateTime<Utc>,
    pub(crate) last_seen_at: DateTime<Utc>,
    pub(crate) consumers: Value,
}

/// So many processes of one login are told of, those that were seen last: a login that makes up many hides nobody else's.
const OF_LOGIN: i64 = 100;

/// Processes that were seen since a time; workers last.
pub(crate) async fn processes(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> Result<Vec<ProcessRow>, sqlx::Error> {
    let rows = sqlx::query!(
        // As text: JSON may hold what Rust can't, and one row must not hide the others.
        r#"select kind, name, version, host, pid, config_digest, state, reason, login, oncely.bounded(started_at) as "started_at!",
            oncely.bounded(last_seen_at) as "last_seen_at!", consumers::text as "consumers!"
         from oncely.processes
         where id in (
             select p.id
             from (
                 select id, row_number() over (partition by login order by last_seen_at desc, id) as place
                 from oncely.processes
                 where last_seen_at >= $1
             ) as p
             where p.place <= $2
         )
         order by kind, name, started_at, id"#,
        since,
        OF_LOGIN
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
