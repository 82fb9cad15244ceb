//! `cargo xtask servers`: private servers to try things against.

use std::io::Write as _;

use testbed::{RabbitMq, Servers};

use crate::servers::Choice;

/// Starts the servers, prints their URLs as shell exports on stdout, and keeps them until Ctrl-C.
pub(crate) async fn run(choice: &Choice) -> anyhow::Result<()> {
    choice.apply()?;
    let servers = Servers::start_with_management().await?;
    let urls = servers.urls().clone();
    let mut exports =
        vec![("DATABASE_URL", urls.postgres), ("AMQP_URL", urls.rabbitmq), ("REDIS_URL", urls.redis)];
    // For what asks RabbitMQ's HTTP API: observing consumers, `adopt`, the doctor.
    if let Some(url) = servers.rabbitmq.as_ref().and_then(RabbitMq::management_url) {
        exports.push(("ONCELY_RABBITMQ__MANAGEMENT", url));
    }
    print_exports(&exports)?;
    wait_for_interrupt().await
}

/// Prints an environment as shell exports.
pub(crate) fn print_exports(environment: &[(&str, String)]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, value) in environment {
        writeln!(out, "export {name}={value}")?;
    }
    out.flush()?;
    Ok(())
}

/// Waits for Ctrl-C.
pub(crate) async fn wait_for_interrupt() -> anyhow::Result<()> {
    eprintln!("servers are up; Ctrl-C stops them and removes their data");
    tokio::signal::ctrl_c().await?;
    Ok(())
}
