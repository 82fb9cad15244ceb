//! SQL of planted bugs.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Collects without a look at the mirror queue.
pub(crate) async fn collect_pending(
    connection: &mut PgConnection,
    consumer: &str,
    before: DateTime<Utc>,
) -> Result<u64, sqlx::Error> {
    // Not checked at compile time: the snapshot of queries is that of the build without the feature.
    let done = sqlx::query(
        "delete from oncely.idempotency_keys where status = 'COMPLETED' and consumer = $1 and completed_at < $2",
    )
    .bind(consumer)
    .bind(before)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
