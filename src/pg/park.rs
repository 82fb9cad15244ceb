//! A message that is set aside by hand.

use sqlx::PgConnection;

use crate::identity::Identity;

/// What became of a key that was to be parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// Its next delivery is dead-lettered without having run.
    Done,
    /// It took effect: nothing was changed.
    Completed,
    /// A run has it by a lease: nothing was changed.
    Held,
    /// It was given up before, for this reason: nothing was changed.
    GivenUp(String),
}

/// Gives a key up before its message comes, in the caller's transaction. Waits for whoever has it in an open transaction, up to
/// `lock_timeout`.
pub(crate) async fn park(
    connection: &mut PgConnection,
    identity: &Identity,
    why: Option<&str>,
) -> Result<Parked, sqlx::Error> {
    let row = sqlx::query!(
        r#"select p.outcome as "outcome!", p.known_reason from oncely.park($1, $2, $3, $4) as p"#,
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str(),
        why
    )
    .fetch_one(connection)
    .await?;
    Ok(match row.outcome.as_str() {
        "parked" => Parked::Done,
        "completed" => Parked::Completed,
        "held" => Parked::Held,
        _ => Parked::GivenUp(row.known_reason.unwrap_or_default()),
    })
}
