//! A private PgBouncer in front of a PostgreSQL server.

use std::process::{Child, Stdio};

use anyhow::Context as _;

use crate::files::Scratch;
use crate::life::User;
use crate::program::Program;
use crate::{Generation, apt, ports, spawner, wait};

/// A PgBouncer.
#[derive(Debug)]
pub struct PgBouncer {
    _scratch: Scratch,
    port: u16,
    child: Child,
}

fn program() -> anyhow::Result<Program> {
    // Not in everybody's PATH.
    Program::in_path("pgbouncer").or_else(|missing| Program::at(&["/usr/sbin/pgbouncer"]).ok_or(missing))
}

impl PgBouncer {
    /// Starts one in front of the server at `url` (a database of a user without password on 127.0.0.1), in transaction mode unless further
    /// lines of its section `[pgbouncer]` say otherwise, with further options of the database. `None` where there is none and none can be installed; says so.
    pub async fn start(url: &str, settings: &str, database: &str) -> anyhow::Result<Option<Self>> {
        Generation::current()?.prepare()?;
        let missing = || program().is_err().then(|| ("PgBouncer".to_owned(), vec!["pgbouncer"]));
        if let Err(failure) = apt::install(missing) {
            eprintln!("skipped, there is no PgBouncer: {}", failure.why);
            return Ok(None);
        }
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
        let mut command = program()?.bound_command(User::Nobody);
        command
            .arg(&file)
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = spawner::spawn(command).context("cannot start pgbouncer")?;
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
