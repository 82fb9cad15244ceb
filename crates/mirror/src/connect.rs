//! Opens a connection to the current Redis.

use super::connection::{ANSWER_TIME, RedisConnection, info};
use super::error::MirrorError;
use super::sentinel;
use oncely_config::MirrorSettings;

/// Connects to Redis, or to the master that the Sentinels name.
pub(super) async fn connect(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let settings = &*settings.current()?;
    let opening = async {
        match settings.sentinels.is_empty() {
            true => RedisConnection::to(info(&settings.url)?, settings.redis_tls()?).await,
            false => sentinel::master(settings).await,
        }
    };
    // The client library's own limits do not cover every step.
    match tokio::time::timeout(ANSWER_TIME * 2, opening).await {
        Ok(connection) => connection,
        Err(_) => Err(MirrorError::Budget(ANSWER_TIME * 2)),
    }
}
