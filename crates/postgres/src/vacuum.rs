//! Finds obstacles of vacuum, and its backlog.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// A transaction that holds back vacuum, because it still sees rows deleted for all others.
#[derive(Clone, Debug, PartialEq)]
pub struct OldTransaction {
    /// `session` or `prepared`.
    pub(crate) kind: String,
    /// The process id of a session.
    pub pid: Option<i32>,
    /// The session's application name; for a prepared transaction its database.
    pub application: String,
    pub login: String,
    /// Age in seconds.
    pub age: f64,
}

/// Lists the three oldest transactions that hold back vacuum; of other users' sessions only those that this login may see.
pub async fn list_old_transactions(connection: &mut PgConnection) -> sqlx::Result<Vec<OldTransaction>> {
    sqlx::query_as!(
        OldTransaction,
        r#"select t.kind as "kind!", t.pid, t.application as "application!", t.login as "login!",
            extract(epoch from clock_timestamp() - t.began)::double precision as "age!"
        from (
            select 'session' as kind, a.pid, coalesce(nullif(a.application_name, ''), a.backend_type) as application,
                coalesce(a.usename, '')::text as login, a.xact_start as began
            from pg_stat_activity as a
            where a.xact_start is not null and (a.backend_xid is not null or a.backend_xmin is not null)
              and a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
            union all
            select 'prepared', null, p.database::text, p.owner::text, p.prepared
            from pg_prepared_xacts as p
        ) as t
        order by t.began
        limit 3"#
    )
    .fetch_all(connection)
    .await
}

/// Reads the login's name if it may not see the activity of some other users' sessions; `None` if it may.
pub async fn read_login_without_activity(connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        r#"select current_user::text
        where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
          and exists (
              select from pg_stat_activity as a
              where a.usesysid is not null and not pg_has_role(current_user, a.usesysid, 'usage')
          )"#
    )
    .fetch_optional(connection)
    .await
    .map(Option::flatten)
}

/// Row counts of one of Oncely's tables, as autovacuum sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRows {
    pub relation: String,
    /// Estimated live rows.
    pub live: i64,
    /// Estimated dead rows.
    pub dead: i64,
    pub last_autovacuum: Option<DateTime<Utc>>,
    /// Whether autovacuum is enabled for the table.
    pub autovacuum: bool,
}

/// Lists the tables with the most dead rows, and those with autovacuum disabled.
pub async fn list_dead_rows(connection: &mut PgConnection) -> sqlx::Result<Vec<DeadRows>> {
    sqlx::query_as!(
        DeadRows,
        r#"select s.relname::text as "relation!", s.n_live_tup as "live!", s.n_dead_tup as "dead!", s.last_autovacuum,
            coalesce(o.option_value::boolean, true) as "autovacuum!"
        from pg_stat_all_tables as s
        join pg_class as c on c.oid = s.relid
        left join lateral pg_options_to_table(c.reloptions) as o on o.option_name = 'autovacuum_enabled'
        where s.schemaname = 'oncely'
        order by coalesce(o.option_value::boolean, true), s.n_dead_tup desc
        limit 20"#
    )
    .fetch_all(connection)
    .await
}

/// A replication slot: it keeps the log that its reader has not received, without a limit unless one is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationSlot {
    pub name: String,
    pub active: bool,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: String,
    /// Bytes of log that it keeps.
    pub held: i64,
}

/// Lists the server's replication slots, with the log that each keeps.
pub async fn list_replication_slots(connection: &mut PgConnection) -> sqlx::Result<Vec<ReplicationSlot>> {
    sqlx::query_as!(
        ReplicationSlot,
        r#"select slot_name::text as "name!", active as "active!", coalesce(wal_status, 'none') as "wal_status!",
            coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint as "held!"
        from pg_replication_slots
        order by slot_name
        limit 100"#
    )
    .fetch_all(connection)
    .await
}

/// Lists the names of Oncely's indexes that are invalid, in the order of their names: a `create`, `drop` or `reindex index concurrently`
/// was interrupted, or is still running.
pub async fn list_invalid_indexes(connection: &mut PgConnection) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"select c.relname::text as "index!"
        from pg_index as i
        join pg_class as c on c.oid = i.indexrelid
        where c.relnamespace = 'oncely'::regnamespace and not (i.indisvalid and i.indisready and i.indislive)
        order by c.relname"#
    )
    .fetch_all(connection)
    .await
}
