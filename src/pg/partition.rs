//! The weekly partitions of the audit table.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Makes the partitions that touch the span and do not exist; returns their names.
pub(crate) async fn make_ahead(
    connection: &mut PgConnection,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.make_audit_partitions($1, $2) as "name!""#, from, until)
        .fetch_all(connection)
        .await
}

/// Drops the partitions that lie wholly before `before`; returns their names.
pub(crate) async fn drop_before(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.drop_audit_partitions($1) as "name!""#, before)
        .fetch_all(connection)
        .await
}
