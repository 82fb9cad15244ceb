//! The embedded migrations.

use sqlx::PgConnection;
use sqlx::migrate::{Migrate as _, Migrator};

/// All migrations, the same files that sqlx-cli runs.
pub static MIGRATOR: Migrator = sqlx::migrate!();

/// How a database stands to the embedded migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    /// Version and description of what is not applied yet.
    pub pending: Vec<(i64, String)>,
    /// Versions applied from a file other than ours.
    pub changed: Vec<i64>,
    /// Versions that the database has and we do not know: a newer Oncely was here.
    pub unknown: Vec<i64>,
}

/// Compares a database with the embedded migrations. Changes nothing.
///
/// # Errors
/// When the list of applied migrations exists and can't be read.
pub async fn migration_state(connection: &mut PgConnection) -> Result<MigrationState, sqlx::Error> {
    let listed: Option<bool> =
        sqlx::query_scalar("select to_regclass('oncely._sqlx_migrations') is not null")
            .fetch_one(&mut *connection)
            .await?;
    let applied = if listed == Some(true) {
        connection
            .list_applied_migrations("oncely._sqlx_migrations")
            .await
            .map_err(|error| sqlx::Error::Migrate(Box::new(error)))?
    } else {
        Vec::new()
    };
    let known: Vec<_> = MIGRATOR.iter().filter(|m| m.migration_type.is_up_migration()).collect();
    let of = |version| applied.iter().find(|m| m.version == version);
    Ok(MigrationState {
        pending: known
            .iter()
            .filter(|m| of(m.version).is_none())
            .map(|m| (m.version, m.description.clone().into_owned()))
            .collect(),
        changed: known
            .iter()
            .filter(|m| of(m.version).is_some_and(|found| found.checksum != m.checksum))
            .map(|m| m.version)
            .collect(),
        unknown: applied
            .iter()
            .map(|m| m.version)
            .filter(|version| known.iter().all(|m| m.version != *version))
            .collect(),
    })
}
