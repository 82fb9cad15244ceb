//! The record of what people do.

use chrono::{DateTime, Utc};
use serde::Serialize;
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

/// What a person did, as it is recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ActionRow {
    pub(crate) tenant: String,
    pub(crate) occurred_at: DateTime<Utc>,
    /// The database's user, and in brackets what the client said of the person.
    pub(crate) actor: String,
    pub(crate) verb: String,
    /// JSON, as PostgreSQL writes it.
    pub(crate) filter: String,
    pub(crate) count: i64,
    pub(crate) reason: Option<String>,
}

/// What people did lately, the newest first.
pub(crate) async fn recent_actions(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<ActionRow>, sqlx::Error> {
    sqlx::query_as!(
        ActionRow,
        // A filter may name thousands of ids.
        r#"select tenant, oncely.bounded(occurred_at) as "occurred_at!", actor, verb, left(filter::text, 1000) as "filter!", count,
            left(reason, 1000) as reason
        from oncely.operator_actions
        order by occurred_at desc, id desc
        limit $1"#,
        limit
    )
    .fetch_all(connection)
    .await
}
