//! Deletion of keys by age.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};

use super::consumers::RetentionRule;
use super::unit::{Unit, fetch_from_unit};
use oncely_core::decide::KeyStatus;

/// The result of a collection (or of a dry run).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectionReport {
    /// The results for each consumer that the database knows.
    pub consumers: Vec<ConsumerCollection>,
    /// Number of keys deleted by their own expiry: those of `oncely.claim`, of any consumer.
    pub expired: u64,
    /// The steps that failed, with their errors.
    pub failures: Vec<String>,
}

/// The result of a collection for one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerCollection {
    /// The consumer.
    pub consumer: String,
    /// Keys older than this are deleted, except those of tenants with a retention of their own.
    pub before: DateTime<Utc>,
    /// Number of deleted keys, by state: completed, failed, in progress.
    pub deleted: [u64; 3],
}

/// One batch of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectedBatch {
    /// Number of keys examined; fewer than the limit means that none is left.
    pub found: u64,
    /// Number of those that were deleted. Not deleted are keys that have just changed, are held or still protected, and those of tenants
    /// with a retention of their own.
    pub deleted: u64,
    /// The time of the last key; the next batch begins there.
    pub last: Option<DateTime<Utc>>,
}

/// Selects a file's statement for one batch. Each state has its own, since each walks the partial index of its state; completed keys have a
/// second one, because locking each row first costs a third more.
macro_rules! fetch_batch {
    ($file:literal, $connection:expr, $unit:expr, $rule:expr, $limit:expr, $from:expr $(, $at:expr)?) => {
        fetch_from_unit!(
            CollectionRow,
            $file,
            $unit,
            $connection,
            &$rule.consumer,
            $rule.before,
            $limit,
            $from,
            &$rule.tenants,
            $rule.is_own
            $(, $at)?,
            $unit.name()
        )
    };
}

/// Deletes one bounded batch of keys past a retention that reached `status` before it, oldest first, beginning at `from`, where the
/// previous batch ended. Each call is a transaction of its own.
pub async fn collect_batch(
    connection: &mut PgConnection,
    unit: &Unit,
    status: KeyStatus,
    rule: &RetentionRule,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> sqlx::Result<CollectedBatch> {
    if status == KeyStatus::Completed
        && let Some(batch) = collect_unheld(connection, unit, rule, limit, from).await?
    {
        return Ok(batch);
    }
    let mut transaction = begin_collection(connection).await?;
    let rows = match status {
        KeyStatus::Completed => {
            fetch_batch!("src/collect_completed_skip_locked.sql", &mut *transaction, unit, rule, limit, from)
        }
        KeyStatus::Failed => {
            fetch_batch!("src/collect_failed.sql", &mut *transaction, unit, rule, limit, from, rule.at)
        }
        KeyStatus::InProgress => {
            fetch_batch!("src/collect_in_progress.sql", &mut *transaction, unit, rule, limit, from, rule.at)
        }
    }?;
    transaction.commit().await?;
    Ok(to_batch(rows))
}

/// Begins a transaction that deletes keys, but none of a letter that is being requeued. Until it ends no requeue is decided, so the letters
/// that its statement sees stay valid; see [`super::begin_requeue`].
pub async fn begin_collection(connection: &mut PgConnection) -> sqlx::Result<Transaction<'_, Postgres>> {
    let mut transaction = connection.begin().await?;
    sqlx::query!("select oncely.take_lock('requeue', false)").fetch_one(&mut *transaction).await?;
    Ok(transaction)
}

/// Maximum wait of a collection for the holder of a key. Shorter than PostgreSQL's `deadlock_timeout` (a second): if a holder waits for a
/// row that the collection has deleted, the collection gives way.
const LOCK_WAIT: &str = "100ms";

/// Deletes a batch of completed keys without locking each first. `None` if one of them is held: nothing was deleted.
async fn collect_unheld(
    connection: &mut PgConnection,
    unit: &Unit,
    rule: &RetentionRule,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> sqlx::Result<Option<CollectedBatch>> {
    let mut transaction = begin_collection(connection).await?;
    sqlx::query!("select set_config('lock_timeout', $1, true)", LOCK_WAIT)
        .fetch_one(&mut *transaction)
        .await?;
    let rows = fetch_batch!("src/collect_completed.sql", &mut *transaction, unit, rule, limit, from);
    match rows {
        Ok(rows) => {
            transaction.commit().await?;
            Ok(Some(to_batch(rows)))
        }
        Err(error) if is_held(&error) => {
            transaction.rollback().await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether a statement gave way to the holder of a row (lock_not_available, deadlock_detected).
fn is_held(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

/// Deletes one bounded batch of keys with an expiry of their own before `now`, like [`collect_batch`].
pub async fn collect_expired(
    connection: &mut PgConnection,
    unit: &Unit,
    now: DateTime<Utc>,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> sqlx::Result<CollectedBatch> {
    let mut transaction = begin_collection(connection).await?;
    let rows = fetch_from_unit!(
        CollectionRow,
        "src/collect_expired.sql",
        unit,
        &mut *transaction,
        now,
        limit,
        from,
        unit.name()
    )?;
    transaction.commit().await?;
    Ok(to_batch(rows))
}

#[derive(sqlx::FromRow)]
struct CollectionRow {
    found: i64,
    deleted: i64,
    last: Option<DateTime<Utc>>,
}

/// Converts the statement's only row.
fn to_batch(rows: Vec<CollectionRow>) -> CollectedBatch {
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    rows.into_iter().next().map_or_else(CollectedBatch::default, |row| CollectedBatch {
        found: count(row.found),
        deleted: count(row.deleted),
        last: row.last,
    })
}

/// Counts the keys that [`collect_expired`] would delete.
pub async fn count_self_expired(connection: &mut PgConnection, now: DateTime<Utc>) -> sqlx::Result<u64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from oncely.idempotency_keys as i
        where expires_at < $1
          and oncely.may_be_forgotten(
              i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
              i.fencing_token, $1, oncely.forgotten_before(
                  $1, i.expires_at - i.created_at,
                  coalesce((select c.paused from oncely.consumers as c where c.consumer = i.consumer), '{}')
              ), (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q)
          )"#,
        now
    )
    .fetch_one(connection)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Counts the keys that a collection would delete: completed, failed, in progress.
pub async fn count_expired(connection: &mut PgConnection, rule: &RetentionRule) -> sqlx::Result<[u64; 3]> {
    let row = sqlx::query!(
        r#"select
            count(*) filter (where status = 'COMPLETED') as "completed!",
            count(*) filter (where status = 'FAILED') as "failed!",
            count(*) filter (where status = 'IN_PROGRESS') as "in_progress!"
        from oncely.idempotency_keys as i
        where consumer = $1 and expires_at is null and (completed_at < $2 or (status = 'IN_PROGRESS' and created_at < $2))
          and (tenant = any ($3)) = $4
          and oncely.may_be_forgotten(
              i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
              i.fencing_token, $5, $2, (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q)
          )"#,
        rule.consumer,
        rule.before,
        &rule.tenants,
        rule.is_own,
        rule.at
    )
    .fetch_one(connection)
    .await?;
    Ok([row.completed, row.failed, row.in_progress].map(|count| u64::try_from(count).unwrap_or(0)))
}

/// Takes the collection lock if it is free. It belongs to the session; two collections at once are correct, but wasteful.
pub async fn try_lock(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select oncely.try_session_lock('collection', false) as "locked!""#)
        .fetch_one(connection)
        .await
}

/// Releases the collection lock.
pub async fn unlock(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select oncely.release_session_lock('collection')").fetch_one(connection).await?;
    Ok(())
}
