//! What a person says of a key of which nobody knows whether it took effect.

use sqlx::PgConnection;

use super::KeyDetails;

/// Says whether it took effect, and records it; false where the key is not open any more, or has run since `key` was read.
pub(crate) async fn settle_claim(
    connection: &mut PgConnection,
    key: &KeyDetails,
    took_effect: bool,
    user: &str,
    note: Option<&str>,
) -> Result<bool, sqlx::Error> {
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
