//! Counts keys with an unknown outcome that wait for an operator to settle them.

use sqlx::PgConnection;

/// Maximum number of a consumer's keys examined, those last given up.
const MAX_EXAMINED_KEYS: i64 = 1_000;

/// Counts a consumer's keys that were given up as `outcome_unknown` and wait for an operator, among the last thousand that were given up.
pub async fn count_unknown_keys(connection: &mut PgConnection, consumer: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"select count(*) as "count!"
         from (
             select i.reason
             from oncely.idempotency_keys as i
             where i.status = 'FAILED' and i.consumer = $1
             order by i.completed_at desc
             limit $2
         ) as f
         where f.reason = 'outcome_unknown'"#,
        consumer,
        MAX_EXAMINED_KEYS
    )
    .fetch_one(connection)
    .await
}
