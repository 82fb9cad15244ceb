//! Which of the big tables were read from one end to the other, by the server's own count of what such scans have read.
//!
//! Counted rather than planned: what a plan says it might scan and what it did scan are two things (an empty partition is always
//! scanned), and plans of statements within functions are in nobody's log. A session's counts are known when it has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{PgConnection, Row as _};
use testbed::eventually_within;

/// More rows than this make a scan: a partition that holds a few is read as a whole for good reason.
const HANDFUL: i64 = 100;

/// Rows read so far, by table.
#[derive(Clone, Debug, Default)]
pub(super) struct Scans(BTreeMap<String, i64>);

impl Scans {
    /// Ends the sessions of whoever has looked, and reads.
    pub(super) async fn read(connection: &mut PgConnection) -> anyhow::Result<Self> {
        const OTHERS: &str = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
                              and backend_type in ('client backend', 'parallel worker')";
        // A console opens others when it needs them.
        sqlx::query(sqlx::AssertSqlSafe(format!("select pg_terminate_backend(pid) {OTHERS}")))
            .execute(&mut *connection)
            .await?;
        let connection = tokio::sync::Mutex::new(connection);
        let connection = &connection;
        eventually_within(Duration::from_secs(20), "all sessions have ended", || async move {
            let query = sqlx::query(sqlx::AssertSqlSafe(format!("select count(*) {OTHERS}")));
            let left: i64 = query.fetch_one(&mut **connection.lock().await).await?.get(0);
            anyhow::ensure!(left == 0, "{left} are there");
            Ok(())
        })
        .await?;
        let rows = sqlx::query(
            "select s.relname::text, s.seq_tup_read
             from pg_stat_user_tables as s
             where s.relid in ('oncely.idempotency_keys'::regclass, 'oncely.dead_letters'::regclass)
                 or s.relid in (select t.relid from pg_partition_tree('oncely.audit') as t)",
        )
        .fetch_all(&mut **connection.lock().await)
        .await?;
        Ok(Self(rows.into_iter().map(|row| (row.get(0), row.get(1))).collect()))
    }

    /// What was scanned since, and how many rows of it.
    pub(super) fn since(&self, earlier: &Self) -> Vec<(String, i64)> {
        let read = |table: &String, now: i64| now - earlier.0.get(table).copied().unwrap_or(0);
        let tables = self.0.iter().map(|(table, now)| (table.clone(), read(table, *now)));
        tables.filter(|(_, rows)| *rows > HANDFUL).collect()
    }
}
