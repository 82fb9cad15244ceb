//! `oncely`: the operator's command line, one file per verb.
//!
//! Data goes to stdout, everything else to stderr. `--json` prints one object with its schema's name and version; fields are only added.
//! Exit codes: 0 done or yes, 1 no, 2 wrong usage, 3 a server does not answer, 4 refused (not confirmed), 5 danger (`status`) or errors
//! (`doctor`), 78 refused configuration.

mod adopt;
mod audit;
mod audit_verify;
mod check;
mod completions;
mod config;
mod confirmation;
mod connection;
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
mod operator;
mod outbox;
mod output;
mod processes;
mod publish;
pub mod relay;
mod retention;
mod runtime;
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

use oncely_config::DEFAULT_FILE;

/// Exit code of a verb, or the error that decides it.
type VerbResult = anyhow::Result<ExitCode>;

/// Operate Oncely: messages that take effect once
#[derive(Debug, Parser)]
#[command(name = "oncely", version)]
pub struct Arguments {
    /// Configuration file
    #[arg(long, global = true, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Show times in UTC
    #[arg(long, global = true)]
    utc: bool,
    /// Operator's name to record [default: the user of the operating system]
    #[arg(long, global = true, env = "ONCELY_OPERATOR", value_name = "NAME", value_parser = operator::parse)]
    operator: Option<String>,
    #[command(subcommand)]
    verb: OncelyCommand,
}

// Parsed once per process.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
enum OncelyCommand {
    /// Consume the queues: each message takes effect in PostgreSQL once
    #[command(after_help = "Stops on SIGTERM or Ctrl-C: finishes work in progress, then exits 0.")]
    Worker,
    /// Publish events to RabbitMQ, mirror completed keys to Redis, collect old rows, make audit partitions
    #[command(after_help = "Several relays may run. Stops on SIGTERM or Ctrl-C and exits 0.")]
    Relay,
    #[command(flatten)]
    Other(DefaultRuntimeCommand),
}

/// Verbs that run on the runtime of a command.
#[derive(Debug, Subcommand)]
enum DefaultRuntimeCommand {
    /// Run or inspect the database migrations
    Migrate(migrate::MigrateArguments),
    /// Check the configuration and the servers' state; reports all problems at once
    Check(check::CheckArguments),
    /// Check configuration, servers and grants, and print fixes (read-only)
    Doctor(doctor::DoctorArguments),
    /// Declare or show the queues and exchanges of the consumers
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    /// Show findings, servers, queues, processes, events and recent outcomes on one screen
    Status(status::StatusArguments),
    /// Show the consumers live
    #[cfg(feature = "top")]
    Top(top::TopArguments),
    /// List or verify the trail of decisions
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Dead letters: list, requeue, discard
    #[command(subcommand)]
    Failed(failed::FailedCommand),
    /// Events that wait for RabbitMQ: list, retry, discard
    #[command(subcommand)]
    Outbox(outbox::OutboxCommand),
    /// List, pause and resume consumers
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// Forget workers, relays and gateways that ended without a sign-off
    #[command(subcommand)]
    Processes(processes::ProcessesCommand),
    /// List, show, seed and settle keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Keys that runs hold for effects outside PostgreSQL: list, release
    #[command(subcommand)]
    Leases(leases::LeasesCommand),
    /// Move an existing queue and its consumer to Oncely
    #[command(subcommand)]
    Adopt(adopt::AdoptCommand),
    /// Completed keys in Redis: show the backlog, verify, rebuild
    #[command(subcommand)]
    Mirror(mirror::MirrorCommand),
    /// Explain all known facts about a key
    Explain(explain::ExplainArguments),
    /// Grant, revoke or list rights to use oncely.claim and oncely.emit, and to read rows
    Grant(grant::GrantArguments),
    /// Export, erase or limit a tenant's data
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Serve the web console
    #[cfg(feature = "console")]
    Console(console::ConsoleArguments),
    /// Run a proxy for an HTTP service: forwards a request with an Idempotency-Key once, and replays its answer
    #[cfg(feature = "gateway")]
    Gateway(gateway::GatewayArguments),
    /// Run the garbage collection
    #[command(subcommand)]
    Gc(gc::GcCommand),
    /// List or set how long the database remembers keys
    #[command(subcommand)]
    Retention(retention::RetentionCommand),
    /// List or rotate the keys that sign, mark and make tags
    #[command(subcommand)]
    Secrets(secrets::SecretsCommand),
    /// Publish one message, or a file of messages
    Publish(publish::PublishArguments),
    /// Test handlers that are SQL functions, without a broker
    #[command(subcommand)]
    Handler(handler::HandlerCommand),
    /// Show the effective configuration, or describe its settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a script for shell completion, including names of consumers and queues
    Completions(completions::CompletionsArguments),
    /// Print or write man pages
    Man(man::ManArguments),
}

