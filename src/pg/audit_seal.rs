//! The seals of the trail, and what the trail holds for a span of them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// A span of the trail that was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) until: DateTime<Utc>,
    pub(crate) rows: i64,
    pub(crate) hash: Vec<u8>,
}

/// Seals the next closed span of the trail; `None` where there is none yet.
pub(crate) async fn seal_audit(connection: &mut PgConnection) -> Result<Option<Sealed>, sqlx::Error> {
    let row = sqlx::query!("select s.until_time, s.row_count, s.hash from oncely.seal_audit() as s")
        .fetch_one(connection)
        .await?;
    Ok(match (row.until_time, row.row_count, row.hash) {
        (Some(until), Some(rows), Some(hash)) => Some(Sealed { until, rows, hash }),
        _ => None,
    })
}

/// A seal, and whether it stands where it must.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seal {
    /// Place in the chain.
    pub place: i64,
    /// `rows`, `erased` or `dropped`.
    pub kind: String,
    /// Beginning of the span.
    pub from_time: DateTime<Utc>,
    /// End of the span, not included.
    pub until_time: DateTime<Utc>,
    /// Rows that the span had.
    pub row_count: i64,
    /// Their hash.
    #[serde(skip)]
    pub digest: Vec<u8>,
    /// The seal's hash.
    #[serde(skip)]
    pub hash: Vec<u8>,
    /// The hash is that of its contents.
    pub is_whole: bool,
    /// It names the hash of the one before it, which is the one at the place before.
    pub is_linked: bool,
    /// It was made after what it seals.
    pub is_in_time: bool,
    /// What it says was dropped was older than the lowest `oncely.cell.audit_floor` that there can be.
    pub is_past_floor: bool,
}

/// Has values look as they do where they are sealed, for the rest of the session: before [`seals`] and [`audit_digest`].
pub(crate) async fn look_as_sealed(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select set_config('timezone', 'UTC', false) as timezone, set_config('datestyle', 'ISO, YMD', false) as datestyle,
             set_config('bytea_output', 'hex', false) as bytea_output"
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Up to `limit` seals after a place of the chain, in its order.
pub(crate) async fn seals(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
) -> Result<Vec<Seal>, sqlx::Error> {
    sqlx::query_file_as!(Seal, "src/pg/seals_list.sql", after, limit).fetch_all(connection).await
}

/// What a span of the trail holds since a tenant was erased from it: how many rows, and their hash.
pub(crate) type ErasedSpans = HashMap<(DateTime<Utc>, DateTime<Utc>), (i64, Vec<u8>)>;

/// The spans from which a tenant was erased; the last erasure counts.
pub(crate) async fn erased_spans(connection: &mut PgConnection) -> Result<ErasedSpans, sqlx::Error> {
    let rows = sqlx::query!(
        "select s.from_time, s.until_time, s.row_count, s.digest from oncely.audit_seals as s where s.kind = 'erased' order by s.place"
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.from_time, row.until_time), (row.row_count, row.digest))).collect())
}

/// Up to when the trail was dropped, as its seals say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) until: Option<DateTime<Utc>>,
    /// That is younger than `oncely.cell.audit_floor` allows today.
    pub(crate) within_floor: bool,
}

/// Up to when the trail was dropped.
pub(crate) async fn dropped(connection: &mut PgConnection) -> Result<Dropped, sqlx::Error> {
    sqlx::query_as!(
        Dropped,
        r#"select max(s.until_time) as "until",
            coalesce(max(s.until_time) > clock_timestamp() - (select c.audit_floor from oncely.cell as c), false) as "within_floor!"
        from oncely.audit_seals as s
        where s.kind = 'dropped'"#
    )
    .fetch_one(connection)
    .await
}

/// What the trail holds now for a span: how many rows, and their hash. Reckoned by this statement, as `oncely.audit_digest` does for
/// the seals (a test compares them): whoever can change rows may have changed that function.
pub(crate) async fn audit_digest(
    connection: &mut PgConnection,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<(i64, Vec<u8>), sqlx::Error> {
    let row = sqlx::query_file!("src/pg/audit_digest.sql", from, until).fetch_one(connection).await?;
    Ok((row.rows, row.digest))
}

/// Rows of the trail of a span, either end open.
pub(crate) async fn audit_count(
    connection: &mut PgConnection,
    from: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select count(*) as "count!" from oncely.audit
        where occurred_at >= coalesce($1::timestamptz, '-infinity') and occurred_at < coalesce($2::timestamptz, 'infinity')"#,
        from,
        until
    )
    .fetch_one(connection)
    .await
}
