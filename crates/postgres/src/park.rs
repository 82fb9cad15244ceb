//! Parks a message on behalf of an operator.

use sqlx::PgConnection;

use oncely_core::identity::Identity;

/// The result of parking a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkOutcome {
    /// Its next delivery is dead-lettered without running.
    Done,
    /// It took effect: nothing was changed.
    Completed,
    /// A run holds it by a lease: nothing was changed.
    Held,
    /// It was given up before, for this reason: nothing was changed.
    GivenUp(String),
}

/// Gives a key up before its message comes, in the caller's transaction, and records `user` of the operating system as the author. Waits
/// up to `lock_timeout` for an open transaction that holds the key.
pub async fn park(
    connection: &mut PgConnection,
    identity: &Identity,
    why: Option<&str>,
    user: &str,
) -> sqlx::Result<ParkOutcome> {
    let row = sqlx::query!(
        r#"select p.outcome as "outcome!", p.known_reason from oncely.park($1, $2, $3, $4, $5) as p"#,
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        why,
        user
    )
    .fetch_one(connection)
    .await?;
    Ok(match row.outcome.as_str() {
        "parked" => ParkOutcome::Done,
        "completed" => ParkOutcome::Completed,
        "held" => ParkOutcome::Held,
        _ => ParkOutcome::GivenUp(row.known_reason.unwrap_or_default()),
    })
}
