//! Reads the settings of the write-ahead log (WAL), and how it was written since the server's statistics began.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row as _};

/// Counts of finished checkpoints: those that came in time, and those that were requested, most often since the WAL had reached
/// `max_wal_size`. PostgreSQL 17 moved them to a view of their own.
const CHECKPOINTS: &str = "select num_timed, num_requested from pg_catalog.pg_stat_checkpointer";
const CHECKPOINTS_BEFORE_17: &str =
    "select checkpoints_timed, checkpoints_req from pg_catalog.pg_stat_bgwriter";

/// Settings and use of the WAL.
#[derive(Clone, Debug, PartialEq)]
pub struct WalActivity {
    /// `wal_compression`.
    pub compression: String,
    /// `max_wal_size` in bytes.
    pub max_size: i64,
    /// `checkpoint_timeout` in seconds.
    pub checkpoint_timeout: i64,
    /// Bytes written since `since`.
    pub bytes: i64,
    /// Bytes of the pages that were written whole, before compression and with their unused parts.
    pub page_bytes: i64,
    /// Seconds since the statistics of the WAL began; 0 if unknown.
    pub seconds: f64,
    /// Start of the statistics of the WAL.
    pub since: Option<DateTime<Utc>>,
    pub timed_checkpoints: i64,
    pub requested_checkpoints: i64,
}

/// Reads the settings and the use of the WAL.
pub async fn read_wal_activity(connection: &mut PgConnection) -> sqlx::Result<WalActivity> {
    let row = sqlx::query!(
        r#"select current_setting('wal_compression') as "compression!",
            pg_size_bytes(current_setting('max_wal_size')) as "max_size!",
            (select setting::bigint from pg_settings where name = 'checkpoint_timeout') as "checkpoint_timeout!",
            current_setting('server_version_num')::integer as "version!",
            wal_bytes::bigint as "bytes!", wal_fpi * current_setting('block_size')::bigint as "page_bytes!",
            coalesce(extract(epoch from clock_timestamp() - stats_reset), 0)::float8 as "seconds!", stats_reset
        from pg_stat_wal"#
    )
    .fetch_one(&mut *connection)
    .await?;
    let query = if row.version < 170_000 { CHECKPOINTS_BEFORE_17 } else { CHECKPOINTS };
    let checkpoints = sqlx::query(query).fetch_one(connection).await?;
    Ok(WalActivity {
        compression: row.compression,
        max_size: row.max_size,
        checkpoint_timeout: row.checkpoint_timeout,
        bytes: row.bytes,
        page_bytes: row.page_bytes,
        seconds: row.seconds,
        since: row.stats_reset,
        timed_checkpoints: checkpoints.try_get(0)?,
        requested_checkpoints: checkpoints.try_get(1)?,
    })
}
