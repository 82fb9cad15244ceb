//! Where names are looked up. Where types don't fit exactly, an object of any schema on the path may win over pg_catalog's, and
//! some databases let everybody create in one: our statements see pg_catalog alone, handlers what their role and database say.
//!
//! Sessions that call no handlers have it from their start ([`super::PgSettings::connect`]). Those of lanes rest in the handlers' path,
//! so that a transaction of one statement needs no other; each of our transactions begins with our own ([`begin`]), what calls a
//! handler leaves it for so long, and what runs outside of transactions says of each name where it is.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection, PgPool, Postgres, Transaction};

use super::error::describe;

/// Ours. `pg_temp` last: else it would come first.
pub(super) const PINNED: &str = "pg_catalog, pg_temp";

/// How long a claim waits for another transaction: a key that somebody holds is asked for again later. The functions of the SQL protocol that
/// claim wait as long (a test reads the catalogue).
macro_rules! give_way {
    () => {
        "100ms"
    };
}

/// Each statement that follows says of each name where it is: the search_path is the handler's.
const BEGIN_REQUEST: &str = concat!(
    "begin isolation level read committed;
    select pg_catalog.set_config('oncely.handler_lock_timeout', pg_catalog.current_setting('lock_timeout'), true),
        pg_catalog.set_config('lock_timeout', '",
    give_way!(),
    "', true)"
);

/// Begins a transaction of ours, in one round trip.
pub(crate) async fn begin(connection: &mut PgConnection) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    connection.begin_with("begin; set local search_path = pg_catalog, pg_temp").await
}

/// [`begin`] for claims: a key that somebody holds is left for later, so they wait only for a moment, until [`enter_handler`].
pub(crate) async fn begin_to_claim(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    connection
        .begin_with(concat!(
            "begin; set local search_path = pg_catalog, pg_temp; set local lock_timeout = '",
            give_way!(),
            "'"
        ))
        .await
}

/// Begins a transaction of ours in an application's own session. It waits for locks only for a moment: who holds them is asked again later.
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) async fn begin_on_pool(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    pool.begin_with(concat!(
        "begin isolation level read committed;
        set local search_path = pg_catalog, pg_temp; set local lock_timeout = '",
        give_way!(),
        "'; set local idle_in_transaction_session_timeout = '2min'"
    ))
    .await
}

/// Begins the transaction of a request in an application's own session, for [`claim_request`](super::claim_request). That statement waits for locks
/// only for a moment, also for one of the whole table; then the transaction is the handler's, whose wait is as its session has it.
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) async fn begin_request(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    pool.begin_with(BEGIN_REQUEST).await
}

/// The same anew, in the session of a transaction that has ended, or is ended hereby with all that was written in it.
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) async fn begin_request_anew(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("rollback").await?;
    connection.execute(BEGIN_REQUEST).await.map(drop)
}

/// Begins a transaction of ours in an application's own session. Whoever left that one inside a transaction would have ours in his, and
/// committed with it, if at all: only a transaction in which nothing was said takes another isolation level. Such a session is not to be used
/// again, and neither is another one that can't begin. A program that stands still holds the transaction's locks for two seconds: then the server
/// ends the session, and what was said in it is said again.
pub(crate) async fn begin_anew(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let begun = connection.begin_with(
        "begin isolation level repeatable read;
        set transaction isolation level read committed;
        set local search_path = pg_catalog, pg_temp;
        set local idle_in_transaction_session_timeout = '2s'",
    );
    begun.await.map_err(|error| match error.as_database_error() {
        Some(_) => {
            let text = format!("a session of the pool can't begin a transaction: {}", describe(&error));
            sqlx::Error::Io(std::io::Error::other(text))
        }
        None => error,
    })
}

/// A role that a handler has set ends here: neither what follows has it, nor the session behind COMMIT.
///
/// # Errors
/// Where the handler has ended the transaction (its role is not remembered any more), and where it has gone on after an error that aborted it
/// ([`is_aborted`](super::is_aborted)): COMMIT would say that all is well.
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) async fn leave_request(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select pg_catalog.set_config('role', pg_catalog.current_setting('oncely.handler_role'), false) as role"
    )
    .fetch_one(connection)
    .await
    .map(drop)
}

/// How long a handler waits for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// As long as its session may.
    Session,
    /// A moment: it holds the locks of a batch, and other batches run beside it.
    Batch,
    /// Half a second: its batch is the consumer's only one, or it is one message of a batch, behind which others wait.
    Turn,
}

impl LockWait {
    /// The limit, where it is not the session's.
    pub(crate) fn limit(self) -> Option<Duration> {
        match self {
            Self::Session => None,
            Self::Batch => Some(Duration::from_millis(100)),
            Self::Turn => Some(Duration::from_millis(500)),
        }
    }
}

/// What follows in the transaction is the handler's: its statements, or at COMMIT what it deferred.
pub(crate) async fn enter_handler(connection: &mut PgConnection, wait: LockWait) -> Result<(), sqlx::Error> {
    let entered = connection.execute(match wait {
        LockWait::Session => {
            "set local search_path to default; set local lock_timeout to default; set local plan_cache_mode to default"
        },
        LockWait::Batch => {
            "set local search_path to default; set local lock_timeout = '100ms'; set local plan_cache_mode to default"
        },
        LockWait::Turn => {
            "set local search_path to default; set local lock_timeout = '500ms'; set local plan_cache_mode to default"
        },
    });
    entered.await.map(drop)
}

/// Lets a session claim as one that has done so for long (`oncely.asking_since`).
pub(crate) async fn vouch(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set oncely.asking_since = '0'").await.map(drop)
}

/// A session of a lane, before anything else runs in it.
pub(super) async fn pin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set search_path = pg_catalog, pg_temp").await.map(drop)
}

/// To the handlers' path, in which it rests.
pub(super) async fn unpin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("reset search_path").await.map(drop)
}
