//! `cargo xtask test`: the whole suite on real servers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::Instant;

use anyhow::Context as _;
use testbed::{Generation, Servers};

use crate::process;
use crate::servers::Choice;

/// How many tests run at the same time, for cargo's test harness.
const THREADS: &str = "RUST_TEST_THREADS";

/// As many as whoever calls says, else three for each core.
fn threads() -> anyhow::Result<String> {
    match std::env::var(THREADS) {
        Ok(said) => Ok(said),
        Err(_) => Ok((std::thread::available_parallelism()?.get() * 3).to_string()),
    }
}

/// Starts the servers once for all tests, runs them, and fails where one failed or was ignored.
pub(crate) async fn run(choice: &Choice, arguments: &[String]) -> anyhow::Result<()> {
    choice.apply()?;
    let scratch = testbed::keep_scratch_in_memory();
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let servers = Servers::start().await?;
    let versions = servers.versions().await?;
    eprintln!("{versions}");
    let urls = servers.urls().clone();
    let started = Instant::now();
    let mut command = process::cargo(&process::root());
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(arguments)
        .env("DATABASE_URL", urls.postgres)
        .env("AMQP_URL", urls.rabbitmq)
        .env("REDIS_URL", urls.redis)
        // Most of the time a test waits for a server: three a core keep the machine at work.
        .env(THREADS, threads()?)
        // Some tests start servers of their own.
        .env(testbed::SCRATCH, scratch)
        .env(Generation::VARIABLE, Generation::current()?.name())
        .stdout(Stdio::piped());
    let (success, tally) = tokio::task::spawn_blocking(move || -> anyhow::Result<(bool, Tally)> {
        let mut child = command.spawn().context("cannot run cargo test")?;
        let mut tally = Tally::default();
        if let Some(output) = child.stdout.take() {
            let mut out = std::io::stdout();
            for line in BufReader::new(output).lines() {
                let line = line?;
                tally.count(&line);
                writeln!(out, "{line}")?;
            }
        }
        Ok((child.wait()?.success(), tally))
    })
    .await??;
    drop(servers);
    let seconds = started.elapsed().as_secs();
    let mut out = std::io::stdout();
    writeln!(out, "\n{seconds} s in all, on {versions}")?;
    writeln!(out, "{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.ignored)?;
    anyhow::ensure!(success, "a test failed");
    anyhow::ensure!(
        tally.ignored == 0,
        "{} tests are ignored; a test that is not run proves nothing",
        tally.ignored
    );
    Ok(())
}

/// The sums of cargo's closing lines.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Tally {
    /// `test result: ok. 87 passed; 0 failed; 0 ignored; …`
    fn count(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for part in result.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(number), Some(what)) =
                (words.next().and_then(|n| n.parse::<u32>().ok()), words.next())
            {
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}
