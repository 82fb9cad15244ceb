//! `oncely`: the operator's command line, one verb a file.
//!
//! Data goes to stdout, everything else to stderr. `--json` prints one object with its schema's name and version; fields
//! are only added. Exit codes: 0 done or yes, 1 no, 2 wrong usage, 3 a server does not answer, 4 refused
//! (nobody agreed to it), 5 danger (`status`), 78 refused configuration.

mod audit;
mod audit_verify;
mod check;
mod consent;
#[cfg(feature = "console")]
mod console;
mod explain;
mod failed;
mod gc;
mod grant;
mod migrate;
mod outbox;
mod output;
mod publish;
mod retention;
mod session;
mod since;
mod status;
mod topology;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::DEFAULT_FILE;

/// Operate Oncely: messages that take effect once
#[derive(Debug, Parser)]
#[command(
    name = "oncely",
    version,
    after_help = "Examples:\n  oncely migrate\n  oncely check\n  oncely explain order-1182 --tenant acme\n  \
                  oncely audit list --outcome dead_lettered --since 2h"
)]
pub struct Arguments {
    /// The configuration file
    #[arg(long, global = true, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Show times in UTC
    #[arg(long, global = true)]
    utc: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the database migrations, or look at them
    Migrate(migrate::Arguments),
    /// Check the configuration and what the servers hold; reports all problems at once
    Check(check::Arguments),
    /// Queues and exchanges around the consumers' queues
    Topology(topology::Arguments),
    /// One screen: what needs a look, servers, queues, processes, events, recent outcomes
    Status(status::Arguments),
    /// The trail of decisions
    Audit(audit::Arguments),
    /// Dead letters: look at them, run them again, or give them up
    Failed(failed::Arguments),
    /// Events that wait for RabbitMQ: look at them, try them again, or give them up
    Outbox(outbox::Arguments),
    /// Everything that is known about a key, in words
    Explain(explain::Arguments),
    /// What logins may do by oncely.claim and oncely.emit: grant it, take it back, list it
    Grant(grant::Arguments),
    /// Everything in the browser: pages for looking, and for what an operator does about it
    #[cfg(feature = "console")]
    Console(console::Arguments),
    /// Garbage collection
    Gc(gc::Arguments),
    /// How long keys are remembered, as the database knows it
    Retention(retention::Arguments),
    /// Publish one message, for a first try
    Publish(publish::Arguments),
}

/// Runs one verb.
///
/// # Errors
/// Whatever kept it from being done; [`crate::exit::code`] says what that means for the exit code.
pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { config, utc, verb } = arguments;
    let times = output::Times { utc };
    match verb {
        Verb::Migrate(arguments) => migrate::run(&config, arguments).await,
        Verb::Check(arguments) => check::run(&config, arguments).await,
        Verb::Topology(arguments) => topology::run(&config, arguments).await,
        Verb::Status(arguments) => status::run(&config, arguments, times).await,
        Verb::Audit(arguments) => audit::run(&config, arguments, times).await,
        Verb::Failed(arguments) => failed::run(&config, arguments, times).await,
        Verb::Outbox(arguments) => outbox::run(&config, arguments, times).await,
        Verb::Explain(arguments) => explain::run(&config, arguments, times).await,
        Verb::Publish(arguments) => publish::run(&config, arguments).await,
        Verb::Grant(arguments) => grant::run(&config, arguments, times).await,
        Verb::Retention(arguments) => retention::run(&config, arguments, times).await,
        #[cfg(feature = "console")]
        Verb::Console(arguments) => console::run(&config, arguments).await,
        Verb::Gc(arguments) => gc::run(&config, arguments, times).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
