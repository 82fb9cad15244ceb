//! The record of what people do.

use serde_json::Value;
use sqlx::PgConnection;

/// What a person did.
#[derive(Clone, Debug)]
pub(crate) struct Action<'a> {
    /// Empty where it spans tenants.
    pub(crate) tenant: &'a str,
    pub(crate) verb: &'a str,
    /// Of the operating system.
    pub(crate) user: &'a str,
    pub(crate) filter: &'a Value,
    pub(crate) count: i64,
    pub(crate) reason: Option<&'a str>,
}

/// Records what a person did, in the caller's transaction. The database says who that is, and when.
pub(crate) async fn record_action(
    connection: &mut PgConnection,
    action: &Action<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select oncely.record_action($1, $2, $3, $4, $5, $6)",
        action.tenant,
        action.verb,
        action.filter,
        action.count,
        action.reason,
        action.user
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// The tenant of an action; empty where there are several.
pub(crate) fn one_tenant<'a>(mut tenants: impl Iterator<Item = &'a str>) -> &'a str {
    match tenants.next() {
        Some(first) if tenants.all(|tenant| tenant == first) => first,
        _ => "",
    }
}
