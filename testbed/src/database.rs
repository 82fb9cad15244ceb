//! A database of its own for one test or one trial.

use std::path::Path;

use anyhow::Context as _;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// A fresh, empty database on a given server; [`Database::drop_now`] removes it.
#[derive(Clone, Debug)]
pub struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    /// Creates a database with a random name on the server that `server_url` names.
    pub async fn create(server_url: &str) -> anyhow::Result<Self> {
        Self::create_from(server_url, "template1").await
    }

    /// A copy with a random name. Nobody may be connected to this one meanwhile.
    pub async fn copy(&self) -> anyhow::Result<Self> {
        Self::create_from(&self.server, &self.name).await
    }

    /// Returns a template, for [`Database::copy`], that `fill` makes once for each `key`, whichever of the processes that need it asks first.
    /// It stays on the server.
    pub async fn template(
        server_url: &str,
        key: u64,
        fill: impl AsyncFnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let template = Self::named(server_url, format!("oncely_template_{key:016x}"))?;
        let name = &template.name;
        let mut connection =
            PgConnection::connect(server_url).await.context("cannot connect to PostgreSQL")?;
        // Until this session's end.
        sqlx::query("select pg_advisory_lock($1)").bind(key.cast_signed()).execute(&mut connection).await?;
        let is_filled = "select exists (select from pg_database where datname = $1 and datistemplate)";
        if !sqlx::query_scalar::<_, bool>(is_filled).bind(name).fetch_one(&mut connection).await? {
            // A process may have died while it filled it. The name is ours: hexadecimal digits behind a fixed prefix.
            for statement in
                [format!("drop database if exists {name} with (force)"), format!("create database {name}")]
            {
                sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await?;
            }
            fill(&template).await?;
            sqlx::query(AssertSqlSafe(format!("alter database {name} is_template true")))
                .execute(&mut connection)
                .await?;
        }
        connection.close().await?;
        Ok(template)
    }

    fn named(server_url: &str, name: String) -> anyhow::Result<Self> {
        let (front, _) = server_url.rsplit_once('/').context("the PostgreSQL URL names no database")?;
        Ok(Self { server: server_url.to_owned(), url: format!("{front}/{name}"), name })
    }

    async fn create_from(server_url: &str, template: &str) -> anyhow::Result<Self> {
        let name = format!("oncely_{}", uuid::Uuid::new_v4().simple());
        let mut connection =
            PgConnection::connect(server_url).await.context("cannot connect to PostgreSQL")?;
        // The names are ours: hexadecimal digits behind a fixed prefix.
        sqlx::query(AssertSqlSafe(format!("create database {name} template {template}")))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Self::named(server_url, name)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens a connection to it.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// Runs the migrations of a folder, whatever is compiled in; returns the connection.
    pub async fn migrate(&self, folder: &Path) -> anyhow::Result<PgConnection> {
        let mut connection = self.connect().await?;
        // A schema and a table of the same names as in sqlx.toml, since a migrator that is made at run time does not read that file.
        sqlx::query("create schema oncely").execute(&mut connection).await?;
        let mut migrator = Migrator::new(folder).await?;
        migrator.dangerous_set_table_name("oncely._sqlx_migrations");
        migrator.run(&mut connection).await?;
        Ok(connection)
    }

    /// Drops the database, ending the sessions in it.
    pub async fn drop_now(self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.server).await?;
        sqlx::query(AssertSqlSafe(format!("drop database if exists {} with (force)", self.name)))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(())
    }
}
