//! `cargo xtask servers`: private servers to try things against.

use std::io::Write as _;

use testbed::Servers;

use crate::servers::Choice;

/// Starts the servers, prints their URLs as shell exports on stdout, and keeps them until Ctrl-C.
pub(crate) async fn run(choice: &Choice) -> anyhow::Result<()> {
    choice.apply()?;
    let servers = Servers::start().await?;
    print_urls(&servers, &servers.urls().postgres)?;
    eprintln!("servers are up; Ctrl-C stops them and removes their data");
    tokio::signal::ctrl_c().await?;
    Ok(())
}

/// Prints the three URLs as shell exports.
pub(crate) fn print_urls(servers: &Servers, database: &str) -> anyhow::Result<()> {
    let urls = servers.urls();
    let mut out = std::io::stdout().lock();
    writeln!(out, "export DATABASE_URL={database}")?;
    writeln!(out, "export AMQP_URL={}", urls.rabbitmq)?;
    writeln!(out, "export REDIS_URL={}", urls.redis)?;
    out.flush()?;
    Ok(())
}
