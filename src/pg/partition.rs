//! The weekly partitions of the audit table.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::consumers::duration;

/// Makes the partition of the week that a time belongs to, in a transaction of its own; `None` where it is there.
pub(crate) async fn make(
    connection: &mut PgConnection,
    day: DateTime<Utc>,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.make_audit_partition($1)", day).fetch_one(connection).await
}

/// Drops the oldest partition that lies wholly before `before`, in a transaction of its own; `None` where there is none left.
pub(crate) async fn drop_oldest(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.drop_audit_partition($1)", before).fetch_one(connection).await
}

/// How long the database keeps the trail at least.
pub(crate) async fn audit_floor(connection: &mut PgConnection) -> Result<Duration, sqlx::Error> {
    let micros = sqlx::query_scalar!(
        r#"select (extract(epoch from audit_floor) * 1000000)::bigint as "floor!" from oncely.cell"#
    )
    .fetch_one(connection)
    .await?;
    Ok(duration(micros))
}
