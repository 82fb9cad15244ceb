//! A handler that waits until the test lets it go on.

use sqlx::Connection as _;

use super::World;

/// Holds the lock on which the handler waits, so that the test decides when its work goes on.
pub(crate) struct Gate(sqlx::PgConnection);

impl Gate {
    pub(crate) async fn shut(world: &World) -> Self {
        let mut connection = world.database.connect().await.unwrap();
        sqlx::query("select pg_advisory_lock(4711)").execute(&mut connection).await.unwrap();
        Self(connection)
    }

    /// Lets the one that waits go on, and shuts again behind it.
    pub(crate) async fn pass_one(&mut self) {
        sqlx::query("select pg_advisory_unlock(4711)").execute(&mut self.0).await.unwrap();
        sqlx::query("select pg_advisory_lock(4711)").execute(&mut self.0).await.unwrap();
    }

    pub(crate) async fn open(self) {
        self.0.close().await.unwrap();
    }
}

/// A handler is inside its transaction.
pub(crate) const WAITING: &str =
    "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 4711
    and database = (select oid from pg_database where datname = current_database())";
