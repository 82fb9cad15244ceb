//! Serialises the batches of a consumer, one of which runs at a time while they collide.

use sqlx::PgConnection;

/// Makes the transaction the only batch of its consumer that takes turns, until its end. Returns false if another one keeps the turn for
/// two seconds.
///
/// # Errors
/// If the query fails.
pub async fn take_turn(connection: &mut PgConnection, consumer: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select oncely.take_turn($1) as "taken!""#, consumer).fetch_one(connection).await
}
