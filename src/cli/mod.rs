//! `oncely`: the operator's command line, one verb a file.
//!
//! Data goes to stdout, everything else to stderr. `--json` prints one object with its schema's name and version; fields
//! are only added. Exit codes: 0 done or yes, 1 no, 2 wrong usage, 3 a server does not answer, 4 refused
//! (nobody agreed to it), 5 danger (`status`) or errors (`doctor`), 78 refused configuration.

mod adopt;
mod audit;
mod audit_verify;
mod check;
mod completions;
mod config;
mod connection;
mod consent;
#[cfg(feature = "console")]
mod console;
mod consumers;
mod doctor;
mod examples;
mod explain;
mod failed;
#[cfg(feature = "gateway")]
mod gateway;
mod gc;
mod grant;
mod handler;
mod key_name;
mod keys;
mod leases;
mod man;
mod migrate;
mod migration_plan;
mod migration_wait;
mod mirror;
mod observer_bindings;
mod outbox;
mod output;
mod processes;
mod publish;
pub mod relay;
mod retention;
mod secrets;
mod since;
mod status;
mod tenant;
#[cfg(feature = "top")]
mod top;
mod topology;
pub mod worker;

use std::path::{Path, PathBuf};
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
    /// Who acts, for the record; by default the user of the operating system
    #[arg(long, global = true, env = "ONCELY_OPERATOR", value_name = "NAME", value_parser = consent::operator)]
    operator: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

// Read once a process.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
enum Verb {
    /// Consume the queues: each message takes effect in PostgreSQL once
    #[command(after_help = "Stops on SIGTERM or Ctrl-C: finishes what has begun, then exits 0.")]
    Worker,
    #[command(flatten)]
    Other(Other),
}

/// What runs on a runtime of the usual size.
#[derive(Debug, Subcommand)]
enum Other {
    /// Publish events to RabbitMQ, mirror completed keys to Redis, collect old rows, make audit partitions
    #[command(after_help = "Several relays may run. Stops on SIGTERM or Ctrl-C and exits 0.")]
    Relay,
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
    /// Workers, relays and gateways: forget those that ended without a word
    Processes(processes::Arguments),
    /// Keys, page by page, and all facts of one; keys that were processed before; one that you settle
    Keys(keys::Arguments),
    /// Keys that runs hold for effects outside PostgreSQL: list them, take one from its run
    Leases(leases::Arguments),
    /// An existing queue and its consumer, on their way to Oncely
    Adopt(adopt::Arguments),
    /// Completed keys in Redis: what waits, what is missing, write them once more
    Mirror(mirror::Arguments),
    /// Everything that is known about a key, in words
    Explain(explain::Arguments),
    /// What logins may do by oncely.claim and oncely.emit, and whose rows they read: grant it, take it back, list it
    Grant(grant::Arguments),
    /// All that there is of a tenant: export it, erase it
    Tenant(tenant::Arguments),
    /// Everything in the browser: pages for looking, and for what an operator does about it
    #[cfg(feature = "console")]
    Console(console::Arguments),
    /// A proxy before an HTTP service: a request with an Idempotency-Key is sent on once, its answer replayed
    #[cfg(feature = "gateway")]
    Gateway(gateway::Arguments),
    /// Garbage collection
    Gc(gc::Arguments),
    /// How long keys are remembered, as the database knows it
    Retention(retention::Arguments),
    /// Keys that sign, mark and make tags: list them, replace one
    Secrets(secrets::Arguments),
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

/// Runs one verb, on a runtime of its own.
///
/// # Errors
/// Whatever kept it from being done; [`crate::exit::code`] says what that means for the exit code.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { config, utc, operator, verb } = arguments;
    if let Some(operator) = operator {
        consent::act_as(operator);
    }
    match verb {
        // How many threads it has is a matter of its configuration.
        Verb::Worker => worker::run(&config),
        Verb::Other(verb) => {
            tokio::runtime::Runtime::new()?.block_on(verb.run(&config, output::Times { utc }))
        }
    }
}

impl Other {
    async fn run(self, config: &Path, times: output::Times) -> anyhow::Result<ExitCode> {
        match self {
            Self::Relay => relay::run(config).await,
            Self::Migrate(arguments) => migrate::run(config, arguments, times).await,
            Self::Check(arguments) => check::run(config, arguments).await,
            Self::Doctor(arguments) => doctor::run(config, arguments).await,
            Self::Topology(arguments) => topology::run(config, arguments, times).await,
            Self::Status(arguments) => status::run(config, arguments, times).await,
            #[cfg(feature = "top")]
            Self::Top(arguments) => top::run(config, arguments, times).await,
            Self::Audit(arguments) => audit::run(config, arguments, times).await,
            Self::Failed(arguments) => failed::run(config, arguments, times).await,
            Self::Outbox(arguments) => outbox::run(config, arguments, times).await,
            Self::Consumers(arguments) => consumers::run(config, arguments, times).await,
            Self::Processes(arguments) => processes::run(config, arguments).await,
            Self::Keys(arguments) => keys::run(config, arguments, times).await,
            Self::Leases(arguments) => leases::run(config, arguments, times).await,
            Self::Adopt(arguments) => adopt::run(config, arguments, times).await,
            Self::Mirror(arguments) => mirror::run(config, arguments, times).await,
            Self::Explain(arguments) => explain::run(config, arguments, times).await,
            Self::Publish(arguments) => publish::run(config, arguments).await,
            Self::Handler(arguments) => handler::run(config, arguments).await,
            Self::Config(arguments) => config::run(config, arguments, times),
            Self::Completions(arguments) => completions::run(&arguments),
            Self::Man(arguments) => man::run(arguments),
            Self::Grant(arguments) => grant::run(config, arguments, times).await,
            Self::Tenant(arguments) => tenant::run(config, arguments, times).await,
            Self::Secrets(arguments) => secrets::run(config, arguments, times).await,
            Self::Retention(arguments) => retention::run(config, arguments, times).await,
            #[cfg(feature = "console")]
            Self::Console(arguments) => console::run(config, arguments).await,
            #[cfg(feature = "gateway")]
            Self::Gateway(arguments) => gateway::run(config, arguments).await,
            Self::Gc(arguments) => gc::run(config, arguments, times).await,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        super::command().debug_assert();
    }
}
