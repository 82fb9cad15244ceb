//! A program under test, as a real process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::spawner;

/// How often is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// A process with its output in a file. Dies with this one.
#[derive(Debug)]
pub struct Process {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `program`; stdout and stderr are appended to `log`.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let owned = |text: &&str| (*text).to_owned();
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arguments: Vec<String> = arguments.iter().map(owned).collect();
        let child = spawn(program, &arguments, &environment, log)?;
        Ok(Self { program: program.to_owned(), arguments, environment, log: log.to_owned(), child })
    }

    /// Kills it with -9, reaps it, and starts it again.
    pub fn kill_and_restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        self.child = spawn(&self.program, &self.arguments, &self.environment, &self.log)?;
        Ok(())
    }

    /// Kills it with -9 and reaps it.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Has it a handler for this signal? One that has ended has none.
    #[must_use]
    pub fn catches(&self, signal: Signal) -> bool {
        // proc(5): a mask in hexadecimal digits, whose lowest bit is signal 1.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        caught & (1 << (signal.as_raw() - 1)) != 0
    }

    /// Sends SIGTERM and waits for its end.
    pub async fn terminate(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_for_end(limit).await
    }

    /// Waits for the end of the process, up to `limit`.
    pub async fn wait_for_end(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            let program = self.program.display();
            anyhow::ensure!(start.elapsed() < limit, "{program} ends: not within {limit:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Starts it again after it has ended.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.kill_and_restart()
    }

    /// The program that it runs.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The next time it is started it is this program.
    pub fn become_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The most memory that it has held so far (resident set), in bytes.
    #[must_use]
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// Is it still running?
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    program: &Path,
    arguments: &[String],
    environment: &[(String, String)],
    log: &Path,
) -> anyhow::Result<Child> {
    let file = std::fs::File::options().create(true).append(true).open(log)?;
    let mut command: Command = spawner::bound_command(program);
    command
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    spawner::spawn(command).with_context(|| format!("cannot start {}", program.display()))
}
