//! A SQL function at work: with the statements that call it.

use std::sync::{Arc, OnceLock};

use sqlx::{AssertSqlSafe, PgConnection, SqlSafeStr as _, SqlStr};

use super::SqlFunction;

/// A SQL function and its statements, which PostgreSQL writes when they are needed first. A name with a schema stands for the same
/// function ever after, and a prepared statement follows when that is replaced.
#[derive(Debug)]
pub(crate) struct SqlHandler {
    pub(crate) function: SqlFunction,
    calls: OnceLock<Calls>,
}

/// The statements, with the function's name in them.
#[derive(Clone, Debug)]
struct Calls {
    together: Arc<str>,
    fresh: Arc<str>,
}

impl SqlHandler {
    pub(crate) fn new(function: SqlFunction) -> Self {
        Self { function, calls: OnceLock::new() }
    }

    /// Runs it on a whole batch: `$1`.
    pub(super) async fn together(&self, connection: &mut PgConnection) -> Result<SqlStr, sqlx::Error> {
        Ok(safe(&self.calls(connection).await?.together))
    }

    /// The same as a transaction of its own, with the claim before it and what is recorded after it.
    pub(super) async fn fresh(&self, connection: &mut PgConnection) -> Result<SqlStr, sqlx::Error> {
        Ok(safe(&self.calls(connection).await?.fresh))
    }

    async fn calls(&self, connection: &mut PgConnection) -> Result<&Calls, sqlx::Error> {
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
        Ok(self.calls.get_or_init(|| Calls { together: row.together.into(), fresh: row.fresh.into() }))
    }
}

/// Written by PostgreSQL, which quotes the one name in it.
fn safe(statement: &Arc<str>) -> SqlStr {
    AssertSqlSafe(Arc::clone(statement)).into_sql_str()
}
