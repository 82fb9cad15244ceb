//! Users of PostgreSQL with some of Oncely's roles and nothing else.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::World;

/// Logins of the programs that tests start, with the roles of the book; a worker's has what the handlers in `app` need besides.
pub(super) const OF_PROGRAMS: &str = "
do $$
declare
    program text;
begin
    foreach program in array array['worker', 'relay', 'operator'] loop
        begin
            -- Users are the server's: another test process may make them, too.
            execute format('create role program_%1$s login password ''secret'' in role oncely_%1$s', program);
        exception
            when duplicate_object or unique_violation then
                null;
        end;
    end loop;
end
$$;
grant usage on schema app to program_worker;
grant select, insert, update, delete on all tables in schema app to program_worker;
alter default privileges in schema app grant select, insert, update, delete on tables to program_worker;
alter default privileges in schema app grant usage on sequences to program_worker";

/// The login of a program, where it is one that has a role of its own.
pub(super) fn of_program(name: &str, arguments: &[&str]) -> Option<&'static str> {
    let program = if name == "oncely" { arguments.first().copied() } else { Some(name) };
    match program {
        Some("worker" | "gateway") => Some("program_worker"),
        Some("relay") => Some("program_relay"),
        Some("console") => Some("program_operator"),
        _ => None,
    }
}

impl World {
    /// Lets the workers that tests start use what is in another schema than `app` now.
    pub(crate) async fn open_schema(&mut self, schema: &str) {
        let grants = format!(
            "grant usage on schema {schema} to program_worker;
             grant select, insert, update, delete on all tables in schema {schema} to program_worker;
             grant usage on all sequences in schema {schema} to program_worker"
        );
        sqlx::raw_sql(AssertSqlSafe(grants)).execute(&mut self.sql).await.expect("grants");
    }
}

/// Returns the user that the first of some hosts' URLs names.
pub(super) fn user(urls: &str) -> String {
    let first = urls.split_whitespace().next().unwrap_or_default();
    url::Url::parse(first).expect("url").username().to_owned()
}

/// Returns the same database, on each of the hosts, for one of the logins of [`OF_PROGRAMS`].
pub(super) fn url(urls: &str, login: &str) -> String {
    let for_login = |url: &str| {
        let mut url = url::Url::parse(url).expect("url");
        url.set_username(login).expect("a user");
        url.set_password(Some("secret")).expect("a password");
        url.to_string()
    };
    urls.split_whitespace().map(for_login).collect::<Vec<_>>().join(" ")
}

/// A user of PostgreSQL.
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Login {
    /// A user with a name of its own who is a member of this role.
    pub(crate) async fn create(world: &mut World, role: &str) -> Self {
        let name = format!("{role}_{}", uuid::Uuid::new_v4().simple());
        let create = format!("create role {name} login password 'secret' in role {role}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut world.sql).await.expect("role");
        let (_, rest) = world.database.url().split_once('@').expect("url");
        let url = format!("postgres://{name}:secret@{rest}");
        Self { name, url }
    }

    /// A session of this user.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connection")
    }

    /// The environment of a program that logs in as this user.
    pub(crate) fn environment(&self) -> [(&'static str, String); 1] {
        [("DATABASE_URL", self.url.clone())]
    }

    /// Users are the server's, not the database's.
    pub(crate) async fn drop_now(self, world: &mut World) {
        let drop = format!("drop owned by {0}; drop role {0}", self.name);
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut world.sql).await.expect("dropped");
    }
}
