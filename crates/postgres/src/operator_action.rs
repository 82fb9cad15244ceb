//! The record of operators' actions.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

/// An action of an operator.
#[derive(Clone, Debug)]
pub struct Action<'a> {
    /// Empty if the action covers several tenants.
    pub tenant: &'a str,
    pub verb: &'a str,
    /// The operating system's user.
    pub user: &'a str,
    pub filter: &'a Value,
    pub count: i64,
    pub reason: Option<&'a str>,
}

/// Records an action in the caller's transaction. The database adds its user and the time.
pub async fn record_action(connection: &mut PgConnection, action: &Action<'_>) -> sqlx::Result<()> {
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

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActionRow {
    pub tenant: String,
    pub occurred_at: DateTime<Utc>,
    /// The database user, and the operator reported by the client in brackets.
    pub actor: String,
    pub verb: String,
    /// JSON, as PostgreSQL writes it.
    pub filter: String,
    pub count: i64,
    pub reason: Option<String>,
}

/// Lists recent actions, newest first.
pub async fn list_recent_actions(connection: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<ActionRow>> {
    sqlx::query_as!(
        ActionRow,
        // A filter may contain thousands of ids.
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
