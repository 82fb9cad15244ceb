//! The connection of verbs with few queries, to a database of any cell.

use std::path::Path;

use anyhow::Context as _;
use sqlx::PgConnection;

use oncely_config::Config;

/// Connects to the configured database.
///
/// # Errors
/// If the configuration is invalid, or PostgreSQL does not answer.
pub(super) async fn connect(file: &Path, application: &str) -> anyhow::Result<PgConnection> {
    let settings = Config::load_postgres(file)?;
    let connection = settings.connect(application).await;
    connection.with_context(|| format!("cannot connect to {}", settings.redacted()))
}
