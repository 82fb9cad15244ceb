//! The seals of the audit trail, and the rows of the spans that they seal.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// A sealed span of the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSpan {
    pub until: DateTime<Utc>,
    pub(crate) rows: i64,
    pub hash: Vec<u8>,
}

/// Seals the next closed span of the trail; `None` if no unsealed span is closed yet.
pub async fn seal_audit(connection: &mut PgConnection) -> sqlx::Result<Option<SealedSpan>> {
    let row = sqlx::query!("select s.until_time, s.row_count, s.hash from oncely.seal_audit() as s")
        .fetch_one(connection)
        .await?;
    Ok(match (row.until_time, row.row_count, row.hash) {
        (Some(until), Some(rows), Some(hash)) => Some(SealedSpan { until, rows, hash }),
        _ => None,
    })
}

/// A seal, and the result of checking it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seal {
    /// The position in the chain.
    pub place: i64,
    /// `rows`, `erased` or `dropped`.
    pub kind: String,
    /// The start of the span.
    pub from_time: DateTime<Utc>,
    /// The end of the span, exclusive.
    pub until_time: DateTime<Utc>,
    /// Number of rows in the span when it was sealed.
    pub row_count: i64,
    /// The hash of these rows.
    #[serde(skip)]
    pub digest: Vec<u8>,
    /// The seal's hash.
    #[serde(skip)]
    pub hash: Vec<u8>,
    /// Whether the hash is that of the seal's contents.
    pub is_whole: bool,
    /// Whether it names the hash of the previous seal, at the previous position.
    pub is_linked: bool,
    /// Whether the seal was made after the end of its span.
    pub is_in_time: bool,
    /// Whether the dropped span was older than the lowest possible `oncely.cell.audit_floor`.
    pub is_past_floor: bool,
}

/// Sets the text formats used for sealing, for the rest of the session: to be called before [`list_seals`] and [`compute_audit_digest`].
pub async fn set_seal_formats(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!(
        "select set_config('timezone', 'UTC', false) as timezone, set_config('datestyle', 'ISO, YMD', false) as datestyle,
             set_config('bytea_output', 'hex', false) as bytea_output"
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Lists up to `limit` seals after a position of the chain, in their order.
pub async fn list_seals(connection: &mut PgConnection, after: i64, limit: i64) -> sqlx::Result<Vec<Seal>> {
    sqlx::query_file_as!(Seal, "src/seals_list.sql", after, limit).fetch_all(connection).await
}

/// Number of rows and their hash, for each span that a tenant was erased from.
pub type ErasedSpans = HashMap<(DateTime<Utc>, DateTime<Utc>), (i64, Vec<u8>)>;

/// Reads the spans from which a tenant was erased; the last erasure counts.
pub async fn read_erased_spans(connection: &mut PgConnection) -> sqlx::Result<ErasedSpans> {
    let rows = sqlx::query!(
        "select s.from_time, s.until_time, s.row_count, s.digest from oncely.audit_seals as s where s.kind = 'erased' order by s.place"
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.from_time, row.until_time), (row.row_count, row.digest))).collect())
}

/// The end of the dropped part of the trail, according to its seals.
#[derive(Clone, Copy, Debug, Default)]
pub struct DroppedSpan {
    pub until: Option<DateTime<Utc>>,
    /// Whether that end is younger than `oncely.cell.audit_floor` allows today.
    pub within_floor: bool,
}

/// Reads the end of the dropped part of the trail.
pub async fn read_dropped_span(connection: &mut PgConnection) -> sqlx::Result<DroppedSpan> {
    sqlx::query_as!(
        DroppedSpan,
        r#"select max(s.until_time) as "until",
            coalesce(max(s.until_time) > clock_timestamp() - (select c.audit_floor from oncely.cell as c), false) as "within_floor!"
        from oncely.audit_seals as s
        where s.kind = 'dropped'"#
    )
    .fetch_one(connection)
    .await
}

/// Computes the current number of rows of a span, and their hash, in this statement in the same way as `oncely.audit_digest` does
/// for the seals (a test compares them): a role that can change rows may also have changed that function.
pub async fn compute_audit_digest(
    connection: &mut PgConnection,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
) -> sqlx::Result<(i64, Vec<u8>)> {
    let row = sqlx::query_file!("src/audit_digest.sql", from, until).fetch_one(connection).await?;
    Ok((row.rows, row.digest))
}

/// Counts the rows of a span of the trail; either end may be open.
pub async fn count_audit(
    connection: &mut PgConnection,
    from: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"select count(*) as "count!" from oncely.audit
        where occurred_at >= coalesce($1::timestamptz, '-infinity') and occurred_at < coalesce($2::timestamptz, 'infinity')"#,
        from,
        until
    )
    .fetch_one(connection)
    .await
}
