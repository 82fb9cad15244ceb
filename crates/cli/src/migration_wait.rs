//! Applies migrations without long lock queues: a migration that does not get its locks within a second gives way to the sessions behind it
//! and tries again later.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::PgConnection;
use sqlx::migrate::MigrateError;

use super::output;
use oncely_core::backoff::Backoff;
use oncely_postgres::{self as pg, LockHolder, MigrationTry};

/// Interval between two queries for the lock holders.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

/// A session that migrates, and one that queries which sessions it waits for.
pub(super) struct MigrationSessions<'a> {
    pub(super) connection: &'a mut PgConnection,
    pub(super) watcher: &'a mut PgConnection,
    /// Longest wait of each migration for its locks.
    pub(super) wait: Duration,
}

impl MigrationSessions<'_> {
    /// Applies the next migration; tries again until it gets its locks or `wait` is over, and prints the sessions that hold them.
    ///
    /// # Errors
    /// If the migration fails, or does not get its locks within `wait`: then with the sessions that hold them.
    pub(super) async fn apply(&mut self, version: i64, description: &str) -> anyhow::Result<()> {
        let pid = pg::read_backend_pid(self.connection).await?;
        let mut backoff = Backoff::default();
        let mut reported_pids = None;
        let mut holders = Vec::new();
        let started = Instant::now();
        loop {
            let (result, new_holders) = self.try_once(pid, version).await;
            if result.with_context(|| format!("migration {version} ({description})"))?
                == MigrationTry::Applied
            {
                return Ok(());
            }
            // The wait was too short to be observed: most likely the holder is the same.
            if !new_holders.is_empty() {
                holders = new_holders;
            }
            let remaining = self.wait.saturating_sub(started.elapsed());
            if remaining.is_zero() {
                anyhow::bail!(
                    "migration {version} ({description}) got no lock within {}: {}. Nothing of it is applied, and no \
                     session waited behind it for longer than a second. Let that end{}, then run `oncely migrate` \
                     again; --wait makes it try for longer",
                    humantime::format_duration(self.wait),
                    describe_locks(&holders),
                    describe_remedy(&holders)
                );
            }
            let pids: Vec<i32> = holders.iter().map(|holder| holder.pid).collect();
            if reported_pids.as_ref() != Some(&pids) {
                output::print_note(&format!(
                    "migration {version} ({description}) waits: {}",
                    describe_locks(&holders)
                ));
                reported_pids = Some(pids);
            }
            tokio::time::sleep(backoff.next_pause().min(remaining)).await;
        }
    }

    /// Tries the migration once; also returns the sessions that it last waited for.
    async fn try_once(
        &mut self,
        pid: i32,
        version: i64,
    ) -> (Result<MigrationTry, MigrateError>, Vec<LockHolder>) {
        let Self { connection, watcher, .. } = self;
        let (done_sender, mut done_receiver) = tokio::sync::oneshot::channel::<()>();
        let attempt = async {
            let result = pg::try_migration(connection, version).await;
            drop(done_sender);
            result
        };
        let watch = async {
            let mut holders = Vec::new();
            loop {
                tokio::select! {
                    _ = &mut done_receiver => return holders,
                    () = tokio::time::sleep(QUERY_INTERVAL) => {}
                }
                // If the query fails, the migration itself reports the problem.
                if let Ok(found) = pg::list_lock_holders(watcher, pid).await
                    && !found.is_empty()
                {
                    holders = found;
                }
            }
        };
        tokio::join!(attempt, watch)
    }
}

/// Describes the locks and the sessions that hold them.
fn describe_locks(holders: &[LockHolder]) -> String {
    let Some(first) = holders.first() else {
        return "other sessions held the lock for a moment, again and again".to_owned();
    };
    let sessions = holders.iter().map(describe_session).collect::<Vec<_>>().join(", ");
    match (&first.table, first.kind.as_str()) {
        (Some(table), _) => format!("{table} is locked by {sessions}"),
        (None, "advisory") => format!("another migration is running: {sessions}"),
        (None, _) => format!("a transaction has to end first: {sessions}"),
    }
}

/// Describes a session that holds a lock.
fn describe_session(holder: &LockHolder) -> String {
    if holder.pid == 0 {
        return "a prepared transaction (pg_prepared_xacts)".to_owned();
    }
    let age = holder.age.and_then(|age| Duration::try_from_secs_f64(age).ok()).map(|age| {
        let whole = Duration::from_secs(age.as_secs());
        format!(", in its transaction for {}", humantime::format_duration(whole))
    });
    format!(
        "pid {} ({:?}, login {}{})",
        holder.pid,
        holder.application,
        holder.login,
        age.unwrap_or_default()
    )
}

/// Describes how to end a session that holds a lock.
fn describe_remedy(holders: &[LockHolder]) -> String {
    match holders.iter().find(|holder| holder.pid != 0) {
        Some(holder) => format!(", or end it (select pg_terminate_backend({}))", holder.pid),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(kind: &str, table: Option<&str>, pid: i32) -> LockHolder {
        LockHolder {
            kind: kind.to_owned(),
            table: table.map(str::to_owned),
            pid,
            application: "psql".to_owned(),
            login: "alice".to_owned(),
            age: Some(75.5),
        }
    }

    #[test]
    fn who_has_a_lock_is_told_in_words() {
        assert_eq!(
            describe_locks(&[
                holder("relation", Some("oncely.audit"), 7),
                holder("relation", Some("oncely.audit"), 0)
            ]),
            "oncely.audit is locked by pid 7 (\"psql\", login alice, in its transaction for 1m 15s), a prepared transaction (pg_prepared_xacts)"
        );
        assert!(
            describe_locks(&[holder("advisory", None, 7)]).starts_with("another migration is running: pid 7")
        );
        assert!(
            describe_locks(&[holder("virtualxid", None, 7)])
                .starts_with("a transaction has to end first: pid 7")
        );
        assert!(describe_locks(&[]).starts_with("other sessions held the lock"));
        assert_eq!(
            describe_remedy(&[holder("relation", None, 7)]),
            ", or end it (select pg_terminate_backend(7))"
        );
        assert_eq!(describe_remedy(&[holder("relation", None, 0)]), "");
    }
}
