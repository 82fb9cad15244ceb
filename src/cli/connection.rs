//! A connection of verbs that ask few questions, of whatever database it is.

use std::path::Path;

use anyhow::Context as _;
use sqlx::PgConnection;

use crate::config::Config;

/// Connects to the configured database.
///
/// # Errors
/// When the configuration is wrong, or PostgreSQL does not answer.
pub(super) async fn connect(file: &Path, application: &str) -> anyhow::Result<PgConnection> {
    let settings = Config::load_postgres(file)?;
    let connected = settings.connect(application).await;
    connected.with_context(|| format!("cannot connect to {}", settings.shown()))
}
