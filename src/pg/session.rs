//! A connection to PostgreSQL, with what must hold for all its life.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgConnection, PgTypeInfo};
use sqlx::{Connection as _, Encode, Postgres, Row as _, Type};

use super::connection::{standby, within};
use super::search_path::{pin, unpin};
use super::settings::PgSettings;

/// Does the server only read?
pub(crate) async fn is_standby(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql("select pg_is_in_recovery()").fetch_one(connection).await?.try_get(0)
}

/// The database's clock, carried on by this machine's monotonic one: the database decides what time it is, and a jump of
/// this machine's clock changes nothing.
#[derive(Clone, Debug)]
pub struct Clock(Arc<RwLock<(DateTime<Utc>, Instant)>>);

impl Clock {
    /// A clock that was `now` at `asked`.
    #[must_use]
    pub fn new(now: DateTime<Utc>, asked: Instant) -> Self {
        Self(Arc::new(RwLock::new((now, asked))))
    }

    /// Sets it anew.
    pub fn set(&self, now: DateTime<Utc>, asked: Instant) {
        // A poisoned lock holds a whole value all the same: it is replaced as one.
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = (now, asked);
    }

    /// The database's time now, to the microsecond that PostgreSQL stores.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let (then, asked) = *self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = then + asked.elapsed();
        DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
    }
}

/// What a database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name.
    pub name: String,
    /// `oncely.epoch()`: server, timeline, database and history.
    pub epoch: String,
}

/// A connection whose server's epoch was read on itself: it can't change while the connection lives, because a primary
/// keeps its timeline as long as it runs and a standby refuses our writes.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub connection: PgConnection,
    /// What its database says of itself.
    pub cell: Cell,
    /// The database's clock.
    pub clock: Clock,
    /// Commits wait for a standby.
    pub(crate) synchronous: bool,
    /// The server's process behind it.
    pub(crate) backend: Backend,
    /// See [`Session::keep_memory`].
    pub(super) keeps_memory: bool,
}

/// A null of the type that handlers take.
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

/// The server's process behind a session, as another session names it. The time of its start tells it from a later process
/// with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(super) pid: i32,
    pub(super) started_at: DateTime<Utc>,
}

/// The number of the server's process behind a connection. Asked without a prepared statement, which a pooler might have somebody
/// else's of.
pub(crate) async fn process(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

impl Session {
    /// Connects and asks the database who it is.
    ///
    /// # Errors
    /// When it can't be reached, is a standby, or has no `oncely` schema.
    pub async fn open(settings: &PgSettings, application: &str) -> Result<Self, sqlx::Error> {
        let connection = settings.connect(application).await?;
        Self::identify(settings, connection).await
    }

    /// The same, for a lane: it rests in the search_path of its role and database, which is its handler's (see
    /// [`super::search_path`]).
    pub(crate) async fn open_for_handlers(
        settings: &PgSettings,
        application: &str,
    ) -> Result<Self, sqlx::Error> {
        let mut connection = settings.connect_with(application, None).await?;
        within(settings.client_timeout(), pin(&mut connection)).await?;
        let mut session = Self::identify(settings, connection).await?;
        // The driver asks what our type is by a statement of its own, once: here, and not in the handler's path.
        let asked = sqlx::query("select $1::oncely.message[]").bind(NoMessages);
        within(settings.client_timeout(), asked.fetch_one(&mut session.connection)).await?;
        within(settings.client_timeout(), unpin(&mut session.connection)).await?;
        Ok(session)
    }

    async fn identify(settings: &PgSettings, mut connection: PgConnection) -> Result<Self, sqlx::Error> {
        let pid = within(settings.client_timeout(), process(&mut connection)).await?;
        let server = sqlx::query!(
            r#"select pg_is_in_recovery() as "is_standby!", current_setting('synchronous_standby_names') <> '' as "synchronous!""#
        );
        let server = within(settings.client_timeout(), server.fetch_one(&mut connection)).await?;
        if server.is_standby {
            return Err(standby());
        }
        let asked = Instant::now();
        let row = sqlx::query!(
            r#"select c.name as "name!", oncely.epoch() as "epoch!", clock_timestamp() as "now!", a.pid as "pid!",
                a.backend_start as "started_at!"
            from oncely.cell as c, pg_stat_activity as a
            where a.pid = pg_backend_pid()"#
        )
        .fetch_one(&mut connection);
        let row = within(settings.client_timeout(), row).await?;
        if row.pid != pid {
            let text = "the server's process changes between two statements: there is a pooler in transaction mode in between";
            return Err(sqlx::Error::Configuration(text.into()));
        }
        Ok(Self {
            connection,
            cell: Cell { name: row.name, epoch: row.epoch },
            clock: Clock::new(row.now, asked),
            synchronous: server.synchronous,
            backend: Backend { pid: row.pid, started_at: row.started_at },
            keeps_memory: false,
        })
    }

    /// Says good-bye to the server. Errors don't matter: the connection is not used again.
    pub async fn close(self) {
        // A peer that vanished without a word does not answer this either.
        match tokio::time::timeout(Duration::from_secs(2), self.connection.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = %error, "closing a PostgreSQL connection failed"),
            Err(_) => tracing::debug!("a PostgreSQL connection was closed without an answer"),
        }
    }
}

