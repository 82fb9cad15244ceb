//! Errors of the mirror.

use std::time::Duration;

use oncely_net::tls::TlsError;
use oncely_net::url_file::UrlFileError;

/// The reason why a request to the mirror failed. Never a reason to fail a message.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("Redis: no answer within {0:?}")]
    Budget(Duration),
    #[error("Redis: {0} answers to {1} questions")]
    Answers(usize, usize),
    #[error("Redis: {0}")]
    Connection(#[from] std::io::Error),
    #[error("Redis: {0}")]
    Tls(#[from] TlsError),
    #[error("Redis: {0}")]
    UrlFile(#[from] UrlFileError),
    #[error("redis.url is not a URL of Redis")]
    Url,
    #[error("Sentinel at {0}: {1}")]
    Sentinel(String, #[source] Box<MirrorError>),
    #[error("its entry in redis.sentinels is not a URL of Redis")]
    SentinelUrl,
    #[error("the Sentinels know no master {0:?}: the host of redis.url is its name")]
    UnknownMaster(String),
    #[error("the master at {0}: {1}")]
    Master(String, #[source] Box<MirrorError>),
    #[error("Redis: is a replica, and no other master is known yet")]
    NoMaster,
    #[error("the node of the cluster at {0}: {1}")]
    Node(String, #[source] Box<MirrorError>),
    #[error("Redis: {0}")]
    Moved(String),
    #[error("no node of the cluster names the masters of its slots")]
    Slots,
    #[error("the cluster is down (CLUSTER INFO does not say cluster_state:ok)")]
    ClusterDown,
    #[error("no master of the cluster serves the slot {0}")]
    UnservedSlot(u16),
}

impl MirrorError {
    /// Returns whether Redis or a Sentinel answers and rejects the user or password: an error of the configuration.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Redis(error) => {
                error.kind() == redis::ErrorKind::AuthenticationFailed || error.code() == Some("NOAUTH")
            }
            Self::Sentinel(_, error) | Self::Master(_, error) | Self::Node(_, error) => error.is_refusal(),
            _ => false,
        }
    }

    /// Returns the setting that the error concerns.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Sentinel(..) | Self::SentinelUrl => "redis.sentinels",
            _ => "redis.url",
        }
    }
}
