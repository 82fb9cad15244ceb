//! Estimates the locks of the pending migrations and their duration.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::migrate::{MIGRATOR, MigrationState};
use super::migration_lock::{LockedWork, TableLock, UnclearLock, parse_migration_locks};

/// The size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// The estimate of the last analyze; `None` if it was never analysed, or does not exist yet.
    pub rows: Option<i64>,
    /// Bytes without indexes; `None` if it does not exist yet.
    pub bytes: Option<i64>,
}

/// A table that a pending migration locks, or a migration without locks.
#[derive(Clone, Debug)]
pub struct PlannedLock {
    pub version: i64,
    pub description: String,
    pub lock: Option<TableLock>,
    pub size: TableSize,
}

/// Number of bytes of a table that are read per second to create an index: half of the measured rate of two busy cores with 10 million keys
/// (1.27 GB in 5.9 s).
const READ_BYTES_PER_SECOND: f64 = 100_000_000.0;
/// Number of bytes that are rewritten per second, with all indexes: in the same measurement 1.27 GB in 38.5 s.
const REWRITTEN_BYTES_PER_SECOND: f64 = 20_000_000.0;

impl PlannedLock {
    /// Returns the estimated time in seconds that other sessions wait.
    pub fn seconds(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // an estimate
        let bytes = self.size.bytes.unwrap_or(0) as f64;
        match self.lock.as_ref().map(|lock| lock.work) {
            None | Some(LockedWork::Catalogue) => 0.0,
            Some(LockedWork::ReadsAllRows) => bytes / READ_BYTES_PER_SECOND,
            Some(LockedWork::RewritesAllRows) => bytes / REWRITTEN_BYTES_PER_SECOND,
        }
    }
}

/// Lists the locks of the pending migrations, in their order, without table sizes.
///
/// # Errors
/// If a declaration of a migration can't be parsed.
pub fn list_pending_locks(state: &MigrationState) -> Result<Vec<PlannedLock>, UnclearLock> {
    let mut planned = Vec::new();
    let pending = MIGRATOR.iter().filter(|migration| {
        migration.migration_type.is_up_migration()
            && state.pending.iter().any(|(version, _)| *version == migration.version)
    });
    for migration in pending {
        let plan = |lock| PlannedLock {
            version: migration.version,
            description: migration.description.clone().into_owned(),
            lock,
            size: TableSize::default(),
        };
        let locks = parse_migration_locks(migration)?;
        if locks.is_empty() {
            planned.push(plan(None));
        }
        planned.extend(locks.into_iter().map(|lock| plan(Some(lock))));
    }
    Ok(planned)
}

/// Adds the sizes of the locked tables. Changes nothing in the database.
pub async fn measure_locked(connection: &mut PgConnection, planned: &mut [PlannedLock]) -> sqlx::Result<()> {
    let tables: Vec<String> =
        planned.iter().filter_map(|one| Some(one.lock.as_ref()?.table.clone())).collect();
    let sizes = read_table_sizes(connection, &tables).await?;
    for one in planned {
        let size = one.lock.as_ref().and_then(|lock| sizes.get(&lock.table));
        one.size = size.copied().unwrap_or_default();
    }
    Ok(())
}

/// Reads the sizes of tables; a partitioned one includes its partitions. Missing tables are left out.
async fn read_table_sizes(
    connection: &mut PgConnection,
    tables: &[String],
) -> sqlx::Result<BTreeMap<String, TableSize>> {
    let rows = sqlx::query!(
        r#"select t.name as "name!", s.rows, s.bytes
        from unnest($1::text[]) as t (name)
        cross join lateral (
            -- Of a table without partitions there is no tree.
            select sum(c.reltuples) filter (where c.reltuples >= 0)::bigint as rows, sum(pg_table_size(c.oid))::bigint as bytes
            from (select to_regclass(t.name) as oid union select relid from pg_partition_tree(to_regclass(t.name))) as p
            join pg_class as c on c.oid = p.oid
        ) as s
        where to_regclass(t.name) is not null"#,
        tables
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.name, TableSize { rows: row.rows, bytes: row.bytes })).collect())
}

#[cfg(test)]
mod tests {
    use super::super::migration_lock::BlockedSessions;
    use super::*;

    #[test]
    fn what_waits_is_longer_the_larger_the_table_is_unless_the_catalogue_alone_changes() {
        let of = |work, bytes| PlannedLock {
            version: 1,
            description: String::new(),
            lock: Some(TableLock { table: "a.b".to_owned(), kept_out: BlockedSessions::Writes, work }),
            size: TableSize { rows: None, bytes },
        };
        assert!(of(LockedWork::Catalogue, Some(i64::MAX)).seconds() < 0.1);
        assert!(of(LockedWork::ReadsAllRows, Some(200_000_000)).seconds() > 1.0);
        assert!(
            of(LockedWork::RewritesAllRows, Some(100_000_000)).seconds()
                > of(LockedWork::ReadsAllRows, Some(100_000_000)).seconds()
        );
        assert!(of(LockedWork::RewritesAllRows, None).seconds() < 0.1, "it is not made yet");
    }
}
