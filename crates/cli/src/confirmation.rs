//! Confirmation of a change, and the operator's name.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Args;
use serde_json::{Value, json};

use super::output;
use oncely_ops::exit;

/// The options of a change of several rows.
#[derive(Debug, Args)]
pub(super) struct Agreement {
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
pub(super) struct SingleAgreement {
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
pub(super) enum Consent {
    Given,
    /// Nothing to do, or not confirmed; the message has been printed.
    Over(ExitCode),
}

/// A plan that is shown and confirmed.
pub(super) trait Proposal {
    /// The rows' name, in the plural.
    const ROWS: &'static str;
    /// The schema of its JSON object.
    const SCHEMA: &'static str;

    fn verb(&self) -> &'static str;

    fn count(&self) -> usize;

    /// Returns the plan as text.
    fn describe(&self) -> String;

    /// Returns the plan as JSON.
    fn as_json(&self) -> Value;

    /// Prints the plan as JSON; `more` has the result.
    fn print_json(&self, dry_run: bool, more: Value) -> anyhow::Result<()> {
        let mut object = self.as_json();
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.insert("dry_run".to_owned(), Value::from(dry_run));
            object.extend(more);
        }
        output::print_json(Self::SCHEMA, object)
    }
}

impl Agreement {
    /// Refuses a change without a selection: changing every row requires `--all`. `named`: whether an id or a filter was given.
    pub(super) fn must_name(&self, named: bool, how: &str) -> Option<ExitCode> {
        if named || self.all {
            return None;
        }
        output::note(&format!("nothing is selected: name {how}, or use --all"));
        Some(ExitCode::from(exit::USAGE))
    }

    /// Shows the plan and asks for confirmation.
    pub(super) fn seek<P: Proposal>(&self, plan: &P) -> anyhow::Result<Consent> {
        if i64::try_from(plan.count()).unwrap_or(i64::MAX) > self.max {
            output::note(&format!(
                "more than {} {} match: narrow it down, or raise --max",
                self.max,
                P::ROWS
            ));
            return Ok(Consent::Over(ExitCode::from(exit::REFUSED)));
        }
        seek(plan, self.dry_run, self.yes, self.json, json!({}))
    }
}

impl SingleAgreement {
    /// Shows the plan and asks for confirmation.
    pub(super) fn seek<P: Proposal>(&self, plan: &P) -> anyhow::Result<Consent> {
        seek(plan, self.dry_run, self.yes, self.json, json!({ "outcome": "nothing was changed" }))
    }
}

/// Shows a plan and asks for confirmation. `unchanged` is added to the JSON of a plan that is not carried out.
fn seek<P: Proposal>(
    plan: &P,
    dry_run: bool,
    yes: bool,
    json: bool,
    unchanged: Value,
) -> anyhow::Result<Consent> {
    let over = |code: u8| Ok(Consent::Over(ExitCode::from(code)));
    let count = plan.count();
    if json && (dry_run || count == 0) {
        plan.print_json(true, unchanged)?;
    } else if !json || !yes {
        output::note(&plan.describe());
    }
    if count == 0 {
        output::note(&format!("nothing to {}", plan.verb()));
        return over(exit::NO);
    }
    if dry_run {
        output::note("dry run: nothing was changed");
        return Ok(Consent::Over(ExitCode::SUCCESS));
    }
    if agree(yes, &count.to_string())? { Ok(Consent::Given) } else { over(exit::REFUSED) }
}

/// Rows that a plan shows.
pub(super) const SAMPLES: usize = 5;

/// Counts the occurrences of each key, the most frequent first.
pub(super) fn tally<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<(K, usize)> {
    let mut groups: BTreeMap<K, usize> = BTreeMap::new();
    for key in keys {
        *groups.entry(key).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    groups
}

/// Returns whether the change is confirmed: by `yes`, or by the user who types a word, such as the number of rows. Without a terminal it is not.
pub(super) fn agree(yes: bool, word: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        output::note("nothing was changed: confirm with --yes");
        return Ok(false);
    }
    output::note(&format!("type {word} to confirm"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let agreed = answer.trim() == word;
    if !agreed {
        output::note("nothing was changed");
    }
    Ok(agreed)
}

/// The operator's name, from the command line.
static OPERATOR: OnceLock<String> = OnceLock::new();

/// Sets the operator for the rest of the process; only the first call counts.
pub(super) fn act_as(operator: String) {
    OPERATOR.get_or_init(|| operator);
}

/// Validates an operator's name: not empty, at most 255 bytes.
pub(super) fn operator(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("it is empty".to_owned()),
        name if name.len() > 255 => Err("it has more than 255 bytes".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Returns the operator's name for records: the one of the command line, otherwise the user of the operating system. If the environment has
/// none, as in a service or a container: the name in /etc/passwd of the process's user, or that user's number.
pub(super) fn user() -> String {
    let said = || OPERATOR.get().cloned();
    let named = || ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let numbered = || {
        let uid = rustix::process::getuid().as_raw();
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        user_of(&users, uid).unwrap_or_else(|| format!("uid {uid}"))
    };
    said().or_else(|| named().filter(|name| !name.is_empty())).unwrap_or_else(numbered)
}

/// Returns the name of a user's number in the format of /etc/passwd.
fn user_of(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let found = fields.nth(1)?.parse() == Ok(uid);
        found.then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_number_has_the_name_of_its_line() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\n:x:7:7::/:\noncely:x:999:999::/var/lib/oncely:/usr/sbin/nologin\n";
        assert_eq!(user_of(users, 999).as_deref(), Some("oncely"));
        assert_eq!(user_of(users, 0).as_deref(), Some("root"));
        assert_eq!(user_of(users, 7), None);
    }
}
