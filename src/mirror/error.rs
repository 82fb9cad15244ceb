//! Why the mirror gave no answer.

use std::time::Duration;

use crate::tls::TlsError;
use crate::url_file::UrlFileError;

/// Why the mirror gave no answer. Never a reason to fail a message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
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
}

impl MirrorError {
    /// Redis is there and refuses user or password: a matter of the configuration.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == redis::ErrorKind::AuthenticationFailed)
    }
}
