//! With what tags are made: the configuration's key, or what the database has.

use secrecy::ExposeSecret as _;
use sqlx::PgConnection;

use super::tag::TagKey;
use crate::config::Config;
use crate::pg;

/// The configured key, where there is one.
pub(crate) fn configured_tag_key(config: &Config) -> Option<TagKey> {
    let key = config.mirror.as_ref()?.key.as_ref()?;
    Some(TagKey::derive(key.expose_secret().as_bytes()))
}

/// The key that makes tags now, and those of before whose entries may be there still.
///
/// # Errors
/// When the database has to be asked, and fails or refuses it.
pub(crate) async fn tag_keys(
    config: &Config,
    connection: &mut PgConnection,
) -> Result<(TagKey, Vec<TagKey>), sqlx::Error> {
    if let Some(key) = configured_tag_key(config) {
        return Ok((key, Vec::new()));
    }
    let secrets = pg::mirror_keys(connection).await?;
    let mut keys = secrets.iter().map(|secret| TagKey::derive(secret));
    let now = keys.next().ok_or(sqlx::Error::RowNotFound)?;
    Ok((now, keys.collect()))
}
