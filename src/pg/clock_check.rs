//! How far the database's clock is explained.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::consumers::duration;

/// What the database's clock says, and what explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedClock {
    /// What it says.
    pub at: DateTime<Utc>,
    /// The latest time that was explained before.
    pub seen_at: DateTime<Utc>,
    /// How far it may go on without a trace.
    pub bound: Duration,
    /// It may be believed. Else nothing is collected.
    pub explained: bool,
}

/// Looks at the database's clock, and notes what was found.
pub(crate) async fn observe_clock(connection: &mut PgConnection) -> Result<ObservedClock, sqlx::Error> {
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
        bound: duration(row.bound),
        explained: row.explained,
    })
}

/// A person says that the clock is right; recorded in the same transaction.
pub(crate) async fn accept_clock(
    connection: &mut PgConnection,
    user: &str,
    note: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.accept_clock($1, $2)", user, note).fetch_one(connection).await?;
    Ok(())
}

/// What the clock said when it was last refused; `None` while all is well.
pub(crate) async fn clock_refused_at(
    connection: &mut PgConnection,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!("select clock_refused_at from oncely.maintenance").fetch_one(connection).await
}
