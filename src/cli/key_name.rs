//! A key, as commands about a single one name it.

use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::completions;
use super::output::{self, safe};
use crate::exit;

#[derive(Debug, Args)]
pub(super) struct KeyName {
    /// The key, exactly
    pub(super) key: String,
    /// Whose key; needed where there are several
    #[arg(long)]
    pub(super) tenant: Option<String>,
    /// Of which consumer; needed where there are several
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    pub(super) consumer: Option<String>,
}

/// Returns the only row of a key, where there is one. Of several the notes list the names: each row's tenant and consumer.
///
/// # Errors
/// With the exit code, where there are several.
pub(super) fn only<T>(
    mut rows: Vec<T>,
    several: impl FnOnce(usize) -> String,
    name: impl Fn(&T) -> (&str, &str),
) -> Result<Option<T>, ExitCode> {
    if rows.len() < 2 {
        return Ok(rows.pop());
    }
    output::note(&format!("{}; name one:", several(rows.len())));
    for (tenant, consumer) in rows.iter().map(name) {
        output::note(&format!("  --tenant {} --consumer {}", safe(tenant), safe(consumer)));
    }
    Err(ExitCode::from(exit::USAGE))
}
