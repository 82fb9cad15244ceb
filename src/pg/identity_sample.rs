//! What the identities of the last decisions look like, without showing one.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// A consumer's decisions, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentitySample {
    pub(crate) consumer: String,
    pub(crate) decisions: i64,
    /// Without a valid tenant or key.
    pub(crate) without: i64,
    /// The key came with another payload than before.
    pub(crate) conflicts: i64,
    /// The key reads as a time near the decision: seconds, milli-, micro- or nanoseconds since 1970, or ISO 8601.
    pub(crate) times: i64,
    /// Bytes of the longest key.
    pub(crate) longest: i64,
}

/// Counts up to 10,000 decisions since a time, by consumer.
pub(crate) async fn identity_sample(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> Result<Vec<IdentitySample>, sqlx::Error> {
    sqlx::query_file_as!(IdentitySample, "src/pg/identity_sample.sql", since).fetch_all(connection).await
}
