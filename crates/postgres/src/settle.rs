//! Settles keys with an unknown outcome on behalf of an operator.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::KeyDetails;
use oncely_core::decide::KeyStatus;

impl KeyDetails {
    /// Returns whether an operator may settle the key, like `oncely.settle_claim`.
    pub fn is_to_settle(&self, now: DateTime<Utc>) -> bool {
        let is_held = self.owner.is_some() && self.not_before.is_some_and(|until| until > now);
        match self.status.as_str() {
            status if status == KeyStatus::Failed.as_str() => true,
            status if status == KeyStatus::InProgress.as_str() => self.fencing_token.is_some() && !is_held,
            _ => false,
        }
    }
}

/// Settles whether the key took effect, and records it; returns false if the key is no longer open, or has run since `key` was read.
pub async fn settle_claim(
    connection: &mut PgConnection,
    key: &KeyDetails,
    took_effect: bool,
    user: &str,
    note: Option<&str>,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select oncely.settle_claim($1, $2, $3, $4, $5, $6, $7, $8) as "done!""#,
        key.tenant,
        key.consumer,
        key.key,
        took_effect,
        note,
        user,
        key.attempts,
        key.fencing_token
    )
    .fetch_one(connection)
    .await
}
