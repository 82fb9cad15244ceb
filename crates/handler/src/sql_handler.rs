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
    /// Most bytes of a response as JSON.
    #[doc(hidden)]
    pub response_limit: i64,
    calls: OnceLock<HandlerStatements>,
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
        Self { function, response_limit: response_limit.into(), calls: OnceLock::new() }
    }

    /// Returns the statement that runs it on a whole batch: `$1`.
    pub(super) async fn together(&self, connection: &mut PgConnection) -> Result<SqlStr, sqlx::Error> {
        Ok(safe(&self.statements(connection).await?.together))
    }

    /// Returns the statement that does the same in a transaction of its own, with the claim before it and the records after it.
    pub(super) async fn fresh(&self, connection: &mut PgConnection) -> Result<SqlStr, sqlx::Error> {
        Ok(safe(&self.statements(connection).await?.fresh))
    }

    async fn statements(&self, connection: &mut PgConnection) -> Result<&HandlerStatements, sqlx::Error> {
        if let Some(calls) = self.calls.get() {
            return Ok(calls);
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
            .calls
            .get_or_init(|| HandlerStatements { together: row.together.into(), fresh: row.fresh.into() }))
    }
}

/// Marks a statement as safe: PostgreSQL has written it, and quoted the one name in it.
fn safe(statement: &Arc<str>) -> SqlStr {
    AssertSqlSafe(Arc::clone(statement)).into_sql_str()
}
