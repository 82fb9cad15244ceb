//! Statistics about the identities of recent decisions, without revealing one.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// The counted decisions of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySample {
    pub consumer: String,
    pub decisions: i64,
    /// Decisions without a valid tenant or key.
    pub without: i64,
    /// Decisions on a key with another payload than before.
    pub conflicts: i64,
    /// Keys that read as a time near the decision: seconds, milli-, micro- or nanoseconds since 1970, or ISO 8601.
    pub times: i64,
    /// Length of the longest key, in bytes.
    pub longest: i64,
}

/// Counts up to 10,000 decisions since a time, by consumer.
pub async fn sample_identities(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> sqlx::Result<Vec<IdentitySample>> {
    sqlx::query_file_as!(IdentitySample, "src/identity_sample.sql", since).fetch_all(connection).await
}
