//! Confirmation of a change.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output;
use oncely_ops::exit;

/// The options of a change of several rows.
#[derive(Debug, Args)]
pub(super) struct BulkChangeOptions {
    /// Select every row that this command can change
    #[arg(long)]
    pub(super) all: bool,
    /// Only show the plan
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Confirm the plan without a prompt
    #[arg(long)]
    pub(super) yes: bool,
    /// Refuse to change more rows than this
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    pub(super) max: i64,
    /// Reason, recorded with the action
    #[arg(long)]
    pub(super) note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// The options of a change of one row.
#[derive(Debug, Args)]
pub(super) struct ChangeOptions {
    /// Only show the plan
    #[arg(long)]
    dry_run: bool,
    /// Confirm the plan without a prompt
    #[arg(long)]
    yes: bool,
    /// Reason, recorded with the action
    #[arg(long)]
    pub(super) note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// Result of showing a plan.
pub(super) enum Confirmation {
    Confirmed,
    /// Nothing is to be done: a dry run, nothing or too many rows to change, or no confirmation. The message has been printed.
    Exit(ExitCode),
}

/// The plan of a change, which is shown and confirmed before the change.
pub(super) trait ChangePlan {
    /// The rows' name, in the plural.
    const ROWS: &'static str;
    /// The schema of its JSON object.
    const SCHEMA: &'static str;

    /// Returns the verb of the change, as messages name it.
    fn verb(&self) -> &'static str;

    /// Returns the number of rows that the change affects.
    fn count(&self) -> usize;

    /// Formats the plan for the terminal. Implementations escape values of messages with [`output::escape`].
    fn describe(&self) -> String;

    /// Returns the plan as JSON.
    fn to_json(&self) -> Value;

    /// Prints the plan as JSON; `more` has the result.
    fn print_json(&self, dry_run: bool, more: Value) -> anyhow::Result<()> {
        let mut object = self.to_json();
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.insert("dry_run".to_owned(), Value::from(dry_run));
            object.extend(more);
        }
        output::print_json(Self::SCHEMA, object)
    }
}

impl BulkChangeOptions {
    /// Refuses a change without a selection, and returns the exit code: changing every row requires `--all`. `None` if rows are selected.
    /// `is_selected`: whether an id or a filter is given. `options`: the options that select rows, for the message.
    pub(super) fn require_selection(&self, is_selected: bool, options: &str) -> Option<ExitCode> {
        if is_selected || self.all {
            return None;
        }
        output::print_note(&format!("nothing is selected: name {options}, or use --all"));
        Some(ExitCode::from(exit::USAGE))
    }

    /// Shows the plan and asks for confirmation.
    pub(super) fn confirm<P: ChangePlan>(&self, plan: &P) -> anyhow::Result<Confirmation> {
        if i64::try_from(plan.count()).unwrap_or(i64::MAX) > self.max {
            output::print_note(&format!(
                "more than {} {} match: narrow it down, or raise --max",
                self.max,
                P::ROWS
            ));
            return Ok(Confirmation::Exit(ExitCode::from(exit::REFUSED)));
        }
        confirm(plan, self.dry_run, self.yes, self.json, json!({}))
    }
}

impl ChangeOptions {
    /// Shows the plan and asks for confirmation.
    pub(super) fn confirm<P: ChangePlan>(&self, plan: &P) -> anyhow::Result<Confirmation> {
        confirm(plan, self.dry_run, self.yes, self.json, json!({ "outcome": "nothing was changed" }))
    }
}

/// Shows a plan and asks for confirmation. `unchanged` is added to the JSON of a plan that is not carried out.
fn confirm<P: ChangePlan>(
    plan: &P,
    dry_run: bool,
    yes: bool,
    json: bool,
    unchanged: Value,
) -> anyhow::Result<Confirmation> {
    let exit_with = |code: u8| Ok(Confirmation::Exit(ExitCode::from(code)));
    let count = plan.count();
    if json && (dry_run || count == 0) {
        plan.print_json(true, unchanged)?;
    } else if !json || !yes {
        output::print_note(&plan.describe());
    }
    if count == 0 {
        output::print_note(&format!("nothing to {}", plan.verb()));
        return exit_with(exit::NO);
    }
    if dry_run {
        output::print_note("dry run: nothing was changed");
        return Ok(Confirmation::Exit(ExitCode::SUCCESS));
    }
    if ask_confirmation(yes, &count.to_string())? {
        Ok(Confirmation::Confirmed)
    } else {
        exit_with(exit::REFUSED)
    }
}

/// Maximum number of rows that a plan lists.
pub(super) const MAX_SAMPLES: usize = 5;

/// Confirms a change by `yes`, or by a prompt for a word, such as the number of rows; returns whether it is confirmed. Without a terminal
/// there is no prompt, and it is not confirmed.
pub(super) fn ask_confirmation(yes: bool, word: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        output::print_note("nothing was changed: confirm with --yes");
        return Ok(false);
    }
    output::print_note(&format!("type {word} to confirm"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let is_confirmed = answer.trim() == word;
    if !is_confirmed {
        output::print_note("nothing was changed");
    }
    Ok(is_confirmed)
}
