//! The state of a Citus cluster, as the connected node sees it.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};

use super::event_relay::read_database_time;

/// State of a Citus cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CitusState {
    /// Version of the extension.
    pub version: String,
    /// Tables of the schema that are not spread.
    pub unspread: Vec<String>,
    /// Tables with a tenant, of any schema, that are not colocated with the keys.
    pub apart: Vec<String>,
    /// Number of shards of the schema's tables at this node.
    pub shards: i64,
    /// Those with other policies than their table.
    pub unprotected: Vec<String>,
    /// Number of transactions of two phases that are prepared here, and older than the limit.
    pub old_prepared: i64,
}

/// Reads the state of the cluster; `None` without the extension. Counts prepared transactions that are older than `max_prepared_age`.
///
/// # Errors
/// If a statement fails.
pub async fn read_citus_state(
    connection: &mut PgConnection,
    max_prepared_age: Duration,
) -> sqlx::Result<Option<CitusState>> {
    let has_citus: bool =
        sqlx::query_scalar("select exists (select from pg_extension where extname = 'citus')")
            .fetch_one(&mut *connection)
            .await?;
    if !has_citus {
        return Ok(None);
    }
    // Else Citus hides shards from pg_class.
    sqlx::query("select set_config('citus.override_table_visibility', 'off', false)")
        .fetch_one(&mut *connection)
        .await?;
    // No macro: PostgreSQL has none of its tables.
    let before = read_database_time(connection).await? - max_prepared_age;
    let row = sqlx::query(include_str!("citus_state.sql")).bind(before).fetch_one(connection).await?;
    Ok(Some(CitusState {
        version: row.try_get(0)?,
        unspread: row.try_get(1)?,
        apart: row.try_get(2)?,
        shards: row.try_get(3)?,
        unprotected: row.try_get(4)?,
        old_prepared: row.try_get(5)?,
    }))
}
