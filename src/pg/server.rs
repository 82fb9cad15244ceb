//! What a server says of itself: version, settings, who follows it.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row as _};

/// The version, as a number (150004) and for people. Asked without a prepared statement, which a pooler might have somebody else's of.
pub(crate) async fn server_version(connection: &mut PgConnection) -> Result<(i32, String), sqlx::Error> {
    let asked = "select current_setting('server_version_num')::integer, current_setting('server_version')";
    let row = sqlx::raw_sql(asked).fetch_one(connection).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// In which encoding the database stores text.
pub(crate) async fn server_encoding(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    sqlx::raw_sql("select pg_catalog.current_setting('server_encoding')")
        .fetch_one(connection)
        .await?
        .try_get(0)
}

/// Why a database in this encoding is not fit, and what to do; `None` where it is. Others can't hold every text of a message, or hold
/// bytes of which PostgreSQL does not know what they mean (`SQL_ASCII`, which `initdb` makes where there is no locale).
pub(crate) fn unfit_encoding(encoding: &str) -> Option<String> {
    (encoding != "UTF8").then(|| {
        format!(
            "the database's encoding is {encoding}, and must be UTF8: messages hold any text, and an encoding can't be changed. Create \
             another one, as in \"create database NAME encoding 'UTF8' locale 'C.UTF-8' template template0\" (a cluster gets it with \
             `initdb --encoding=UTF8`), and take over what is in this one with pg_dump"
        )
    })
}

/// Does a session take no writes, by what the server, the database or the login says of new ones?
pub(crate) async fn is_read_only(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let asked = "select reset_val operator(pg_catalog.=) 'on' from pg_catalog.pg_settings \
                 where name operator(pg_catalog.=) 'default_transaction_read_only'";
    sqlx::raw_sql(asked).fetch_one(connection).await?.try_get(0)
}

/// Lets a session change nothing, until it says otherwise.
pub(crate) async fn read_only(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select set_config('default_transaction_read_only', 'on', false)")
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Settings that decide whether a commit that was reported can be lost, and how long sessions live. As this session has them: a role or a
/// database may have their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSettings {
    pub(crate) fsync: bool,
    pub(crate) full_page_writes: bool,
    pub(crate) synchronous_commit: String,
    /// Empty where no commit waits for a standby.
    pub(crate) synchronous_standby_names: String,
    /// Standbys and other receivers of the log that are connected.
    pub(crate) standbys: i64,
    /// Physical replication slots: a standby that is away for a moment comes back through one.
    pub(crate) physical_slots: i64,
    pub(crate) autovacuum: bool,
    /// Milliseconds; 0 where there is no limit.
    pub(crate) idle_session_timeout: i64,
    /// Milliseconds; 0 where there is no limit, or the server has none (before 17).
    pub(crate) transaction_timeout: i64,
}

/// The settings.
pub(crate) async fn server_settings(connection: &mut PgConnection) -> Result<ServerSettings, sqlx::Error> {
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

/// The database's clock beside this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) database: DateTime<Utc>,
    /// This machine's, in the middle between question and answer.
    pub(crate) here: DateTime<Utc>,
    /// They may differ by so much without being wrong: half of what question and answer took.
    pub(crate) uncertainty: chrono::Duration,
}

/// Reads both clocks.
pub(crate) async fn read_clock(connection: &mut PgConnection) -> Result<ClockReading, sqlx::Error> {
    let (asked, before) = (Instant::now(), Utc::now());
    let database = sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#).fetch_one(connection).await?;
    let uncertainty = chrono::Duration::from_std(asked.elapsed() / 2).unwrap_or_default();
    Ok(ClockReading { database, here: before + uncertainty, uncertainty })
}
