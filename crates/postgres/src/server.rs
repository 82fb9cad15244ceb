//! Reads a server's version, settings and replicas.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row as _};

/// Reads the server's version, as a number (150004) and as text. Uses no prepared statement, which behind a pooler might be another
/// client's.
pub async fn read_server_version(connection: &mut PgConnection) -> sqlx::Result<(i32, String)> {
    let query = "select current_setting('server_version_num')::integer, current_setting('server_version')";
    let row = sqlx::raw_sql(query).fetch_one(connection).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Reads the encoding in which the database stores text.
pub async fn read_server_encoding(connection: &mut PgConnection) -> sqlx::Result<String> {
    sqlx::raw_sql("select pg_catalog.current_setting('server_encoding')")
        .fetch_one(connection)
        .await?
        .try_get(0)
}

/// Describes why a database in this encoding is unsuitable, and the remedy; `None` for a suitable one. Other encodings can't hold every
/// text of a message, or hold bytes that PostgreSQL does not interpret (`SQL_ASCII`, which `initdb` chooses without a locale).
pub fn describe_unfit_encoding(encoding: &str) -> Option<String> {
    (encoding != "UTF8").then(|| {
        format!(
            "the database's encoding is {encoding}, and must be UTF8: messages hold any text, and an encoding can't be changed. Create \
             another one, as in \"create database NAME encoding 'UTF8' locale 'C.UTF-8' template template0\" (a cluster gets it with \
             `initdb --encoding=UTF8`), and take over what is in this one with pg_dump"
        )
    })
}

/// Returns whether new sessions are read-only, by the setting of the server, the database or the login.
pub async fn is_read_only(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let query = "select reset_val operator(pg_catalog.=) 'on' from pg_catalog.pg_settings \
                 where name operator(pg_catalog.=) 'default_transaction_read_only'";
    sqlx::raw_sql(query).fetch_one(connection).await?.try_get(0)
}

/// Makes a session read-only until the setting is reset.
pub async fn set_read_only(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select set_config('default_transaction_read_only', 'on', false)")
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Settings that decide whether a reported commit can be lost, and how long sessions live. Values of this session: a role or a database may
/// have their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    /// Empty if no commit waits for a standby.
    pub synchronous_standby_names: String,
    /// Number of connected standbys and other receivers of the log.
    pub standbys: i64,
    /// Number of physical replication slots: a standby that is disconnected for a moment comes back through one.
    pub physical_slots: i64,
    pub autovacuum: bool,
    /// Milliseconds; 0 without a limit.
    pub idle_session_timeout: i64,
    /// Milliseconds; 0 without a limit, or if the server has no such setting (before 17).
    pub transaction_timeout: i64,
}

/// Reads the server's settings that affect durability and timeouts.
pub async fn read_server_settings(connection: &mut PgConnection) -> sqlx::Result<ServerSettings> {
    sqlx::query_as!(
        ServerSettings,
        r#"select current_setting('fsync') = 'on' as "fsync!", current_setting('full_page_writes') = 'on' as "full_page_writes!",
            current_setting('synchronous_commit') as "synchronous_commit!",
            current_setting('synchronous_standby_names') as "synchronous_standby_names!",
            (select count(*) from pg_stat_replication where pid <> pg_backend_pid()) as "standbys!",
            (select count(*) from pg_replication_slots where slot_type = 'physical') as "physical_slots!",
            current_setting('autovacuum') = 'on' as "autovacuum!",
            coalesce((select setting::bigint from pg_settings where name = 'idle_session_timeout'), 0) as "idle_session_timeout!",
            coalesce((select setting::bigint from pg_settings where name = 'transaction_timeout'), 0) as "transaction_timeout!""#
    )
    .fetch_one(connection)
    .await
}

/// The database's clock and this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub database: DateTime<Utc>,
    /// This machine's time, midway between the query and its result.
    pub local: DateTime<Utc>,
    /// Difference that is possible without an error: half of the round trip.
    pub uncertainty: chrono::Duration,
}

/// Reads the database's clock, to compare it with this machine's.
pub async fn read_clock(connection: &mut PgConnection) -> sqlx::Result<ClockReading> {
    let (start, started_at) = (Instant::now(), Utc::now());
    let database = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#).fetch_one(connection).await?;
    let uncertainty = chrono::Duration::from_std(start.elapsed() / 2).unwrap_or_default();
    Ok(ClockReading { database, local: started_at + uncertainty, uncertainty })
}
