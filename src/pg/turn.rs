//! The turn of a consumer's batches, one of which runs at a time while they collide.

use sqlx::PgConnection;

/// Makes the transaction its consumer's only batch that takes turns, until its end. False where another one has been that for two seconds.
///
/// # Errors
/// When the query fails.
pub(crate) async fn take_turn(connection: &mut PgConnection, consumer: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.take_turn($1) as "taken!""#, consumer).fetch_one(connection).await
}
