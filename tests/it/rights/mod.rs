//! What a login of each role may do, and what it can't however it tries.

mod attacks;
mod bounds;
mod grants;
mod servers;
mod statements;
mod tenants;
mod walk;
mod work;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::World;

/// The SQLSTATE of what a statement met; `None` where it was done.
async fn code_of(sql: &mut PgConnection, statement: &str) -> Option<String> {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(sql).await;
    let error = done.err()?;
    Some(match error.as_database_error().and_then(|error| error.code()) {
        Some(code) => code.into_owned(),
        None => error.to_string(),
    })
}

/// Runs statements as the schema's owner.
async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut world.sql).await.expect(statements);
}

/// All rows of all tables, as one text.
pub(crate) async fn state(world: &mut World) -> String {
    let tables = "select string_agg(format('select %L || coalesce(md5(string_agg(t::text, E''\\n'' order by t::text)), '''') from oncely.%I as t', c.relname, c.relname), ' union all ')
         from pg_class as c where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition";
    let query = world.text(tables).await.expect("tables");
    let query = format!("select string_agg(s, ' ' order by s) from ({query}) as t (s)");
    world.text(&query).await.expect("state")
}
