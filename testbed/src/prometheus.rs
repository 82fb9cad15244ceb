//! A private Prometheus, and the tool that comes with it. It is no part of what runs in production here, so it is always this machine's
//! own.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::files::Scratch;
use crate::{apt, ports, spawner, wait};

/// A Prometheus with an empty memory.
#[derive(Debug)]
pub struct Prometheus {
    scratch: Scratch,
    port: u16,
    child: Child,
}

/// A program of Debian's package, which is installed where it is missing.
async fn program(name: &'static str) -> anyhow::Result<PathBuf> {
    let missing = || apt::in_path(name).is_none().then(|| ("Prometheus".to_owned(), vec!["prometheus"]));
    // apt-get takes a while.
    let installed = tokio::task::spawn_blocking(move || apt::install(missing)).await?;
    installed.map_err(|failure| {
        anyhow::anyhow!(
            "{} needed, and {}. Install it yourself, or run as root on Debian or Ubuntu, so that its package can be installed",
            failure.missing,
            failure.why
        )
    })?;
    apt::in_path(name).with_context(|| format!("{name} has vanished"))
}

impl Prometheus {
    /// Starts one that scrapes `/metrics` of `targets` (`host:port`) in the job `oncely` and evaluates the rules of a file's text every
    /// second.
    ///
    /// # Errors
    /// When there is none and none can be installed, or when it does not start: says why.
    pub async fn start(targets: &[&str], rules: &str) -> anyhow::Result<Self> {
        Self::start_every(Duration::from_secs(1), targets, rules).await
    }

    /// Starts one that does so at this interval, which is whole seconds.
    ///
    /// # Errors
    /// As [`Prometheus::start`].
    pub async fn start_every(interval: Duration, targets: &[&str], rules: &str) -> anyhow::Result<Self> {
        let every = format!("{}s", interval.as_secs().max(1));
        let program = program("prometheus").await?;
        let scratch = Scratch::new("prometheus")?;
        let port = ports::free_port()?;
        let file = scratch.path().join("prometheus.yml");
        std::fs::write(scratch.path().join("rules.yml"), rules)?;
        std::fs::write(
            &file,
            format!(
                "global: {{scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every}}}\nrule_files: [rules.yml]\n\
                 scrape_configs:\n  - job_name: oncely\n    static_configs: [{{targets: {targets:?}}}]\n"
            ),
        )?;
        let log = std::fs::File::create(scratch.path().join("log"))?;
        let mut command = spawner::bound_command(&program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", scratch.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = spawner::spawn(command).context("cannot start prometheus")?;
        let started = Self { scratch, port, child };
        wait::eventually("Prometheus listens", || async move {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)
        })
        .await
        .with_context(|| std::fs::read_to_string(started.scratch.path().join("log")).unwrap_or_default())?;
        Ok(started)
    }

    /// Where its HTTP interface listens: `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program `promtool`, which checks rules and tests them.
///
/// # Errors
/// When there is none and none can be installed.
pub async fn promtool() -> anyhow::Result<PathBuf> {
    program("promtool").await
}
