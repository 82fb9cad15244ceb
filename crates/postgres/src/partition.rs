//! The weekly partitions of the audit table.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::consumers::to_duration;

/// Creates the partition of the week that a time belongs to, in a transaction of its own, and returns its name; `None` if it exists.
pub async fn create(connection: &mut PgConnection, day: DateTime<Utc>) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("select oncely.make_audit_partition($1)", day).fetch_one(connection).await
}

/// Drops the oldest partition that ends before `before`, in a transaction of its own, and returns its name; `None` if none is left.
pub async fn drop_oldest(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("select oncely.drop_audit_partition($1)", before).fetch_one(connection).await
}

/// Reads the minimum retention of the trail that the database enforces.
pub async fn read_audit_floor(connection: &mut PgConnection) -> sqlx::Result<Duration> {
    let micros = sqlx::query_scalar!(
        r#"select (extract(epoch from audit_floor) * 1000000)::bigint as "floor!" from oncely.cell"#
    )
    .fetch_one(connection)
    .await?;
    Ok(to_duration(micros))
}
