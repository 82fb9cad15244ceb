//! A handler that waits until the test lets it go on.

use sqlx::{Connection as _, PgConnection};

use super::World;

const LOCK: &str = "select pg_advisory_lock(4711)";

/// Holds the lock on which the handler waits, so that the test decides when its work goes on.
pub(crate) struct Gate {
    holder: PgConnection,
    /// The session that holds the lock next.
    next: PgConnection,
}

impl Gate {
    pub(crate) async fn shut(world: &World) -> Self {
        let mut holder = world.database.connect().await.unwrap();
        sqlx::query(LOCK).execute(&mut holder).await.unwrap();
        Self { holder, next: world.database.connect().await.unwrap() }
    }

    /// Lets those handlers go on that wait, and shuts again behind them: PostgreSQL grants the lock in the order of the requests, and the
    /// next holder asks before the present one unlocks. A handler that comes later waits, however quick it is.
    pub(crate) async fn pass(&mut self, world: &mut World) {
        let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut self.next).await.unwrap();
        let shut = sqlx::query(LOCK).execute(&mut self.next);
        let open = async {
            let asks = format!("select count(*) from pg_locks where pid = {pid} and not granted");
            world.wait_for(&asks, 1).await;
            sqlx::query("select pg_advisory_unlock(4711)").execute(&mut self.holder).await.unwrap();
        };
        tokio::join!(async { shut.await.unwrap() }, open);
        std::mem::swap(&mut self.holder, &mut self.next);
    }

    pub(crate) async fn open(self) {
        self.holder.close().await.unwrap();
    }
}

/// A handler is inside its transaction.
pub(crate) const WAITING: &str =
    "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 4711
    and database = (select oid from pg_database where datname = current_database())";
