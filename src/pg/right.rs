//! Who may consume, emit and read what, as operators see it and change it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// Which rights; `None` means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RightFilter {
    pub(crate) login: Option<String>,
    /// `consume`, `requeue`, `emit` or `read`.
    pub(crate) verb: Option<&'static str>,
    /// A consumer, a queue or an exchange; empty for `read`.
    pub(crate) object: Option<String>,
    pub(crate) tenant: Option<String>,
}

/// A login's right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RightRow {
    pub(crate) login: String,
    pub(crate) verb: String,
    pub(crate) object: String,
    pub(crate) tenant: String,
    pub(crate) granted_at: DateTime<Utc>,
    pub(crate) granted_by: String,
    /// The server knows the login.
    pub(crate) login_exists: bool,
    /// It is a member of the role that may call the functions, or read the tables.
    pub(crate) has_role: bool,
}

/// Rights, by login.
pub(crate) async fn rights(
    connection: &mut PgConnection,
    filter: &RightFilter,
) -> Result<Vec<RightRow>, sqlx::Error> {
    sqlx::query_file_as!(
        RightRow,
        "src/pg/rights_list.sql",
        filter.login.as_deref(),
        filter.verb,
        filter.object.as_deref(),
        filter.tenant.as_deref()
    )
    .fetch_all(connection)
    .await
}

/// Grants a right; `false` where the login had it already.
pub(crate) async fn grant_right(
    connection: &mut PgConnection,
    login: &str,
    verb: &str,
    object: &str,
    tenant: &str,
) -> Result<bool, sqlx::Error> {
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

/// Takes back all rights of a login that match; returns how many.
pub(crate) async fn revoke_rights(
    connection: &mut PgConnection,
    login: &str,
    filter: &RightFilter,
) -> Result<i64, sqlx::Error> {
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
