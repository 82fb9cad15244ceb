//! The collection of ordering keys that nobody uses any more.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

/// Deletes one bounded batch of keys that were not used since `before` and have no event left, in a transaction of its own.
/// Begins behind `after` (tenant and key); returns where it ended, `None` at the end, and how many went.
pub(crate) async fn collect_ordering_keys(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
    after: (String, String),
    limit: i64,
) -> Result<(Option<(String, String)>, u64), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let idle = sqlx::query!(
        "select tenant, ordering_key from oncely.ordering_keys
         where used_at < $1 and (tenant, ordering_key) > ($2::text, $3::text)
         order by tenant, ordering_key
         limit $4
         for update skip locked",
        before,
        after.0,
        after.1,
        limit
    )
    .fetch_all(&mut *transaction)
    .await?;
    let last = idle.last().map(|key| (key.tenant.clone(), key.ordering_key.clone()));
    let (tenants, keys): (Vec<String>, Vec<String>) =
        idle.into_iter().map(|key| (key.tenant, key.ordering_key)).unzip();
    // A statement of its own, whose snapshot is taken under the locks: whoever emitted under one of these keys held its row until
    // the commit, so that event is seen here. In one statement it would not be, and numbers would begin anew behind it.
    let done = sqlx::query!(
        "delete from oncely.ordering_keys as k
         using unnest($1::text[], $2::text[]) as i (tenant, ordering_key)
         where k.tenant = i.tenant and k.ordering_key = i.ordering_key
           and not exists (select from oncely.events as e where e.tenant = k.tenant and e.ordering_key = k.ordering_key)",
        &tenants,
        &keys
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok((last, done.rows_affected()))
}
