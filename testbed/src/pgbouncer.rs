//! A private PgBouncer in front of a PostgreSQL server.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::files::Scratch;
use crate::postgres::as_nobody;
use crate::{install, keeper, ports, wait};

/// A PgBouncer in transaction mode.
#[derive(Debug)]
pub struct PgBouncer {
    _scratch: Scratch,
    port: u16,
    child: Child,
}

fn program() -> Option<PathBuf> {
    install::in_path("pgbouncer")
        .or_else(|| Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|path| path.exists()))
}

impl PgBouncer {
    /// Starts one in front of the server at `url` (a database of a user without password on 127.0.0.1), with further lines of its
    /// section `[pgbouncer]` and further options of the database. `None` where there is none and none can be installed; says so.
    pub async fn start(url: &str, settings: &str, database: &str) -> anyhow::Result<Option<Self>> {
        let missing = || program().is_none().then(|| ("PgBouncer".to_owned(), vec!["pgbouncer"]));
        if let Err(failure) = install::install(missing) {
            eprintln!("skipped, there is no PgBouncer: {}", failure.why);
            return Ok(None);
        }
        let program = program().context("pgbouncer has vanished")?;
        let server: url::Url = url.parse()?;
        let scratch = Scratch::new("pgbouncer")?;
        let port = ports::free_port()?;
        let file = scratch.path().join("pgbouncer.ini");
        let upstream = server.port().context("a port")?;
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={upstream} user={} {database}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n{settings}\n",
            server.username()
        );
        std::fs::write(&file, text)?;
        let log = std::fs::File::create(scratch.path().join("log"))?;
        let mut command: Command = keeper::bound_command(&program);
        command
            .arg(&file)
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        as_nobody(&mut command);
        let child = keeper::spawn(command).context("cannot start pgbouncer")?;
        let started = Self { _scratch: scratch, port, child };
        wait::eventually("PgBouncer listens", || async move {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)
        })
        .await?;
        Ok(Some(started))
    }

    /// The URL of the same database through it.
    pub fn through(&self, url: &str) -> anyhow::Result<String> {
        let mut through: url::Url = url.parse()?;
        through.set_port(Some(self.port)).map_err(|()| anyhow::anyhow!("no port in {url}"))?;
        Ok(through.to_string())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
