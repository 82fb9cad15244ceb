//! What each migration locks, as it says and as PostgreSQL has it.

use std::collections::BTreeMap;

use oncely_postgres::{BlockedSessions, LockedWork, MIGRATOR, TableLock, parse_migration_locks};
use sqlx::migrate::Migration;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use testbed::Database;

use super::{file, up};
use crate::support::{World, servers};

/// Tables that stay small, whatever happens: their rows may be read and changed by a migration.
const SMALL: [&str; 8] = [
    "oncely._sqlx_migrations",
    "oncely.cell",
    "oncely.consumers",
    "oncely.controls",
    "oncely.maintenance",
    "oncely.processes",
    "oncely.rights",
    "oncely.secrets",
];

/// A relation as it is at a moment.
struct Relation {
    /// Of a partition its table's.
    name: String,
    file: i64,
    scans: i64,
    changed: i64,
}

/// What a transaction does to tables that were there before.
#[derive(Debug, Default, PartialEq, Eq)]
struct Done {
    /// As the lines of a migration say it.
    locks: Vec<String>,
    /// Tables with rows that it inserted, changed or deleted.
    changed: Vec<String>,
}

async fn relations(connection: &mut PgConnection) -> BTreeMap<i64, Relation> {
    let rows = sqlx::query(
        "select c.oid::bigint, coalesce(pg_partition_root(c.oid)::oid, c.oid)::regclass::text, c.relfilenode::bigint,
            pg_stat_get_xact_numscans(c.oid),
            pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid)
         from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p', 'v', 'm') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'",
    )
    .fetch_all(connection)
    .await
    .unwrap();
    let relation = |row: sqlx::postgres::PgRow| {
        (row.get(0), Relation { name: row.get(1), file: row.get(2), scans: row.get(3), changed: row.get(4) })
    };
    rows.into_iter().map(relation).collect()
}

fn kept_out(mode: &str) -> Option<BlockedSessions> {
    match mode {
        "AccessExclusiveLock" => Some(BlockedSessions::Everybody),
        "ExclusiveLock" | "ShareRowExclusiveLock" | "ShareLock" => Some(BlockedSessions::Writes),
        _ => None,
    }
}

/// Runs statements in a transaction and takes it back.
async fn done_by(connection: &mut PgConnection, statements: &str) -> Done {
    sqlx::raw_sql("begin; set local search_path = pg_catalog").execute(&mut *connection).await.unwrap();
    let before = relations(connection).await;
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut *connection).await.unwrap();
    sqlx::raw_sql("set local search_path = pg_catalog").execute(&mut *connection).await.unwrap();
    let after = relations(connection).await;
    let held = sqlx::query(
        "select relation::bigint, mode from pg_locks where pid = pg_backend_pid() and locktype = 'relation' and granted",
    )
    .fetch_all(&mut *connection)
    .await
    .unwrap();
    sqlx::raw_sql("rollback").execute(&mut *connection).await.unwrap();

    let mut locks: BTreeMap<&str, (BlockedSessions, LockedWork)> = BTreeMap::new();
    for row in &held {
        let (oid, mode): (i64, &str) = (row.get(0), row.get(1));
        let (Some(was), Some(who)) = (before.get(&oid), kept_out(mode)) else { continue };
        let work = match after.get(&oid) {
            Some(is) if is.file != was.file => LockedWork::RewritesAllRows,
            Some(is) if is.scans > was.scans => LockedWork::ReadsAllRows,
            // Or it is dropped.
            _ => LockedWork::Catalogue,
        };
        let lock = locks.entry(&was.name).or_insert((who, work));
        *lock = (lock.0.max(who), lock.1.max(work));
    }
    let line = |(table, (kept_out, work)): (&str, _)| {
        TableLock { table: table.to_owned(), kept_out, work }.to_string()
    };
    let mut changed: Vec<String> = before
        .iter()
        .filter(|(oid, was)| after.get(oid).is_some_and(|is| is.changed > was.changed))
        .map(|(_, was)| was.name.clone())
        .collect();
    changed.dedup();
    Done { locks: locks.into_iter().map(line).collect(), changed }
}

