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

/// What follows in the transaction is the handler's: its statements, or at COMMIT what it deferred.
pub(crate) async fn enter_handler(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set local search_path to default").await.map(drop)
}

/// A session of a lane, before anything else runs in it.
pub(super) async fn pin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set search_path = pg_catalog, pg_temp").await.map(drop)
}

/// To the handlers' path, in which it rests.
pub(super) async fn unpin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("reset search_path").await.map(drop)
}
