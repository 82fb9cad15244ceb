//! Lists and changes the rights to consume, emit and read, for operators.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// A filter of rights; `None` matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RightFilter {
    pub login: Option<String>,
    /// `consume`, `requeue`, `emit` or `read`.
    pub verb: Option<&'static str>,
    /// A consumer, a queue or an exchange; empty for `read`.
    pub object: Option<String>,
    pub tenant: Option<String>,
}

/// A login's right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RightRow {
    pub login: String,
    pub verb: String,
    pub object: String,
    pub tenant: String,
    pub granted_at: DateTime<Utc>,
    pub granted_by: String,
    /// Whether the server knows the login.
    pub login_exists: bool,
    /// Whether it is a member of the role that may call the functions, or read the tables.
    pub has_role: bool,
}

/// Lists rights, by login.
pub async fn list_rights(connection: &mut PgConnection, filter: &RightFilter) -> sqlx::Result<Vec<RightRow>> {
    sqlx::query_file_as!(
        RightRow,
        "src/rights_list.sql",
        filter.login.as_deref(),
        filter.verb,
        filter.object.as_deref(),
        filter.tenant.as_deref()
    )
    .fetch_all(connection)
    .await
}

/// Grants a right; returns false if the login already had it.
pub async fn grant_right(
    connection: &mut PgConnection,
    login: &str,
    verb: &str,
    object: &str,
    tenant: &str,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select oncely.grant_right($1, $2, $3, $4) as "written!""#,
        login,
        verb,
        object,
        tenant
    )
    .fetch_one(connection)
    .await
}

/// Revokes all rights of a login that match; returns their number.
pub async fn revoke_rights(
    connection: &mut PgConnection,
    login: &str,
    filter: &RightFilter,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"select oncely.revoke_rights($1, $2, $3, $4) as "gone!""#,
        login,
        filter.verb,
        filter.object.as_deref(),
        filter.tenant.as_deref()
    )
    .fetch_one(connection)
    .await
}
