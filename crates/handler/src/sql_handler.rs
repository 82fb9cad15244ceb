//! A SQL function with the statements that call it.

use std::sync::{Arc, OnceLock};

use sqlx::{AssertSqlSafe, PgConnection, SqlSafeStr as _, SqlStr};

use super::SqlFunction;

/// A SQL function and its statements, which PostgreSQL writes at their first use. A name with a schema always names the same function, and
/// a prepared statement follows when that is replaced.
#[derive(Debug)]
pub struct SqlHandler {
    #[doc(hidden)]
    pub function: SqlFunction,
    /// Maximum size in bytes of a response as JSON.
    #[doc(hidden)]
    pub response_limit: i64,
    statements: OnceLock<HandlerStatements>,
}

/// The statements, with the function's name in them.
#[derive(Clone, Debug)]
struct HandlerStatements {
    together: Arc<str>,
    fresh: Arc<str>,
}

impl SqlHandler {
    #[doc(hidden)]
    pub fn new(function: SqlFunction, response_limit: u32) -> Self {
        Self { function, response_limit: response_limit.into(), statements: OnceLock::new() }
    }

    /// Returns the statement that runs the function on a whole batch: `$1`. Queries the database at the first call.
    pub(super) async fn statement_for_batch(
        &self,
        connection: &mut PgConnection,
    ) -> Result<SqlStr, sqlx::Error> {
        Ok(mark_safe(&self.load_statements(connection).await?.together))
    }

    /// Returns the statement that claims fresh keys, runs the function on their batch, records and commits. Queries the database at the
    /// first call.
    pub(super) async fn statement_for_fresh(
        &self,
        connection: &mut PgConnection,
    ) -> Result<SqlStr, sqlx::Error> {
        Ok(mark_safe(&self.load_statements(connection).await?.fresh))
    }

    /// Returns the statements that call the function; at the first call, loads them from the database, which writes them.
    async fn load_statements(
        &self,
        connection: &mut PgConnection,
    ) -> Result<&HandlerStatements, sqlx::Error> {
        if let Some(statements) = self.statements.get() {
            return Ok(statements);
        }
        let SqlFunction { name, batch, .. } = &self.function;
        let row = sqlx::query!(
            r#"select c.together as "together!", c.fresh as "fresh!" from oncely.handler_calls($1::text, $2::boolean) as c"#,
            name,
            batch
        )
        .fetch_one(connection)
        .await?;
        Ok(self
            .statements
            .get_or_init(|| HandlerStatements { together: row.together.into(), fresh: row.fresh.into() }))
    }
}

/// Marks a statement as safe: PostgreSQL has written it, and quoted the one name in it.
fn mark_safe(statement: &Arc<str>) -> SqlStr {
    AssertSqlSafe(Arc::clone(statement)).into_sql_str()
}
