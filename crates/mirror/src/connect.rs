//! Opens a connection to the current Redis.

use super::cluster::{connect_to_slot, slot_of};
use super::connection::{RESPONSE_TIMEOUT, RedisConnection, connect_to_master, parse_connection_info};
use super::error::MirrorError;
use super::sentinel::{self, HostPort};
use oncely_config::MirrorSettings;

/// Connects to Redis, to the master that the Sentinels name, or to the master of the mirror's slot in a cluster, within twice
/// [`RESPONSE_TIMEOUT`]. Reads the URLs from their files again.
pub(super) async fn connect(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let settings = &*settings.reread_urls()?;
    let opening = async {
        match &settings.cluster {
            Some(cluster) => connect_to_slot(settings, slot_of(&cluster.slot_key())).await,
            None if !settings.sentinels.is_empty() => sentinel::connect_to_master(settings).await,
            None => RedisConnection::open(parse_connection_info(&settings.url)?, settings.redis_tls()?).await,
        }
    };
    within_limit(opening).await
}

/// Connects to a master of a cluster, within twice [`RESPONSE_TIMEOUT`].
pub(super) async fn connect_to_node(
    settings: &MirrorSettings,
    node: &HostPort,
) -> Result<RedisConnection, MirrorError> {
    within_limit(connect_to_master(settings, node)).await
}

/// Limits an attempt: the client library's own limits do not cover every step.
async fn within_limit(
    opening: impl Future<Output = Result<RedisConnection, MirrorError>>,
) -> Result<RedisConnection, MirrorError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT * 2, opening).await {
        Ok(connection) => connection,
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT * 2)),
    }
}
