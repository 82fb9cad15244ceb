//! Users of PostgreSQL with some of Oncely's roles and nothing else.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::World;

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
