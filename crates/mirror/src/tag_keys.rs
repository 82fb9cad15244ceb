//! The keys that tags are made with: the configured one, or those stored in the database.

use secrecy::ExposeSecret as _;
use sqlx::PgConnection;

use super::tag::TagKey;
use oncely_config::Config;
use oncely_postgres as pg;

/// Returns the configured key; `None` if none is configured.
pub fn configured_tag_key(config: &Config) -> Option<TagKey> {
    let key = config.mirror.as_ref()?.key.as_ref()?;
    Some(TagKey::derive(key.expose_secret().as_bytes()))
}

/// Returns the configured key; without one, reads from the database the key that makes tags now, and previous keys with entries that may
/// still exist.
///
/// # Errors
/// If no key is configured, and the query fails.
pub async fn read_tag_keys(
    config: &Config,
    connection: &mut PgConnection,
) -> Result<(TagKey, Vec<TagKey>), sqlx::Error> {
    if let Some(key) = configured_tag_key(config) {
        return Ok((key, Vec::new()));
    }
    let secrets = pg::read_mirror_keys(connection).await?;
    let mut keys = secrets.iter().map(|secret| TagKey::derive(secret));
    let current = keys.next().ok_or(sqlx::Error::RowNotFound)?;
    Ok((current, keys.collect()))
}
