//! A private Redis (or Valkey) server.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::files::{Scratch, scratch_folder};
use crate::life::User;
use crate::{install, ports, spawner, wait};

/// A Redis server of our own without persistence: killed means empty.
#[derive(Debug)]
pub struct Redis {
    scratch: Scratch,
    port: u16,
    bus_port: u16,
    /// Further options of its command line.
    options: Vec<String>,
    child: Option<Child>,
}

impl Redis {
    /// Starts an empty server.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts an empty server with further options, such as `--cluster-enabled yes`. Of a file outside the scratch folders that an option
    /// names, it reads a copy: in the root of another release, a server finds only the scratch folders at their paths.
    pub async fn start_with(options: &[&str]) -> anyhow::Result<Self> {
        install::ensure(&[install::Server::Redis])?;
        let scratch = Scratch::new("redis")?;
        let copied = |option: &&str| -> anyhow::Result<String> {
            let file = Path::new(option);
            let is_seen = !file.is_absolute() || !file.is_file() || file.starts_with(scratch_folder());
            let Some(name) = file.file_name().filter(|_| !is_seen) else {
                return Ok((*option).to_owned());
            };
            let copy = scratch.path().join(name);
            std::fs::copy(file, &copy).with_context(|| format!("cannot copy {option}"))?;
            Ok(copy.display().to_string())
        };
        let options = options.iter().map(copied).collect::<anyhow::Result<_>>()?;
        let mut server = Self {
            scratch,
            port: ports::free_port()?,
            // Of a node of a cluster; by default 10,000 above the other one, which is beyond the last port for every fifth of them.
            bus_port: ports::free_port()?,
            options,
            child: None,
        };
        server.restart().await?;
        Ok(server)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// Starts the server (again), empty, on the same port and waits until it answers.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        let mut command = install::Server::Redis.program()?.bound_command(User::Same);
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "local"])
            .arg("--port")
            .arg(self.port.to_string())
            .arg("--cluster-port")
            .arg(self.bus_port.to_string())
            .arg("--dir")
            .arg(self.scratch.path())
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(spawner::spawn(command).context("cannot start redis-server")?);
        let client = redis::Client::open(self.url())?;
        wait::eventually_within(Duration::from_secs(20), "Redis answers", || async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            match redis::cmd("PING").query_async::<()>(&mut connection).await {
                // It answers those who have a password.
                Err(error) if error.code() == Some("NOAUTH") => Ok(()),
                answer => answer,
            }
        })
        .await
    }

    /// Kills it with -9; what it held is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
