//! `cargo xtask test`: the whole suite on real servers.

use std::process::Command;
use std::time::Instant;

use testbed::{Generation, Servers, VirtualHost};

use crate::process;
use crate::servers::Choice;
use crate::tool::Tool;

/// How many tests run at the same time, for nextest.
const THREADS: &str = "NEXTEST_TEST_THREADS";

/// The test runner. Its settings are in `.config/nextest.toml`.
const RUNNER: Tool = Tool { name: "cargo-nextest", version: "0.9.143", options: &[] };

/// As many as the environment says, else three for each core.
fn threads() -> anyhow::Result<String> {
    match std::env::var(THREADS) {
        Ok(said) => Ok(said),
        Err(_) => Ok((std::thread::available_parallelism()?.get() * 3).to_string()),
    }
}

/// Starts the servers once for all tests, and runs them, and the examples of the documentation. `arguments` go to nextest.
pub(crate) async fn run(choice: &Choice, arguments: &[String]) -> anyhow::Result<()> {
    choice.apply()?;
    let root = process::root();
    let runner = RUNNER.program(&root)?;
    let scratch = testbed::keep_scratch_in_memory();
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    // The suite makes a database for each test: with PostgreSQL's minute, ten autovacuum workers would start in each second. The second broker
    // is for tests that need its HTTP API or an empty virtual host.
    let (servers, managed) =
        tokio::try_join!(Servers::start_with(&["autovacuum_naptime=1h"]), VirtualHost::start_broker())?;
    let versions = servers.versions().await?;
    eprintln!("{versions}");
    let urls = servers.urls().clone();
    let started = Instant::now();
    let prepare = |command: &mut Command| -> anyhow::Result<()> {
        command
            .env("DATABASE_URL", &urls.postgres)
            .env("AMQP_URL", &urls.rabbitmq)
            .env("REDIS_URL", &urls.redis)
            .envs(VirtualHost::VARIABLES.into_iter().zip(VirtualHost::values(&managed)))
            // Most of the time a test waits for a server: three a core keep the machine at work.
            .env(THREADS, threads()?)
            // Some tests start servers of their own.
            .env(testbed::SCRATCH, &scratch)
            .env(Generation::VARIABLE, Generation::current()?.name());
        Ok(())
    };
    let mut tests = process::in_root(&root, runner);
    tests.args(["nextest", "run", "--workspace"]).args(arguments);
    prepare(&mut tests)?;
    let mut examples = process::cargo(&root);
    examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    prepare(&mut examples)?;
    let is_whole = arguments.is_empty() || arguments[0] == "--profile";
    let done = tokio::task::spawn_blocking(move || {
        let tested = process::run(&mut tests);
        // What is asked for by name is one of the tests.
        tested.and_then(|()| if is_whole { process::run(&mut examples) } else { Ok(()) })
    })
    .await?;
    drop(servers);
    eprintln!("{} s in all, on {versions}", started.elapsed().as_secs());
    done
}

/// Runs the tests of a Citus cluster, where the environment names one.
pub(crate) async fn run_citus() -> anyhow::Result<()> {
    if std::env::var_os("CITUS_URL").is_none() {
        eprintln!("skipped: CITUS_URL is not set; it is the URL of a coordinator, as a superuser");
        return Ok(());
    }
    let filter = ["-E", "test(/citus::/)", "--no-capture"].map(str::to_owned);
    run(&Choice::default(), &filter).await
}
