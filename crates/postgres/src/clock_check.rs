//! The plausibility of the database's clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::consumers::to_duration;

/// The database's clock and its plausibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedClock {
    /// The current reading.
    pub at: DateTime<Utc>,
    /// The latest reading that was plausible before.
    pub seen_at: DateTime<Utc>,
    /// The longest advance without any recorded activity.
    pub bound: Duration,
    /// Whether the reading is plausible. If not, nothing is collected.
    pub explained: bool,
}

/// Reads the database's clock, and records the reading.
pub async fn observe_clock(connection: &mut PgConnection) -> sqlx::Result<ObservedClock> {
    let row = sqlx::query!(
        r#"select c.at as "at!", c.seen_at as "seen_at!", (extract(epoch from c.bound) * 1000000)::bigint as "bound!",
            c.explained as "explained!"
        from oncely.observe_clock() as c"#
    )
    .fetch_one(connection)
    .await?;
    Ok(ObservedClock {
        at: row.at,
        seen_at: row.seen_at,
        bound: to_duration(row.bound),
        explained: row.explained,
    })
}

/// Accepts the clock on behalf of an operator; recorded in the same transaction.
pub async fn accept_clock(connection: &mut PgConnection, user: &str, note: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!("select oncely.accept_clock($1, $2)", user, note).fetch_one(connection).await?;
    Ok(())
}

/// Reads the time that the clock showed when it was last refused; `None` while it is plausible.
pub async fn read_clock_refusal_time(connection: &mut PgConnection) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!("select clock_refused_at from oncely.maintenance").fetch_one(connection).await
}
