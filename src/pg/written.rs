//! What a transaction that is taken back has written so far, for people.

use chrono::{DateTime, Utc};
use sqlx::{Executor as _, PgConnection};
use uuid::Uuid;

use super::search_path::{LockWait, enter_handler};

/// Rows that a transaction has changed in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableChanges {
    pub(crate) id: i64,
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) inserted: i64,
    pub(crate) updated: i64,
    pub(crate) deleted: i64,
}

/// The session's counts of changed rows, by table; subtransactions that were rolled back count as well. They may begin before the
/// transaction at hand (PostgreSQL reports them now and then), so only a difference tells. Empty where `track_counts` is off.
pub(crate) async fn table_changes(connection: &mut PgConnection) -> Result<Vec<TableChanges>, sqlx::Error> {
    sqlx::query_file_as!(TableChanges, "src/pg/table_changes.sql").fetch_all(connection).await
}

/// An event without what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmittedEvent {
    pub(crate) id: Uuid,
    pub(crate) tenant: String,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) ordering_key: Option<String>,
    pub(crate) kind: Option<String>,
}

/// Events written since then, as far as the session sees them: its own, and what others have committed. `None` where its user may not
/// read them.
pub(crate) async fn events_since(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> Result<Option<Vec<EmittedEvent>>, sqlx::Error> {
    let allowed = sqlx::query_scalar!(
        r#"select pg_catalog.has_column_privilege('oncely.events', 'routing_key', 'select') as "allowed!""#
    );
    if !allowed.fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    let events = sqlx::query_file_as!(EmittedEvent, "src/pg/events_since.sql", since);
    events.fetch_all(connection).await.map(Some)
}

/// Begins a transaction that nobody commits.
pub(crate) async fn begin_to_take_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("begin; set local search_path = pg_catalog, pg_temp").await.map(drop)
}

/// What follows can be taken back by itself.
pub(crate) async fn set_savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("savepoint oncely_rehearsal").await.map(drop)
}

/// It stays, as long as the transaction does.
pub(crate) async fn keep_from_savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("release savepoint oncely_rehearsal").await.map(drop)
}

/// Takes it back, settings included.
pub(crate) async fn undo_to_savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let undo = "rollback to savepoint oncely_rehearsal; release savepoint oncely_rehearsal";
    connection.execute(undo).await.map(drop)
}

/// Runs what the handler has deferred to COMMIT, as COMMIT does: along the handler's search_path.
pub(crate) async fn run_deferred(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    enter_handler(connection, LockWait::Session).await?;
    connection.execute("set constraints all immediate").await.map(drop)
}

/// After [`run_deferred`] in a transaction that goes on: our own search_path, and constraints are deferred as they are at the beginning
/// of one.
pub(crate) async fn defer_again(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("set local search_path = pg_catalog, pg_temp").await?;
    connection.execute(include_str!("defer_again.sql")).await.map(drop)
}
