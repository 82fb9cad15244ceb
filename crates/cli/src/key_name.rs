//! A key that the command line names: its arguments, and the choice of its row.

use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::completions;
use super::output::{self, safe};
use oncely_ops::exit;

#[derive(Debug, Args)]
pub(super) struct KeyName {
    /// Exact key
    pub(super) key: String,
    /// Tenant of the key; required if there are several
    #[arg(long)]
    pub(super) tenant: Option<String>,
    /// Consumer of the key; required if there are several
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    pub(super) consumer: Option<String>,
}

/// Returns the only row of a key, if it exists. If there are several, prints each row's tenant and consumer.
///
/// # Errors
/// The exit code, if there are several.
pub(super) fn only_row<T>(
    mut rows: Vec<T>,
    ambiguous: impl FnOnce(usize) -> String,
    name: impl Fn(&T) -> (&str, &str),
) -> Result<Option<T>, ExitCode> {
    if rows.len() < 2 {
        return Ok(rows.pop());
    }
    output::note(&format!("{}; name one:", ambiguous(rows.len())));
    for (tenant, consumer) in rows.iter().map(name) {
        output::note(&format!("  --tenant {} --consumer {}", safe(tenant), safe(consumer)));
    }
    Err(ExitCode::from(exit::USAGE))
}
