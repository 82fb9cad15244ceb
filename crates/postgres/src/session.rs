//! A connection to PostgreSQL, with properties that hold for its whole life.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgConnection, PgTypeInfo};
use sqlx::{Connection as _, Encode, Postgres, Row as _, Type};

use super::connection::{build_standby_error, wait_for_answer};
use super::search_path::{pin_search_path, unpin_search_path};
use super::settings::PgSettings;

/// Returns whether the server is a standby.
pub async fn is_standby(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::raw_sql("select pg_catalog.pg_is_in_recovery()").fetch_one(connection).await?.try_get(0)
}

/// The database's clock, advanced by this machine's monotonic clock: the database decides the time, and a jump of this machine's clock has
/// no effect.
#[derive(Clone, Debug)]
pub struct DatabaseClock(Arc<RwLock<(DateTime<Utc>, Instant)>>);

impl DatabaseClock {
    /// Creates a clock that was `now` at `read_at`.
    #[must_use]
    pub fn new(now: DateTime<Utc>, read_at: Instant) -> Self {
        Self(Arc::new(RwLock::new((now, read_at))))
    }

    /// Sets the clock.
    pub fn set(&self, now: DateTime<Utc>, read_at: Instant) {
        // A poisoned lock still holds a valid value: it is replaced as one.
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = (now, read_at);
    }

    /// Returns the database's current time, in PostgreSQL's precision of microseconds.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let (database_time, read_at) = *self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = database_time + read_at.elapsed();
        DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
    }
}

/// The identity of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseCell {
    /// The name of the cell.
    pub name: String,
    /// `oncely.epoch()`: server, timeline, database and history.
    pub epoch: String,
}

/// A connection with the epoch that was read through it. The epoch can't change while the connection lives, because a primary keeps its
/// timeline as long as it runs and a standby refuses its writes.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub connection: PgConnection,
    /// The identity of its database.
    pub cell: DatabaseCell,
    /// The database's clock.
    pub clock: DatabaseClock,
    /// Whether commits wait for a standby.
    pub synchronous: bool,
    /// The server process behind it.
    pub backend: Backend,
    /// See [`Session::keep_memory`].
    pub(super) keeps_memory: bool,
}

/// A null of the handlers' argument type.
struct NoMessages;

impl Type<Postgres> for NoMessages {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::array_of("oncely.message")
    }
}

impl Encode<'_, Postgres> for NoMessages {
    fn encode_by_ref(&self, _: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Ok(IsNull::Yes)
    }
}

/// The server process behind a session, as another session identifies it. The start time distinguishes it from a later process with the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    pub(super) pid: i32,
    pub(super) started_at: DateTime<Utc>,
}

/// Reads the number of the server process behind a connection. Uses no prepared statement, which behind a pooler might be another
/// client's.
pub async fn read_backend_pid(connection: &mut PgConnection) -> sqlx::Result<i32> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

impl Session {
    /// Connects, and reads the database's identity.
    ///
    /// # Errors
    /// If it can't be reached, is a standby, or has no `oncely` schema.
    pub async fn open(settings: &PgSettings, application: &str) -> sqlx::Result<Self> {
        let connection = settings.connect(application).await?;
        Self::identify(settings, connection).await
    }

    /// Opens a session for a lane. While idle it keeps the search_path of its role and database, which is for handlers (see
    /// [`super::search_path`]).
    pub(crate) async fn open_for_handlers(settings: &PgSettings, application: &str) -> sqlx::Result<Self> {
        let mut connection = settings.connect_with(application, None).await?;
        wait_for_answer(settings.client_timeout(), pin_search_path(&mut connection)).await?;
        let mut session = Self::identify(settings, connection).await?;
        // The driver looks Oncely's type up by a statement of its own, once: here, and not in the handler's path.
        let query = sqlx::query("select $1::oncely.message[]").bind(NoMessages);
        wait_for_answer(settings.client_timeout(), query.fetch_one(&mut session.connection)).await?;
        wait_for_answer(settings.client_timeout(), unpin_search_path(&mut session.connection)).await?;
        Ok(session)
    }

    /// Reads cell, epoch and clock of the server. Fails on a standby, and through a pooler in transaction mode.
    async fn identify(settings: &PgSettings, mut connection: PgConnection) -> sqlx::Result<Self> {
        let pid = wait_for_answer(settings.client_timeout(), read_backend_pid(&mut connection)).await?;
        let server = sqlx::query!(
            r#"select pg_is_in_recovery() as "is_standby!", current_setting('synchronous_standby_names') <> '' as "synchronous!""#
        );
        let server = wait_for_answer(settings.client_timeout(), server.fetch_one(&mut connection)).await?;
        if server.is_standby {
            return Err(build_standby_error());
        }
        let read_at = Instant::now();
        let row = sqlx::query!(
            r#"select c.name as "name!", oncely.epoch() as "epoch!", clock_timestamp() as "now!", a.pid as "pid!",
                a.backend_start as "started_at!"
            from oncely.cell as c, pg_stat_get_activity(pg_backend_pid()) as a"#
        )
        .fetch_one(&mut connection);
        let row = wait_for_answer(settings.client_timeout(), row).await?;
        if row.pid != pid {
            let text = "the server's process changes between two statements: there is a pooler in transaction mode in between";
            return Err(sqlx::Error::Configuration(text.into()));
        }
        Ok(Self {
            connection,
            cell: DatabaseCell { name: row.name, epoch: row.epoch },
            clock: DatabaseClock::new(row.now, read_at),
            synchronous: server.synchronous,
            backend: Backend { pid: row.pid, started_at: row.started_at },
            keeps_memory: false,
        })
    }

