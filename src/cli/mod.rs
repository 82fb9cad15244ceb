//! `oncely`: the operator's command line, one verb a file.
//!
//! Data goes to stdout, everything else to stderr. `--json` prints one object with its schema's name and version; fields
//! are only added. Exit codes: 0 done or yes, 1 no, 2 wrong usage, 3 a server does not answer, 4 refused
//! (nobody agreed to it), 5 danger (`status`) or errors (`doctor`), 78 refused configuration.

mod audit;
mod audit_verify;
mod check;
mod completions;
mod config;
mod consent;
#[cfg(feature = "console")]
mod console;
mod consumers;
mod doctor;
mod examples;
mod explain;
mod failed;
mod gc;
mod grant;
mod handler;
mod keys;
mod man;
mod migrate;
mod mirror;
mod outbox;
mod output;
mod publish;
mod retention;
mod session;
mod since;
mod status;
#[cfg(feature = "top")]
mod top;
mod topology;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use self::completions::complete;

use crate::config::DEFAULT_FILE;

/// Operate Oncely: messages that take effect once
#[derive(Debug, Parser)]
#[command(name = "oncely", version)]
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
    /// Is everything as it must be, and what to do where it is not? Changes nothing
    Doctor(doctor::Arguments),
    /// Queues and exchanges around the consumers' queues
    Topology(topology::Arguments),
    /// One screen: what needs a look, servers, queues, processes, events, recent outcomes
    Status(status::Arguments),
    /// How the consumers stand, live
    #[cfg(feature = "top")]
    Top(top::Arguments),
    /// The trail of decisions
    Audit(audit::Arguments),
    /// Dead letters: look at them, run them again, or give them up
    Failed(failed::Arguments),
    /// Events that wait for RabbitMQ: look at them, try them again, or give them up
    Outbox(outbox::Arguments),
    /// Consumers as they stand; pause one, let it go on
    Consumers(consumers::Arguments),
    /// Keys, page by page, and all facts of one
    Keys(keys::Arguments),
    /// Completed keys in Redis: what waits, what is missing, say them again
    Mirror(mirror::Arguments),
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
    /// Handlers that are SQL functions, without a broker
    Handler(handler::Arguments),
    /// Which configuration holds, and what its settings are for
    Config(config::Arguments),
    /// A script that completes command lines, names of consumers and queues among them
    Completions(completions::Arguments),
    /// Man pages
    Man(man::Arguments),
}

/// The command line, with examples in its help.
pub fn command() -> clap::Command {
    examples::add(Arguments::command())
}

/// Reads the process's arguments; ends it where they are wrong, or ask for help.
pub fn parse() -> Arguments {
    Arguments::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
}

/// Runs one verb.
///
/// # Errors
/// Whatever kept it from being done; [`crate::exit::code`] says what that means for the exit code.
pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { config, utc, verb } = arguments;
    let times = output::Times { utc };
    match verb {
        Verb::Migrate(arguments) => migrate::run(&config, arguments, times).await,
        Verb::Check(arguments) => check::run(&config, arguments).await,
        Verb::Doctor(arguments) => doctor::run(&config, arguments).await,
        Verb::Topology(arguments) => topology::run(&config, arguments, times).await,
        Verb::Status(arguments) => status::run(&config, arguments, times).await,
        #[cfg(feature = "top")]
        Verb::Top(arguments) => top::run(&config, arguments, times).await,
        Verb::Audit(arguments) => audit::run(&config, arguments, times).await,
        Verb::Failed(arguments) => failed::run(&config, arguments, times).await,
        Verb::Outbox(arguments) => outbox::run(&config, arguments, times).await,
        Verb::Consumers(arguments) => consumers::run(&config, arguments, times).await,
        Verb::Keys(arguments) => keys::run(&config, arguments, times).await,
        Verb::Mirror(arguments) => mirror::run(&config, arguments, times).await,
        Verb::Explain(arguments) => explain::run(&config, arguments, times).await,
        Verb::Publish(arguments) => publish::run(&config, arguments).await,
        Verb::Handler(arguments) => handler::run(&config, arguments).await,
        Verb::Config(arguments) => config::run(&config, arguments, times),
        Verb::Completions(arguments) => completions::run(&arguments),
        Verb::Man(arguments) => man::run(arguments),
        Verb::Grant(arguments) => grant::run(&config, arguments, times).await,
        Verb::Retention(arguments) => retention::run(&config, arguments, times).await,
        #[cfg(feature = "console")]
        Verb::Console(arguments) => console::run(&config, arguments).await,
        Verb::Gc(arguments) => gc::run(&config, arguments, times).await,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        super::command().debug_assert();
    }
}
