//! The embedded migrations.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, Migrator};
use sqlx::{Connection as _, PgConnection};

use super::migration_lock::parse_migration_locks;

/// All migrations, the same files that sqlx-cli runs.
pub static MIGRATOR: Migrator = sqlx::migrate!();

/// The difference between a database and the embedded migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    /// Version and description of the migrations not applied yet.
    pub pending: Vec<(i64, String)>,
    /// Versions applied from a file other than the embedded one.
    pub changed: Vec<i64>,
    /// Versions in the database that this program does not know: a newer Oncely has migrated it.
    pub unknown: Vec<i64>,
    /// The first unknown version that has removed something this program still uses; `None` without one.
    pub contracted: Option<i64>,
}

/// In the name of a migration that removes something: precedes the version of the migration since which no program uses it. A program that
/// knows that version is new enough.
const UNUSED_SINCE: &str = " unused since ";

/// Returns whether a migration with this description removes something that a program with migrations up to `latest` uses.
fn is_incompatible_with(description: &str, latest: i64) -> bool {
    let since = description.rsplit_once(UNUSED_SINCE).map(|(_, since)| since.parse::<i64>());
    // An unreadable version is left to newer programs, so it counts as removing something.
    since.is_some_and(|since| since.map_or(true, |since| since > latest))
}

/// Reads the applied migrations of a database, and compares them with the embedded ones. Changes nothing.
///
/// # Errors
/// If the list of applied migrations exists and can't be read.
pub async fn read_migration_state(connection: &mut PgConnection) -> sqlx::Result<MigrationState> {
    let has_list: Option<bool> =
        sqlx::query_scalar("select to_regclass('oncely._sqlx_migrations') is not null")
            .fetch_one(&mut *connection)
            .await?;
    let applied: Vec<AppliedMigration> = if has_list == Some(true) {
        // sqlx's own query omits the description.
        sqlx::query_as("select version, checksum, description from oncely._sqlx_migrations order by version")
            .fetch_all(&mut *connection)
            .await?
    } else {
        Vec::new()
    };
    let own_migrations: Vec<_> = MIGRATOR.iter().filter(|m| m.migration_type.is_up_migration()).collect();
    let find_applied = |version| applied.iter().find(|m| m.version == version);
    let unknown: Vec<&AppliedMigration> =
        applied.iter().filter(|m| own_migrations.iter().all(|own| own.version != m.version)).collect();
    let latest = own_migrations.last().map_or(0, |m| m.version);
    Ok(MigrationState {
        pending: own_migrations
            .iter()
            .filter(|m| find_applied(m.version).is_none())
            .map(|m| (m.version, m.description.clone().into_owned()))
            .collect(),
        changed: own_migrations
            .iter()
            .filter(|m| find_applied(m.version).is_some_and(|found| *found.checksum != *m.checksum))
            .map(|m| m.version)
            .collect(),
        contracted: unknown.iter().find(|m| is_incompatible_with(&m.description, latest)).map(|m| m.version),
        unknown: unknown.iter().map(|m| m.version).collect(),
    })
}

/// A row of the list of applied migrations.
#[derive(sqlx::FromRow)]
struct AppliedMigration {
    version: i64,
    checksum: Vec<u8>,
    description: String,
}

/// The result of a try to apply a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationTry {
    /// The migration is applied.
    Applied,
    /// A lock was not granted within the migration's lock wait. Nothing is applied.
    Locked,
}

/// Maximum wait of a migration for all its locks together: while it waits, all other sessions queue behind it.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Returns the longest wait of a migration for each lock. A migration without a transaction creates or drops an index concurrently: readers
/// and writers don't wait behind it, and if interrupted it leaves an invalid index.
fn lock_wait(migration: &Migration) -> Duration {
    if migration.no_tx {
        return Duration::ZERO;
    }
    // While it waits for the second lock it holds the first. (All partitions of a table count as one: a reader of it has them all.)
    let locks = parse_migration_locks(migration).map_or(1, |locks| locks.len().max(1));
    LOCK_WAIT / u32::try_from(locks).unwrap_or(u32::MAX)
}

/// Applies the pending migrations up to one, which is the next.
///
/// # Errors
/// If the migration fails for another reason than a lock that another session holds ([`MigrationTry::Locked`]).
pub async fn try_migration(
    connection: &mut PgConnection,
    version: i64,
) -> Result<MigrationTry, MigrateError> {
    let wait = MIGRATOR.iter().find(|m| m.version == version).map_or(LOCK_WAIT, lock_wait);
    sqlx::query("select set_config('lock_timeout', $1, false)")
        .bind(wait.as_millis().to_string())
        .execute(&mut *connection)
        .await?;
    match MIGRATOR.run_to(version, &mut *connection).await {
        Ok(()) => Ok(MigrationTry::Applied),
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _))
            if is_lock_timeout(&error) =>
        {
            // The end of its transaction is sent with the next statement.
            connection.ping().await?;
            Ok(MigrationTry::Locked)
        }
        Err(error) => Err(error),
    }
}

fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() == Some("55P03")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_taken_from_programs_that_are_too_old_alone() {
        let latest = 20_261_122_000_015;
        assert!(!is_incompatible_with("roles", latest));
        assert!(!is_incompatible_with("drop emit unused since 20261122000015", latest));
        assert!(is_incompatible_with("drop emit unused since 20270101000001", latest));
        assert!(is_incompatible_with("drop emit unused since version 3", latest), "whatever that means");
    }
}
