//! The search_path of sessions. If types don't match exactly, an object of any schema on the path may win over pg_catalog's, and some
//! databases let all users create objects in one. So Oncely's statements see pg_catalog alone, and handlers the path of their role and
//! database.
//!
//! Sessions without handlers have Oncely's path from their start ([`super::PgSettings::connect`]). Those of lanes keep the handlers' path,
//! so that a transaction of one statement needs no other; each of Oncely's transactions begins by setting Oncely's path ([`begin`]), calls
//! of handlers leave it temporarily, and statements outside of transactions qualify each name.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection, PgPool, Postgres, Transaction};

use super::error::describe;

/// Oncely's search_path. `pg_temp` is last: otherwise it would come first.
pub(super) const PINNED_PATH: &str = "pg_catalog, pg_temp";

/// Maximum wait of a claim for another transaction: a held key is claimed again later. The claiming functions of the SQL protocol wait as
/// long (a test reads the catalogue).
macro_rules! give_way {
    () => {
        "100ms"
    };
}

/// Each statement that follows qualifies its names: the search_path is the handler's.
const BEGIN_REQUEST: &str = "begin isolation level read committed";

/// Begins a transaction with Oncely's search_path, in one round trip.
pub async fn begin(connection: &mut PgConnection) -> sqlx::Result<Transaction<'_, Postgres>> {
    connection.begin_with("begin; set local search_path = pg_catalog, pg_temp").await
}

/// Begins a transaction like [`begin`], for claims: held keys are left for later, so lock waits are limited to 100 ms until
/// [`enter_handler`].
pub async fn begin_to_claim(connection: &mut PgConnection) -> sqlx::Result<Transaction<'_, Postgres>> {
    connection
        .begin_with(concat!(
            "begin; set local search_path = pg_catalog, pg_temp; set local lock_timeout = '",
            give_way!(),
            "'"
        ))
        .await
}

/// Begins a transaction with Oncely's search_path in an application's session. Its lock waits are limited to 100 ms: held keys are claimed
/// again later.
pub async fn begin_on_pool(pool: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
    pool.begin_with(concat!(
        "begin isolation level read committed;
        set local search_path = pg_catalog, pg_temp; set local lock_timeout = '",
        give_way!(),
        "'; set local idle_in_transaction_session_timeout = '2min'"
    ))
    .await
}

/// Begins the transaction of a request in an application's session, for [`claim_request`](super::claim_request).
pub async fn begin_request(pool: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
    pool.begin_with(BEGIN_REQUEST).await
}

/// Begins a request's transaction again in the same session, after the previous transaction has ended; an open one is rolled back.
pub async fn begin_request_anew(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("rollback").await?;
    connection.execute(BEGIN_REQUEST).await.map(drop)
}

/// Begins a transaction with Oncely's search_path in an application's session. If the session was returned inside a transaction, Oncely's
/// would be part of that and committed with it, if at all: only a transaction without statements accepts another isolation level, so
/// beginning fails. Such a session must not be used again, nor one that can't begin. A program that stalls holds the transaction's locks
/// for two seconds: then the server ends the session, and its statements are retried.
pub async fn begin_anew(connection: &mut PgConnection) -> sqlx::Result<Transaction<'_, Postgres>> {
    let transaction = connection.begin_with(
        "begin isolation level repeatable read;
        set transaction isolation level read committed;
        set local search_path = pg_catalog, pg_temp;
        set local idle_in_transaction_session_timeout = '2s'",
    );
    transaction.await.map_err(|error| match error.as_database_error() {
        Some(_) => {
            let text = format!("a session of the pool can't begin a transaction: {}", describe(&error));
            sqlx::Error::Io(std::io::Error::other(text))
        }
        None => error,
    })
}

/// Restores the role before a handler's `set role`, for the following statements and the session after COMMIT.
///
/// # Errors
/// If the handler has ended the transaction (its role is no longer stored), or continued after an error that aborted it
/// ([`is_aborted`](super::is_aborted)): COMMIT would report success.
pub async fn leave_request(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        "select pg_catalog.set_config('role', pg_catalog.current_setting('oncely.handler_role'), false) as role"
    )
    .fetch_one(connection)
    .await
    .map(drop)
}

/// The lock wait of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// That of its session.
    Session,
    /// A moment: it holds the locks of a batch, and other batches run beside it.
    Batch,
    /// Half a second: its batch is the consumer's only one, or it is one message of a batch, behind which others wait.
    Turn,
}

impl LockWait {
    /// Returns the limit of a lock wait; `None` for the session's own.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::Session => None,
            Self::Batch => Some(Duration::from_millis(100)),
            Self::Turn => Some(Duration::from_millis(500)),
        }
    }
}

/// Sets the handler's search_path and limits for the following statements: the handler's own, or those deferred to COMMIT.
pub async fn enter_handler(connection: &mut PgConnection, wait: LockWait) -> sqlx::Result<()> {
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

/// Makes the database treat a session as one that has claimed for a long time (`oncely.asking_since`).
pub async fn backdate_session(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("set oncely.asking_since = '0'").await.map(drop)
}

/// Sets Oncely's search_path in a session, before any other statement runs in it.
pub(super) async fn pin_search_path(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("set search_path = pg_catalog, pg_temp").await.map(drop)
}

/// Restores the search_path of handlers in an idle session.
pub(super) async fn unpin_search_path(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("reset search_path").await.map(drop)
}