/// Waits until everything that is visible now has reached a synchronous standby. A commit whose wait for the standby was cut short
/// is visible, and would be lost by a failover all the same; the log is replayed in order, so a commit of our own behind it tells.
///
/// An empty transaction would wait for nothing: PostgreSQL waits only for one that has written to its log. Where no standby is
/// waited for nothing is written; the setting can change under a session, so it is asked for each time.
pub(crate) async fn await_standby(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
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

/// Waits for locks no longer than this, until the end of the transaction at hand.
pub(crate) async fn limit_lock_wait(
    connection: &mut PgConnection,
    limit: Duration,
) -> Result<(), sqlx::Error> {
    let limit = limit.as_millis().to_string();
    sqlx::query!("select pg_catalog.set_config('lock_timeout', $1, true)", limit)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Has PostgreSQL plan what follows in the transaction at hand, until `enter_handler`, for the tables as they are. A plan that a session
/// has kept since its tables were empty reads a whole index until they are analysed (autovacuum: after a minute or two): 80 ms with 50,000 keys instead of 0.3 ms.
pub(crate) async fn plan_anew(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("set local plan_cache_mode = force_custom_plan").execute(connection).await?;
    Ok(())
}

/// Takes [`plan_anew`] back: what follows in the transaction is a handler's, which may be long to plan.
pub(crate) async fn plan_as_usual(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("set local plan_cache_mode to default").execute(connection).await?;
    Ok(())
}

/// For a session of somebody who looks. Its questions have other filters each time, and a plan for any of them would read whole tables; so
/// would statistics that are out of date, and a limit that is taken for a reason to begin anywhere. And no plan is compiled first: that
/// takes longer than the answers.
pub(crate) async fn read_by_index(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select set_config('plan_cache_mode', 'force_custom_plan', false) as plans,
            set_config('enable_seqscan', 'off', false) as whole, set_config('jit', 'off', false) as compiled"
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Ends what a session does at the moment: its statement fails with 57014. For a session of the same role and application: behind a
/// pooler the process may meanwhile work for a stranger.
pub(crate) async fn cancel_backend(
    connection: &mut PgConnection,
    backend: Backend,
) -> Result<(), sqlx::Error> {
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

/// Does a session still run a statement?
pub(crate) async fn is_at_work(connection: &mut PgConnection, backend: Backend) -> Result<bool, sqlx::Error> {
    let row = sqlx::query!(
        r#"select exists (
            select from pg_stat_activity where pid = $1 and backend_start = $2 and state = 'active'
        ) as "active!""#,
        backend.pid,
        backend.started_at
    );
    Ok(row.fetch_one(connection).await?.active)
}

/// Ends a session that nobody listens to any more, with its transaction and its locks. For a session of the same role.
pub(crate) async fn end_backend(connection: &mut PgConnection, backend: Backend) -> Result<(), sqlx::Error> {
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

/// The same, and waits until the session is gone, for five seconds at most. Is it?
#[cfg(feature = "testing")]
pub(crate) async fn end_backend_now(
    connection: &mut PgConnection,
    backend: Backend,
) -> Result<bool, sqlx::Error> {
    let ended = sqlx::query_scalar(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid = $1 and backend_start = $2
            and application_name = current_setting('application_name')",
    );
    let ended = ended.bind(backend.pid).bind(backend.started_at).fetch_optional(connection).await?;
    Ok(ended.unwrap_or(true))
}

/// Lets statements of this session take as long as they do: for a person who waits for them.
pub(crate) async fn take_time(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select set_config('statement_timeout', '0', false) as statements")
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// The epoch, whether commits that were reported may be lost, and the time. They may where a standby can take over without
/// the latest ones (a slot counts as a standby: one that is away for a moment comes back through it), and where a crash
/// loses what was not flushed: the same timeline, so the same epoch, but not the same rows.
pub(crate) async fn database_status(
    connection: &mut PgConnection,
) -> Result<(String, bool, DateTime<Utc>), sqlx::Error> {
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
