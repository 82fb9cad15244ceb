//! Finds the sessions that hold a lock another session waits for.

use sqlx::PgConnection;

/// A session that another one waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct LockHolder {
    /// As in `pg_locks`: `relation`, `advisory`, `transactionid`, …
    pub kind: String,
    /// The table, for a lock on one.
    pub table: Option<String>,
    /// The process id; 0 for a prepared transaction.
    pub pid: i32,
    /// The application name.
    pub application: String,
    pub login: String,
    /// Age of its transaction in seconds; `None` if this login may not see it.
    pub age: Option<f64>,
}

/// Lists the sessions that a session waits for at this moment; empty if it does not wait.
pub async fn list_lock_holders(connection: &mut PgConnection, pid: i32) -> sqlx::Result<Vec<LockHolder>> {
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
