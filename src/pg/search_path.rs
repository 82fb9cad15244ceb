//! Where names are looked up. Where types don't fit exactly, an object of any schema on the path may win over pg_catalog's, and
//! some databases let everybody create in one: our statements see pg_catalog alone, handlers what their role and database say.
//!
//! Sessions that call no handlers have it from their start ([`super::PgSettings::connect`]). Those of lanes rest in the handlers' path,
//! so that a transaction of one statement needs no other; each of our transactions begins with our own ([`begin`]), what calls a
//! handler leaves it for so long, and what runs outside of transactions says of each name where it is.

use sqlx::{Connection as _, Executor as _, PgConnection, Postgres, Transaction};

/// Ours. `pg_temp` last: else it would come first.
pub(super) const PINNED: &str = "pg_catalog, pg_temp";

/// Begins a transaction of ours, in one round trip.
pub(crate) async fn begin(connection: &mut PgConnection) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    connection.begin_with("begin; set local search_path = pg_catalog, pg_temp").await
}

/// [`begin`] for claims: a key that somebody holds is left for later, so they wait only for a moment, until [`enter_handler`].
pub(crate) async fn begin_to_claim(
    connection: &mut PgConnection,
    alone: bool,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    connection
        .begin_with(match alone {
            // It has met a held key before, most likely this one.
            true => "begin; set local search_path = pg_catalog, pg_temp; set local lock_timeout = '50ms'",
            false => "begin; set local search_path = pg_catalog, pg_temp; set local lock_timeout = '500ms'",
        })
        .await
}

/// How long a handler waits for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// As long as its session may.
    Session,
    /// A moment: its batch has met another transaction's locks.
    Moment,
}

/// What follows in the transaction is the handler's: its statements, or at COMMIT what it deferred.
pub(crate) async fn enter_handler(connection: &mut PgConnection, wait: LockWait) -> Result<(), sqlx::Error> {
    let entered = connection.execute(match wait {
        LockWait::Session => {
            "set local search_path to default; set local lock_timeout to default; set local plan_cache_mode to default"
        },
        LockWait::Moment => {
            "set local search_path to default; set local lock_timeout = '500ms'; set local plan_cache_mode to default"
        },
    });
    entered.await.map(drop)
}

/// A session of a lane, before anything else runs in it.
pub(super) async fn pin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set search_path = pg_catalog, pg_temp").await.map(drop)
}

/// To the handlers' path, in which it rests.
pub(super) async fn unpin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("reset search_path").await.map(drop)
}
