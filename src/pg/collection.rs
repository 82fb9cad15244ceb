//! Deletion by age.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};

use super::consumers::Memory;
use crate::decide::KeyStatus;

/// What a collection did (or, as a dry run, would do).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectionReport {
    /// Of each consumer that the database knows.
    pub consumers: Vec<ConsumerCollection>,
    /// Keys deleted that said themselves when they may go: those of `oncely.claim`, of whatever consumer.
    pub expired: u64,
}

/// What a collection did for one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerCollection {
    /// The consumer.
    pub consumer: String,
    /// Keys older than this go, but for those of tenants with a retention of their own.
    pub before: DateTime<Utc>,
    /// Keys deleted, by their state: completed, failed, in progress.
    pub deleted: [u64; 3],
}

/// One batch of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Keys looked at; fewer than the limit means that no more are left.
    pub(crate) found: u64,
    /// Of them, those that were deleted: one that changed in this very moment stays, one that somebody holds, one that is still
    /// protected, and one of a tenant that has a retention of its own.
    pub(crate) deleted: u64,
    /// The time of the last one; the next batch begins there.
    pub(crate) last: Option<DateTime<Utc>>,
}

/// The statement of a file for one batch. Each state has its own, since each walks the partial index of its state, and completed keys a second
/// one: to lock each row first costs a third more.
macro_rules! batch {
    ($file:literal, $memory:expr, $limit:expr, $from:expr) => {
        sqlx::query_file_as!(
            Batch,
            $file,
            $memory.consumer,
            $memory.before,
            $limit,
            $from,
            &$memory.tenants,
            $memory.is_own,
            $memory.at
        )
    };
}

/// Deletes one bounded batch of the keys that are past a memory and reached `status` before it, oldest first, beginning at `from`, where
/// the batch before ended. Each call is a transaction of its own.
pub(crate) async fn collect_batch(
    connection: &mut PgConnection,
    status: KeyStatus,
    memory: &Memory,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> Result<Collected, sqlx::Error> {
    if status == KeyStatus::Completed
        && let Some(batch) = collect_unheld(connection, memory, limit, from).await?
    {
        return Ok(batch.into());
    }
    let mut transaction = past_requeues(connection).await?;
    let batch = match status {
        KeyStatus::Completed => {
            batch!("src/pg/collect_completed_skip_locked.sql", memory, limit, from)
                .fetch_one(&mut *transaction)
                .await?
        }
        KeyStatus::Failed => {
            batch!("src/pg/collect_failed.sql", memory, limit, from).fetch_one(&mut *transaction).await?
        }
        KeyStatus::InProgress => {
            batch!("src/pg/collect_in_progress.sql", memory, limit, from).fetch_one(&mut *transaction).await?
        }
    };
    transaction.commit().await?;
    Ok(batch.into())
}

/// Begins a transaction that deletes keys: none of a letter that is being requeued. While it lasts no requeue is decided, so that what
/// its statement sees of the letters stays true; see [`super::begin_requeue`].
pub(crate) async fn past_requeues(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query!("select oncely.take_lock('requeue', false)").fetch_one(&mut *transaction).await?;
    Ok(transaction)
}

/// How long a collection waits for whoever holds a key. Shorter than PostgreSQL's `deadlock_timeout` (a second): where a holder waits
/// for a row that the collection has deleted, the collection gives way.
const LOCK_WAIT: &str = "100ms";

/// A batch of completed keys, without locking each first. `None` where somebody holds one: nothing was deleted.
async fn collect_unheld(
    connection: &mut PgConnection,
    memory: &Memory,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> Result<Option<Batch>, sqlx::Error> {
    let mut transaction = past_requeues(connection).await?;
    sqlx::query!("select set_config('lock_timeout', $1, true)", LOCK_WAIT)
        .fetch_one(&mut *transaction)
        .await?;
    let batch = batch!("src/pg/collect_completed.sql", memory, limit, from);
    match batch.fetch_one(&mut *transaction).await {
        Ok(batch) => {
            transaction.commit().await?;
            Ok(Some(batch))
        }
        Err(error) if is_held(&error) => {
            transaction.rollback().await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Did a statement give way to somebody who holds a row: lock_not_available, deadlock_detected?
fn is_held(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

/// Deletes one bounded batch of the keys that say themselves that they may go before `now`, as [`collect_batch`] does.
pub(crate) async fn collect_expired(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    limit: i64,
    from: Option<DateTime<Utc>>,
) -> Result<Collected, sqlx::Error> {
    let mut transaction = past_requeues(connection).await?;
    let batch = sqlx::query_file_as!(Batch, "src/pg/collect_expired.sql", now, limit, from)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(batch.into())
}

/// A batch as the statements return it.
struct Batch {
    found: i64,
    deleted: i64,
    last: Option<DateTime<Utc>>,
}

impl From<Batch> for Collected {
    fn from(Batch { found, deleted, last }: Batch) -> Self {
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        Self { found: count(found), deleted: count(deleted), last }
    }
}

/// How many keys [`collect_expired`] would delete.
pub(crate) async fn count_self_expired(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<u64, sqlx::Error> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from oncely.idempotency_keys as i
        where expires_at < $1
          and oncely.may_be_forgotten(
              i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
              i.fencing_token, $1, oncely.forgotten_before(
                  $1, i.expires_at - i.created_at,
                  coalesce((select c.paused from oncely.consumers as c where c.consumer = i.consumer), '{}')
              )
          )"#,
        now
    )
    .fetch_one(connection)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// How many keys a collection would delete: completed, failed, in progress.
pub(crate) async fn count_expired(
    connection: &mut PgConnection,
    memory: &Memory,
) -> Result<[u64; 3], sqlx::Error> {
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
              i.fencing_token, $5, $2
          )"#,
        memory.consumer,
        memory.before,
        &memory.tenants,
        memory.is_own,
        memory.at
    )
    .fetch_one(connection)
    .await?;
    Ok([row.completed, row.failed, row.in_progress].map(|count| u64::try_from(count).unwrap_or(0)))
}

/// Takes the lock of the one collection, if it is free. It belongs to the session; two collections at once are correct, only wasteful.
pub(crate) async fn try_lock(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.try_session_lock('collection', false) as "locked!""#)
        .fetch_one(connection)
        .await
}

/// Gives the lock back.
pub(crate) async fn unlock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.release_session_lock('collection')").fetch_one(connection).await?;
    Ok(())
}
