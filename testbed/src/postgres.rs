//! A private PostgreSQL server.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};

use crate::files::Scratch;
use crate::life::{NOBODY, User};
use crate::program::Program;
use crate::{apt, install, ports, spawner, wait};

/// A PostgreSQL server of our own, durable as by default, that can be killed and started again.
#[derive(Debug)]
pub struct Postgres {
    pub(crate) scratch: Scratch,
    pub(crate) port: u16,
    pub(crate) child: Option<Child>,
    pub(crate) settings: Vec<String>,
}

impl Postgres {
    /// Creates a cluster in a scratch folder and starts it. `settings` are passed as `-c name=value`.
    pub async fn start(settings: &[&str]) -> anyhow::Result<Self> {
        install::ensure(&[install::Server::Postgres])?;
        let scratch = Scratch::new("postgres")?;
        if apt::is_root() {
            std::os::unix::fs::chown(scratch.path(), Some(NOBODY), Some(NOBODY))?;
        }
        let mut command = Program::postgres("initdb")?.command(User::Nobody);
        command
            .arg("-D")
            .arg(scratch.path().join("data"))
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
            .current_dir(scratch.path())
            .stdin(Stdio::null());
        let output = command.output().context("cannot run initdb")?;
        anyhow::ensure!(
            output.status.success(),
            "initdb failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut server = Self {
            scratch,
            port: ports::free_port()?,
            child: None,
            settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        };
        server.restart().await?;
        Ok(server)
    }

    /// URL of the `postgres` database, as superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts the server (again) on the same port with the same data and waits until it answers. A server that was killed
    /// may leave a backend that holds on to its shared memory for a moment; a start that fails for it is tried again.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        let url = self.url();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            self.child = Some(self.spawn()?);
            let answers = wait::eventually_within(Duration::from_secs(5), "PostgreSQL answers", || async {
                let mut connection = PgConnection::connect(&url).await?;
                sqlx::query("select 1").execute(&mut connection).await?;
                connection.close().await
            })
            .await;
            let ended = match &mut self.child {
                Some(child) => child.try_wait()?.is_some(),
                None => true,
            };
            match answers {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                // Still starting (a long recovery): go on waiting for this one.
                Err(_) if !ended => {
                    wait::eventually_within(Duration::from_secs(60), "PostgreSQL answers", || async {
                        PgConnection::connect(&url).await?.close().await
                    })
                    .await?;
                    return Ok(());
                }
                Err(_) => {}
            }
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.path().join("server.log"))?;
        let mut command = Program::postgres("postgres")?.bound_command(User::Nobody);
        command
            .arg("-D")
            .arg(self.scratch.path().join("data"))
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"])
            .arg("-c")
            .arg(format!("port={}", self.port))
            .arg("-c")
            .arg(format!("unix_socket_directories={}", self.scratch.path().display()))
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        for setting in &self.settings {
            command.arg("-c").arg(setting);
        }
        spawner::spawn(command).context("cannot start postgres")
    }

    /// Writes a file into its data folder, for it alone to read: certificates, keys, `pg_hba.conf`.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.scratch.path().join("data").join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        if apt::is_root() {
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    /// Process id of the postmaster, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the postmaster with -9 and reaps it: its backends end at once, its memory is lost, its files stay.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
