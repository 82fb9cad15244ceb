//! `oncely completions SHELL`, and the completion itself: names of consumers and queues come from the configuration.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::output;
use oncely_config::{Config, DEFAULT_FILE};
use oncely_core::reason::Reason;

#[derive(Debug, Args)]
#[command(
    after_help = "The script runs this program at each completion, so that it also completes names of consumers and \
                  queues, from the configuration that ONCELY_CONFIG names. Load it where your shell starts; it needs \
                  no server."
)]
pub(super) struct CompletionsArguments {
    /// Shell
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

/// The environment variable by which a shell's script requests completions.
const VARIABLE: &str = "COMPLETE";

pub(super) fn run(arguments: &CompletionsArguments) -> crate::VerbResult {
    let shells = Shells::builtins();
    let shell = shells.completer(&arguments.shell).context("there are no completions for this shell")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "oncely", "oncely", "oncely", &mut script)?;
    output::print_script(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Responds to a shell that requests completions, and ends the process; otherwise returns.
pub fn complete() {
    CompleteEnv::with_factory(super::command).var(VARIABLE).complete();
}

/// Reads the configuration of ONCELY_CONFIG or of the default file, as far as it is valid; `None` if nothing of it can be used.
fn read_config() -> Option<Config> {
    let file = std::env::var_os("ONCELY_CONFIG").map_or_else(|| PathBuf::from(DEFAULT_FILE), PathBuf::from);
    Config::examine(&file).0
}

/// Returns the names that begin with the typed text, as candidates.
fn complete_prefix(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let prefix = current.to_string_lossy();
    let names = names.into_iter().filter(|name| name.starts_with(prefix.as_ref()));
    names.map(CompletionCandidate::new).collect()
}

/// Completes names of consumers.
pub(super) fn complete_consumers(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_prefix(current, read_config().iter().flat_map(Config::consumer_names))
}

/// Completes names of queues.
pub(super) fn complete_queues(current: &OsStr) -> Vec<CompletionCandidate> {
    let config = read_config();
    let consumers = config.iter().flat_map(|config| &config.consumers);
    complete_prefix(current, consumers.flat_map(|consumer| consumer.queues.clone()))
}

/// Completes reason codes.
pub(super) fn complete_reasons(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_prefix(current, Reason::ALL.iter().map(|reason| reason.as_str().to_owned()))
}
