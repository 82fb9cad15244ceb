//! Reads the writes of a transaction that will be rolled back, for operators.

use chrono::{DateTime, Utc};
use sqlx::{Executor as _, PgConnection};
use uuid::Uuid;

use super::search_path::{LockWait, enter_handler};

/// Rows that a transaction has changed in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChanges {
    pub id: i64,
    pub schema: String,
    pub table: String,
    pub inserted: i64,
    pub updated: i64,
    pub deleted: i64,
}

/// Reads the session's counts of changed rows, by table; subtransactions that were rolled back count as well. Counts may begin before the
/// current transaction (PostgreSQL reports them at intervals), so only differences are meaningful. Empty if `track_counts` is off.
pub async fn read_table_changes(connection: &mut PgConnection) -> sqlx::Result<Vec<TableChanges>> {
    sqlx::query_file_as!(TableChanges, "src/table_changes.sql").fetch_all(connection).await
}

/// An event without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedEvent {
    pub id: Uuid,
    pub tenant: String,
    pub exchange: String,
    pub routing_key: String,
    pub ordering_key: Option<String>,
    pub kind: Option<String>,
}

/// Lists events written since a time, as visible to the session: its own, and those committed by others. `None` if its user may not read
/// them.
pub async fn list_events_since(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> sqlx::Result<Option<Vec<EmittedEvent>>> {
    let allowed = sqlx::query_scalar!(
        r#"select pg_catalog.has_column_privilege('oncely.events', 'routing_key', 'select') as "allowed!""#
    );
    if !allowed.fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    let events = sqlx::query_file_as!(EmittedEvent, "src/events_since.sql", since);
    events.fetch_all(connection).await.map(Some)
}

/// Begins a transaction that is never committed.
pub async fn begin_rehearsal(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("begin; set local search_path = pg_catalog, pg_temp").await.map(drop)
}

/// Sets a savepoint, so that the following statements can be undone separately.
pub async fn set_savepoint(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("savepoint oncely_rehearsal").await.map(drop)
}

/// Keeps the changes since the savepoint, as part of the transaction.
pub async fn keep_from_savepoint(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("release savepoint oncely_rehearsal").await.map(drop)
}

/// Undoes the changes since the savepoint, settings included.
pub async fn undo_to_savepoint(connection: &mut PgConnection) -> sqlx::Result<()> {
    let undo = "rollback to savepoint oncely_rehearsal; release savepoint oncely_rehearsal";
    connection.execute(undo).await.map(drop)
}

/// Runs the handler's work deferred to COMMIT, in the same way as COMMIT: with the handler's search_path.
pub async fn run_deferred(connection: &mut PgConnection) -> sqlx::Result<()> {
    enter_handler(connection, LockWait::Session).await?;
    connection.execute("set constraints all immediate").await.map(drop)
}

/// Restores the transaction after [`run_deferred`]: Oncely's own search_path, and constraints deferred as at its start.
pub async fn defer_again(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("set local search_path = pg_catalog, pg_temp").await?;
    connection.execute(include_str!("defer_again.sql")).await.map(drop)
}
