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
    for failure in &tally.failures {
        writeln!(out, "\nFAILED {}", failure.join("\n    "))?;
    }
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

/// How many lines of each panic are repeated at the end: where it was, and the values that the test compared.
const REPEATED: usize = 12;

/// The sums of cargo's closing lines, and the failures, to be repeated where a reader of a long log looks first.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
    /// A failed test's name, and the first lines of each panic: a test of panics has some of its own before the one that it failed with.
    failures: Vec<Vec<String>>,
    section: Section,
}

/// The part of cargo's output that a line belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    #[default]
    Progress,
    /// A failed test's output, before it panics, and the backtrace of a panic.
    Output,
    /// The lines of a panic that are still to be kept.
    Panic(usize),
}

impl Tally {
    fn count(&mut self, line: &str) {
        self.note_failure(line);
        self.add_sums(line);
    }

    /// Keeps the name of `---- name stdout ----`, and what follows `thread 'name' panicked at`.
    fn note_failure(&mut self, line: &str) {
        let name = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            self.failures.push(vec![name.to_owned()]);
            self.section = Section::Output;
        } else if line == "failures:" {
            self.section = Section::Progress;
        } else if self.section == Section::Progress {
            return;
        } else if line.contains(" panicked at ") || line.starts_with("Error: ") {
            self.section = Section::Panic(REPEATED);
        } else if line == "stack backtrace:" {
            self.section = Section::Output;
        }
        if let (Section::Panic(left), Some(failure)) = (self.section, self.failures.last_mut()) {
            failure.push(line.to_owned());
            self.section = if left > 1 { Section::Panic(left - 1) } else { Section::Output };
        }
    }

    /// `test result: ok. 87 passed; 0 failed; 0 ignored; …`
    fn add_sums(&mut self, line: &str) {
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
