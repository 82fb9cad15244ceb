//! `oncely check`: what the doctor looks at before a process starts; all problems at once.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;
use crate::config::Config;
use crate::doctor::{self, Finding, Report, Scope, Verdict};
use crate::exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit 0: fit. 78: something must be changed. 3: a server does not answer. `oncely doctor` looks at more."
)]
pub(super) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// What the login is for: only what that needs is checked [default: what its roles say]
    #[arg(long = "as", value_enum)]
    role: Option<Role>,
}

/// What a login is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Role {
    Worker,
    Relay,
    Operator,
    Auditor,
}

impl From<Role> for doctor::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Worker => Self::Worker,
            Role::Relay => Self::Relay,
            Role::Operator => Self::Operator,
            Role::Auditor => Self::Auditor,
        }
    }
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let scope = Scope { role: arguments.role.map(Into::into), at_start: true, ..Scope::default() };
    let (config, problems) = Config::examine(file);
    let report = match &config {
        Some(config) => doctor::examine(config, &problems, &scope).await,
        None => doctor::unusable(&problems, &scope),
    };
    let told = Told::of(&report, config.is_some() && problems.is_empty());
    if arguments.json {
        output::print_json("oncely.check/1", told.as_json())?;
    } else {
        output::print(&told.lines().join("\n"))?;
    }
    Ok(match (told.problems.is_empty(), told.unreachable.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(exit::UNREACHABLE),
        (false, _) => ExitCode::from(exit::CONFIG),
    })
}

/// A report, as it is told here.
struct Told<'a> {
    problems: Vec<&'a Finding>,
    warnings: Vec<&'a Finding>,
    /// What is about no setting.
    notes: Vec<&'a str>,
    unreachable: &'a [String],
    fine: Vec<(&'static str, String)>,
}

impl<'a> Told<'a> {
    fn of(report: &'a Report, is_valid: bool) -> Self {
        let mut told = Self {
            problems: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            unreachable: &report.unreachable,
            fine: Vec::new(),
        };
        for finding in report.checks.iter().flat_map(|examined| &examined.findings) {
            match finding.verdict {
                // A server that does not answer is told as such.
                _ if report.unreachable.contains(&finding.text) => {}
                Verdict::Error => told.problems.push(finding),
                // What nothing can be said about because something else is wrong, or because the role does not need it.
                Verdict::Skipped if finding.about.is_empty() => {}
                _ if finding.about.is_empty() => told.notes.push(&finding.text),
                _ => told.warnings.push(finding),
            }
        }
        for (check, name) in [("pg.reach", "PostgreSQL"), ("mq.reach", "RabbitMQ"), ("redis.reach", "Redis")]
        {
            let reached = report.checks.iter().find(|examined| examined.check.id == check);
            if let Some(reached) = reached.filter(|examined| examined.verdict == Verdict::Ok) {
                told.fine.push((name, reached.read.join(", ")));
            }
        }
        let configured = report.checks.iter().find(|examined| examined.check.id == "config");
        if let (true, Some(configured)) = (is_valid, configured) {
            told.fine.push(("configuration", configured.read.join(", ")));
        }
        if report.checks.iter().any(|examined| !examined.read.is_empty()) {
            told.fine.push(("checked as", report.role.to_string()));
        }
        told
    }

    fn as_json(&self) -> serde_json::Value {
        let problems: Vec<_> = self
            .problems
            .iter()
            .map(|f| match f.kind {
                None => json!({ "check": f.check, "place": f.about, "problem": f.text }),
                Some(kind) => json!({ "check": f.check, "place": f.about, "problem": f.text, "kind": kind }),
            })
            .collect();
        let warnings: Vec<_> = self
            .warnings
            .iter()
            .map(|f| json!({ "check": f.check, "place": f.about, "warning": f.text }))
            .collect();
        let fine: Vec<_> =
            self.fine.iter().map(|(what, text)| json!({ "what": what, "text": text })).collect();
        json!({ "problems": problems, "warnings": warnings, "unreachable": self.unreachable, "notes": self.notes, "fine": fine })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.fine.iter().map(|(what, text)| format!("✓ {what}: {text}")));
        lines.extend(self.warnings.iter().map(|f| format!("! {}: {}", f.about, f.text)));
        lines.extend(self.notes.iter().map(|text| format!("! {text}")));
        lines.extend(self.unreachable.iter().map(|text| format!("! not reached: {text}")));
        lines.extend(self.problems.iter().map(|f| format!("✗ {}: {}", f.about, f.text)));
        lines
    }
}
