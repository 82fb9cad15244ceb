//! The collection of unused ordering keys.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::unit::Unit;

/// Deletes one bounded batch of a unit's keys not used since `before` and without events, in a transaction of its own. Begins after `after` (tenant
/// and key); returns the position where it ended, `None` at the end, and the number deleted.
pub async fn collect_ordering_keys(
    connection: &mut PgConnection,
    unit: &Unit,
    before: DateTime<Utc>,
    after: (String, String),
    limit: i64,
) -> sqlx::Result<(Option<(String, String)>, u64)> {
    let row = sqlx::query!(
        r#"select last_tenant, last_key, gone as "gone!" from oncely.collect_ordering_keys($1, $2, $3, $4, $5)"#,
        before,
        after.0,
        after.1,
        limit,
        unit.name()
    )
    .fetch_one(connection)
    .await?;
    Ok((row.last_tenant.zip(row.last_key), u64::try_from(row.gone).unwrap_or(0)))
}
