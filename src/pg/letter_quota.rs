//! How much of each tenant's dead letters is stored, and how much may be.

use serde::Serialize;
use sqlx::PgConnection;

/// How much of a tenant's letters may be stored, where no operator has said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) letters: i64,
    pub(crate) bytes: i64,
}

/// What is stored of a tenant's letters, and may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TenantUsage {
    pub(crate) tenant: String,
    /// Letters of whose message something is stored.
    pub(crate) letters: i64,
    /// Bytes of their bodies and headers.
    pub(crate) bytes: i64,
    /// Open letters whose message is not stored, as it was counted last.
    pub(crate) left_out: i64,
    pub(crate) most_letters: i64,
    pub(crate) most_bytes: i64,
    /// An operator has said how much.
    pub(crate) own_limit: bool,
}

/// Counts what is stored of each tenant's letters; where one is about to have no more room, closed letters make some. Returns how many
/// did; `None` where somebody else is counting.
pub(crate) async fn count_stored(
    connection: &mut PgConnection,
    quota: Quota,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.count_letters($1, $2)", quota.letters, quota.bytes)
        .fetch_one(connection)
        .await
}

/// Tenants that have letters stored or left out, or a limit of their own: those with most bytes first.
pub(crate) async fn tenant_usages(
    connection: &mut PgConnection,
    quota: Quota,
    limit: i64,
) -> Result<Vec<TenantUsage>, sqlx::Error> {
    sqlx::query_as!(
        TenantUsage,
        r#"select t.tenant as "tenant!", least(coalesce(u.letters, 0) + g.letters, 1e18)::bigint as "letters!",
            least(coalesce(u.bytes, 0) + g.bytes, 1e18)::bigint as "bytes!", coalesce(u.left_out, 0) as "left_out!",
            coalesce(l.letters, $1) as "most_letters!", coalesce(l.letter_bytes, $2) as "most_bytes!",
            l.tenant is not null as "own_limit!"
        from (
            select u.tenant from oncely.letter_usage as u
            union select l.tenant from oncely.tenant_limits as l
            union select s.tenant from oncely.letter_growth as s
        ) as t
        left join oncely.letter_usage as u on u.tenant = t.tenant
        left join oncely.tenant_limits as l on l.tenant = t.tenant
        cross join lateral (
            select coalesce(sum(s.letters), 0) as letters, coalesce(sum(s.bytes), 0) as bytes
            from oncely.letter_growth as s where s.tenant = t.tenant
        ) as g
        order by coalesce(u.bytes, 0) + g.bytes desc, t.tenant
        limit $3"#,
        quota.letters,
        quota.bytes,
        limit
    )
    .fetch_all(connection)
    .await
}

/// A tenant that is over its quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OverQuota {
    pub(crate) tenant: String,
    /// Open letters whose message is not stored, as it was counted last.
    pub(crate) left_out: i64,
}

/// Tenants of which open letters are not stored, those with most of them first.
pub(crate) async fn over_quota(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<OverQuota>, sqlx::Error> {
    sqlx::query_as!(
        OverQuota,
        "select tenant, left_out from oncely.letter_usage where left_out > 0 order by left_out desc, tenant limit $1",
        limit
    )
    .fetch_all(connection)
    .await
}

/// Says how much of a tenant's letters may be stored, on behalf of a person; `None` for what the configuration says. Recorded in the same
/// transaction.
pub(crate) async fn limit_tenant(
    connection: &mut PgConnection,
    tenant: &str,
    (letters, bytes): (Option<i64>, Option<i64>),
    user: &str,
    note: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.limit_tenant($1, $2, $3, $4, $5)", tenant, letters, bytes, user, note)
        .fetch_one(connection)
        .await?;
    Ok(())
}
