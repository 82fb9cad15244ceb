//! Whether somebody agrees to a change, and who.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use clap::Args;

use super::output;
use crate::exit;

/// What every change takes.
#[derive(Debug, Args)]
pub(super) struct Agreement {
    /// Every row that this command may change
    #[arg(long)]
    pub(super) all: bool,
    /// Only show the plan
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Agree to the plan without being asked
    #[arg(long)]
    pub(super) yes: bool,
    /// Refuse to change more than this
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    pub(super) max: i64,
    /// Why, for the record
    #[arg(long)]
    pub(super) note: Option<String>,
    /// One JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// What follows from a plan.
pub(super) enum Consent {
    Given,
    /// Nothing to do, or nobody agreed; what there was to say is said.
    Over(ExitCode),
}

/// A plan as it is shown and agreed to.
pub(super) trait Proposal {
    /// The rows' name, in the plural.
    const ROWS: &'static str;

    fn verb(&self) -> &'static str;

    fn count(&self) -> usize;

    /// For people.
    fn describe(&self) -> String;

    /// For programs: what would be done.
    fn print_dry_run(&self) -> anyhow::Result<()>;
}

impl Agreement {
    /// Refuses what names nothing: a change of everything must be said. `named`: an id or a filter was given.
    pub(super) fn must_name(&self, named: bool, how: &str) -> Option<ExitCode> {
        if named || self.all {
            return None;
        }
        output::note(&format!("which ones? Name {how}, or say --all"));
        Some(ExitCode::from(exit::USAGE))
    }

    /// Shows the plan and asks.
    pub(super) fn seek<P: Proposal>(&self, plan: &P) -> anyhow::Result<Consent> {
        let over = |code: u8| Ok(Consent::Over(ExitCode::from(code)));
        let count = plan.count();
        if i64::try_from(count).unwrap_or(i64::MAX) > self.max {
            output::note(&format!(
                "more than {} {} match: narrow it down, or raise --max",
                self.max,
                P::ROWS
            ));
            return over(exit::REFUSED);
        }
        if self.json && (self.dry_run || count == 0) {
            plan.print_dry_run()?;
        } else if !self.json || !self.yes {
            output::note(&plan.describe());
        }
        if count == 0 {
            output::note(&format!("nothing to {}", plan.verb()));
            return over(exit::NO);
        }
        if self.dry_run {
            output::note("dry run: nothing was changed");
            return Ok(Consent::Over(ExitCode::SUCCESS));
        }
        if agree(self.yes, &count.to_string())? { Ok(Consent::Given) } else { over(exit::REFUSED) }
    }
}

/// How many rows a plan shows.
pub(super) const SAMPLES: usize = 5;

/// How often each of these occurs, the most frequent first.
pub(super) fn tally<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<(K, usize)> {
    let mut groups: BTreeMap<K, usize> = BTreeMap::new();
    for key in keys {
        *groups.entry(key).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    groups
}

/// Was it agreed to? Else asks whoever sits at the terminal to type a word, such as the number of rows; nobody sits where there is
/// none.
pub(super) fn agree(yes: bool, word: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        output::note("nothing was changed: agree with --yes");
        return Ok(false);
    }
    output::note(&format!("type {word} to go on"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let agreed = answer.trim() == word;
    if !agreed {
        output::note("nothing was changed");
    }
    Ok(agreed)
}

/// The user of the operating system.
pub(super) fn user() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    user.unwrap_or_else(|| "unknown user".to_owned())
}
