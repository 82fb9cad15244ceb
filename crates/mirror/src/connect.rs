//! Opens a connection to the current Redis.

use super::connection::{RESPONSE_TIMEOUT, RedisConnection, parse_connection_info};
use super::error::MirrorError;
use super::sentinel;
use oncely_config::MirrorSettings;

/// Connects to Redis, or to the master that the Sentinels name, within twice [`RESPONSE_TIMEOUT`]. Reads the URLs from their files again.
pub(super) async fn connect(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let settings = &*settings.reread_urls()?;
    let opening = async {
        match settings.sentinels.is_empty() {
            true => RedisConnection::open(parse_connection_info(&settings.url)?, settings.redis_tls()?).await,
            false => sentinel::connect_to_master(settings).await,
        }
    };
    // The client library's own limits do not cover every step.
    match tokio::time::timeout(RESPONSE_TIMEOUT * 2, opening).await {
        Ok(connection) => connection,
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT * 2)),
    }
}
