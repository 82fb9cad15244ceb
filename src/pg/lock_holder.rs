//! Who has a lock that another session waits for.

use sqlx::PgConnection;

/// A session that another one waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LockHolder {
    /// As in `pg_locks`: `relation`, `advisory`, `transactionid`, …
    pub(crate) kind: String,
    /// The table, where it is one.
    pub(crate) table: Option<String>,
    /// 0: a prepared transaction.
    pub(crate) pid: i32,
    /// What it calls itself.
    pub(crate) application: String,
    pub(crate) login: String,
    /// For how many seconds its transaction has lasted; `None` where this login may not know.
    pub(crate) age: Option<f64>,
}

/// Whom a session waits for at this moment; nobody where it does not wait.
pub(crate) async fn lock_holders(
    connection: &mut PgConnection,
    pid: i32,
) -> Result<Vec<LockHolder>, sqlx::Error> {
    sqlx::query_as!(
        LockHolder,
        r#"select w.locktype as "kind!", w.relation::regclass::text as "table", h.pid as "pid!",
            coalesce(a.application_name, '') as "application!", coalesce(a.usename, '')::text as "login!",
            extract(epoch from clock_timestamp() - a.xact_start)::double precision as "age"
        from pg_locks as w
        cross join lateral unnest(pg_blocking_pids(w.pid)) as h (pid)
        left join pg_stat_activity as a on a.pid = h.pid
        where w.pid = $1 and not w.granted
        order by a.xact_start nulls last
        limit 5"#,
        pid
    )
    .fetch_all(connection)
    .await
}