    /// Closes the connection properly; waits up to two seconds for the server. Errors don't matter: the connection is not used again.
    pub async fn close(self) {
        // A peer that vanished silently does not answer this either.
        match tokio::time::timeout(Duration::from_secs(2), self.connection.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = %error, "closing a PostgreSQL connection failed"),
            Err(_) => tracing::debug!("a PostgreSQL connection was closed without an answer"),
        }
    }
}

/// Waits until all visible commits have reached a synchronous standby. A commit with an interrupted wait for the standby is visible, and
/// would still be lost by a failover; the log is replayed in order, so a later commit of this session proves it.
///
/// An empty transaction would not wait: PostgreSQL waits only for one that has written to its log. Without a synchronous standby nothing is
/// written; the setting can change during a session, so it is checked each time.
pub async fn wait_for_standby(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        "select case
            when pg_catalog.current_setting('synchronous_standby_names') operator(pg_catalog.<>) ''
            then pg_catalog.pg_logical_emit_message(true, 'oncely', '')
        end::text"
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Limits lock waits until the end of the current transaction.
pub async fn limit_lock_wait(connection: &mut PgConnection, limit: Duration) -> sqlx::Result<()> {
    let limit = limit.as_millis().to_string();
    sqlx::query!("select pg_catalog.set_config('lock_timeout', $1, true)", limit)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Makes PostgreSQL plan the following statements of the current transaction, until `enter_handler`, for the tables' present sizes. A plan
/// kept since the tables were empty reads a whole index until they are analysed (autovacuum: after a minute or two): 80 ms with 50,000 keys
/// instead of 0.3 ms.
pub(crate) async fn plan_anew(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("set local plan_cache_mode = force_custom_plan").execute(connection).await?;
    Ok(())
}

/// Undoes [`plan_anew`]: the following statements are a handler's, which may take long to plan.
pub(crate) async fn plan_as_usual(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("set local plan_cache_mode to default").execute(connection).await?;
    Ok(())
}

/// Configures a session for interactive queries. Their filters differ each time, and a generic plan would read whole tables; so would
/// outdated statistics, or a limit that makes the planner start anywhere.
pub async fn prefer_indexes(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        "select set_config('plan_cache_mode', 'force_custom_plan', false) as plans,
            set_config('enable_seqscan', 'off', false) as whole"
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Cancels the current statement of a session, which fails with 57014. Only for a session of the same role and application: behind a pooler
/// the process may by then serve another client.
pub async fn cancel_backend(connection: &mut PgConnection, backend: Backend) -> sqlx::Result<()> {
    sqlx::query!(
        "select pg_cancel_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2
            and application_name = current_setting('application_name')",
        backend.pid,
        backend.started_at
    )
    .fetch_optional(connection)
    .await?;
    Ok(())
}

/// Returns whether a session still runs a statement.
pub async fn is_at_work(connection: &mut PgConnection, backend: Backend) -> sqlx::Result<bool> {
    let row = sqlx::query!(
        r#"select exists (
            select from pg_stat_activity where pid = $1 and backend_start = $2 and state = 'active'
        ) as "active!""#,
        backend.pid,
        backend.started_at
    );
    Ok(row.fetch_one(connection).await?.active)
}

/// Terminates an abandoned session, with its transaction and its locks. For a session of the same role and application.
pub async fn end_backend(connection: &mut PgConnection, backend: Backend) -> sqlx::Result<()> {
    sqlx::query!(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2
            and application_name = current_setting('application_name')",
        backend.pid,
        backend.started_at
    )
    .fetch_optional(connection)
    .await?;
    Ok(())
}

/// Terminates a session like [`end_backend`], and waits up to five seconds for its end. Returns whether it has ended.
#[cfg(feature = "testing")]
pub async fn end_backend_now(connection: &mut PgConnection, backend: Backend) -> sqlx::Result<bool> {
    let query = sqlx::query_scalar(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid = $1 and backend_start = $2
            and application_name = current_setting('application_name')",
    );
    let has_ended = query.bind(backend.pid).bind(backend.started_at).fetch_optional(connection).await?;
    Ok(has_ended.unwrap_or(true))
}

/// Removes the statement timeout of this session: for operators who wait for the result.
pub async fn remove_statement_timeout(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select set_config('statement_timeout', '0', false) as statements")
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Reads the epoch, whether reported commits may be lost, and the time. They may be lost if a standby can take over without the latest
/// ones (a slot counts as a standby: one that is disconnected for a moment comes back through it), or if a crash loses unflushed ones: the
/// same timeline, so the same epoch, but not the same rows.
pub async fn read_database_status(
    connection: &mut PgConnection,
) -> sqlx::Result<(String, bool, DateTime<Utc>)> {
    let row = sqlx::query!(
        r#"select oncely.epoch() as "epoch!", clock_timestamp() as "now!",
            exists (select from pg_stat_replication where pid <> pg_backend_pid())
                or exists (select from pg_replication_slots where slot_type = 'physical')
                or current_setting('fsync') = 'off'
                or current_setting('synchronous_commit') = 'off' as "may_lose_commits!""#
    )
    .fetch_one(connection)
    .await?;
    Ok((row.epoch, row.may_lose_commits, row.now))
}
