//! A streaming standby of a private PostgreSQL, for failovers that lose commits.

use std::process::Stdio;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use crate::files::Scratch;
use crate::life::{NOBODY, User};
use crate::program::Program;
use crate::{Postgres, apt, ports, wait};

impl Postgres {
    /// Starts an asynchronous standby of this server, without a slot, and waits until it streams.
    pub async fn standby(&self) -> anyhow::Result<Self> {
        let scratch = Scratch::new("standby")?;
        if apt::is_root() {
            std::os::unix::fs::chown(scratch.path(), Some(NOBODY), None)?;
        }
        let mut command = Program::postgres("pg_basebackup")?.command(User::Nobody);
        command
            .arg("--pgdata")
            .arg(scratch.path().join("data"))
            .args(["--dbname", &self.url()])
            .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"])
            .current_dir(scratch.path())
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        anyhow::ensure!(
            output.status.success(),
            "pg_basebackup failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut standby =
            Self { scratch, port: ports::free_port()?, child: None, settings: self.settings.clone() };
        standby.restart().await?;
        self.wait_for_standby().await?;
        Ok(standby)
    }

    /// From now on a commit is told only when a standby has it as well: what is promoted has all that anybody knows of.
    pub async fn make_commits_wait(&self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        sqlx::query("alter system set synchronous_standby_names = '*'").execute(&mut connection).await?;
        sqlx::query("select pg_reload_conf()").execute(&mut connection).await?;
        let connection = tokio::sync::Mutex::new(connection);
        wait::eventually("the standby is synchronous", || async {
            let mut connection = connection.lock().await;
            let there: bool = sqlx::query_scalar(
                "select exists (select from pg_stat_replication where sync_state = 'sync')",
            )
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| error.to_string())?;
            if there { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await
    }

    /// Waits until a standby has flushed all that is committed here.
    pub async fn wait_for_standby(&self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        let target: String =
            sqlx::query_scalar("select pg_current_wal_insert_lsn()::text").fetch_one(&mut connection).await?;
        let connection = tokio::sync::Mutex::new(connection);
        wait::eventually("the standby has everything", || async {
            let mut connection = connection.lock().await;
            let there: bool = sqlx::query_scalar(
                "select exists (select from pg_stat_replication where flush_lsn >= $1::pg_lsn)",
            )
            .bind(&target)
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| error.to_string())?;
            if there { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await
    }

    /// Cuts this standby off from its primary: from now on it misses every commit. (A frozen receiver would lose nothing:
    /// what is in its socket's buffer arrives later.)
    pub async fn cut_off(&self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        sqlx::query("alter system set primary_conninfo = ''").execute(&mut connection).await?;
        sqlx::query("select pg_reload_conf()").execute(&mut connection).await?;
        let connection = tokio::sync::Mutex::new(connection);
        wait::eventually_within(Duration::from_secs(30), "the standby no longer receives", || async {
            let mut connection = connection.lock().await;
            let receiving: bool = sqlx::query_scalar("select exists (select from pg_stat_wal_receiver)")
                .fetch_one(&mut *connection)
                .await
                .map_err(|error| error.to_string())?;
            if receiving { Err("it still does".to_owned()) } else { Ok(()) }
        })
        .await
    }

    /// Starts this server again on the port of another one, which must be down: clients of that one now reach this one.
    pub async fn take_port_of(&mut self, other: &Self) -> anyhow::Result<()> {
        self.port = other.port;
        self.restart().await
    }

    /// Makes a standby a primary, on a timeline of its own.
    pub async fn promote(&self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        let promoted: bool =
            sqlx::query_scalar("select pg_promote(true, 60)").fetch_one(&mut connection).await?;
        anyhow::ensure!(promoted, "the standby was not promoted within a minute");
        Ok(())
    }
}