/// Returns the command line, with examples in its help.
pub fn command() -> clap::Command {
    examples::add(Arguments::command())
}

/// Parses the process's arguments; ends the process if they are invalid, or request help.
pub fn parse() -> Arguments {
    Arguments::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
}

/// Runs one verb, on a runtime of its own.
///
/// # Errors
/// If the verb fails: its error; [`oncely_ops::exit::code`] maps it to an exit code.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { config, utc, operator, verb } = arguments;
    if let Some(operator) = operator {
        operator::set(operator);
    }
    match verb {
        // The configuration sets its number of threads.
        OncelyCommand::Worker => worker::run(&config),
        OncelyCommand::Relay => relay::run(&config),
        OncelyCommand::Other(verb) => {
            runtime::new_for_command()?.block_on(verb.run(&config, output::Times { utc }))
        }
    }
}

impl DefaultRuntimeCommand {
    async fn run(self, config: &Path, times: output::Times) -> VerbResult {
        match self {
            Self::Migrate(arguments) => migrate::run(config, arguments, times).await,
            Self::Check(arguments) => check::run(config, arguments).await,
            Self::Doctor(arguments) => doctor::run(config, arguments).await,
            Self::Topology(verb) => topology::run(config, verb, times).await,
            Self::Status(arguments) => status::run(config, arguments, times).await,
            #[cfg(feature = "top")]
            Self::Top(arguments) => top::run(config, arguments, times).await,
            Self::Audit(verb) => audit::run(config, verb, times).await,
            Self::Failed(verb) => failed::run(config, verb, times).await,
            Self::Outbox(verb) => outbox::run(config, verb, times).await,
            Self::Consumers(verb) => consumers::run(config, verb, times).await,
            Self::Processes(verb) => processes::run(config, verb).await,
            Self::Keys(verb) => keys::run(config, verb, times).await,
            Self::Leases(verb) => leases::run(config, verb, times).await,
            Self::Adopt(verb) => adopt::run(config, verb, times).await,
            Self::Mirror(verb) => mirror::run(config, verb, times).await,
            Self::Explain(arguments) => explain::run(config, arguments, times).await,
            Self::Publish(arguments) => publish::run(config, arguments).await,
            Self::Handler(verb) => handler::run(config, verb).await,
            Self::Config(verb) => config::run(config, verb, times),
            Self::Completions(arguments) => completions::run(&arguments),
            Self::Man(arguments) => man::run(arguments),
            Self::Grant(arguments) => grant::run(config, arguments, times).await,
            Self::Tenant(verb) => tenant::run(config, verb, times).await,
            Self::Secrets(verb) => secrets::run(config, verb, times).await,
            Self::Retention(verb) => retention::run(config, verb, times).await,
            #[cfg(feature = "console")]
            Self::Console(arguments) => console::run(config, arguments).await,
            #[cfg(feature = "gateway")]
            Self::Gateway(arguments) => gateway::run(config, arguments).await,
            Self::Gc(verb) => gc::run(config, verb, times).await,
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
