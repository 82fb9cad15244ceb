//! Keys of which nobody knows whether they took effect, until somebody settles them.

use sqlx::PgConnection;

/// So many of a consumer's keys that were given up last are looked at.
const LAST: i64 = 1_000;

/// How many of a consumer's keys were given up as `outcome_unknown` and wait for somebody, of the last thousand that were given up.
pub(crate) async fn unknown_keys(connection: &mut PgConnection, consumer: &str) -> Result<i64, sqlx::Error> {
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
        LAST
    )
    .fetch_one(connection)
    .await
}