/// Why a migration may not run as it is.
fn objections(migration: &Migration, done: &Done) -> Vec<String> {
    let mut said = parse_migration_locks(migration).unwrap();
    said.sort_by(|one, other| one.table.cmp(&other.table));
    let lines: Vec<String> = said.iter().map(TableLock::to_string).collect();
    let mut objections = Vec::new();
    if lines != done.locks {
        let wanted = if done.locks.is_empty() { "none".to_owned() } else { done.locks.join("\n") };
        objections.push(format!("its lines of locks must be:\n{wanted}"));
    }
    let grows = |table: &&String| !SMALL.contains(&table.as_str());
    for table in done.changed.iter().filter(grows) {
        objections
            .push(format!("it changes rows of {table}, which grows: let the maintenance do it, in batches"));
    }
    for lock in said.iter().filter(|lock| lock.work != LockedWork::Catalogue && grows(&&lock.table)) {
        objections.push(format!(
            "{lock}: that lasts, since it grows; build indexes concurrently, validate constraints by a migration of their own"
        ));
    }
    objections
}

#[tokio::test]
async fn each_migration_says_which_tables_it_keeps_from_others_and_for_what() {
    let database = Database::create(&servers().await.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    let mut wrong = Vec::new();
    let mut lines = 0;
    for migration in up() {
        lines += parse_migration_locks(migration).unwrap().len();
        if migration.no_tx {
            // It can't be taken back. What may run so keeps nobody who reads or writes waiting.
            let code = migration.sql.as_str().lines().filter(|line| !line.starts_with("--"));
            let code = code.collect::<Vec<_>>().join(" ");
            if !code.contains(" concurrently ") || code.matches(';').count() != 1 {
                wrong.push(format!(
                    "{}: without a transaction one statement may run, concurrently",
                    file(migration)
                ));
            }
        } else {
            let done = done_by(&mut connection, migration.sql.as_str()).await;
            wrong.extend(
                objections(migration, &done).into_iter().map(|what| format!("{}: {what}", file(migration))),
            );
        }
        MIGRATOR.run_to(migration.version, &mut connection).await.unwrap();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(lines > 0, "nobody has looked");
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn what_a_statement_locks_is_seen_with_what_it_does_meanwhile() {
    let mut world = World::new().await;
    let table = "oncely.operator_actions";
    for (statement, locks) in [
        (format!("alter table {table} add column later text"), vec!["against everybody"]),
        (
            format!("alter table {table} add column later timestamptz default clock_timestamp()"),
            vec!["against everybody, rewrites all rows"],
        ),
        (
            format!("alter table {table} alter column reason set not null"),
            vec!["against everybody, reads all rows"],
        ),
        (
            format!("alter table {table} add constraint later check (count > 0)"),
            vec!["against everybody, reads all rows"],
        ),
        (
            format!("alter table {table} add constraint later check (count > 0) not valid"),
            vec!["against everybody"],
        ),
        (format!("create index later on {table} (reason)"), vec!["against writes, reads all rows"]),
        (format!("lock table {table} in share row exclusive mode"), vec!["against writes"]),
        (format!("drop table {table}"), vec!["against everybody"]),
        (format!("comment on table {table} is 'later'"), vec![]),
        (format!("grant select on {table} to public"), vec![]),
        (format!("create table oncely.later as select * from {table}"), vec![]),
    ] {
        let done = done_by(&mut world.sql, &statement).await;
        let wanted: Vec<String> = locks.iter().map(|effect| format!("-- locks {table} {effect}")).collect();
        assert_eq!(done, Done { locks: wanted, changed: Vec::new() }, "{statement}");
    }
    let partitioned = done_by(&mut world.sql, "create index later on oncely.audit (worker)").await;
    assert_eq!(
        partitioned.locks,
        ["-- locks oncely.audit against writes, reads all rows"],
        "partitions are their table"
    );
    let changed = done_by(&mut world.sql, "update oncely.cell set name = 'later'").await;
    assert_eq!(changed, Done { locks: Vec::new(), changed: vec!["oncely.cell".to_owned()] });
}
