//! A key that the command line names: its arguments, and the choice of its row.

use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::completions;
use super::output::{self, escape};
use oncely_ops::exit;

#[derive(Debug, Args)]
pub(super) struct KeyName {
    /// Exact key
    pub(super) key: String,
    /// Tenant of the key; required if there are several
    #[arg(long)]
    pub(super) tenant: Option<String>,
    /// Consumer of the key; required if there are several
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    pub(super) consumer: Option<String>,
}

/// Returns the only row of a key, or `None` if there is no row. If there are several, prints each row's tenant and consumer.
///
/// # Errors
/// If there are several rows: the exit code.
pub(super) fn choose_row<T>(
    mut rows: Vec<T>,
    describe: impl FnOnce(usize) -> String,
    identity: impl Fn(&T) -> (&str, &str),
) -> Result<Option<T>, ExitCode> {
    if rows.len() < 2 {
        return Ok(rows.pop());
    }
    output::print_note(&format!("{}; name one:", describe(rows.len())));
    for (tenant, consumer) in rows.iter().map(identity) {
        output::print_note(&format!("  --tenant {} --consumer {}", escape(tenant), escape(consumer)));
    }
    Err(ExitCode::from(exit::USAGE))
}
