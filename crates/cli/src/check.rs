//! `oncely check`: the doctor's start-up checks; reports all problems at once.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;
use oncely_config::Config;
use oncely_doctor::{self as doctor, CheckSelection, Finding, Report, Verdict};
use oncely_ops::exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit 0: no problem. 78: the configuration or a server must be changed. 3: a server does not \
                  answer. `oncely doctor` checks more."
)]
pub(super) struct CheckArguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Check only the needs of this role [default: the login's roles]
    #[arg(long = "as", value_enum)]
    role: Option<RoleArgument>,
}

/// Purpose of a login.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RoleArgument {
    Worker,
    Relay,
    Operator,
    Auditor,
}

impl From<RoleArgument> for doctor::Role {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Worker => Self::Worker,
            RoleArgument::Relay => Self::Relay,
            RoleArgument::Operator => Self::Operator,
            RoleArgument::Auditor => Self::Auditor,
        }
    }
}

pub(super) async fn run(file: &Path, arguments: CheckArguments) -> crate::VerbResult {
    let scope =
        CheckSelection { role: arguments.role.map(Into::into), at_start: true, ..CheckSelection::default() };
    let (config, problems) = Config::examine(file);
    let report = match &config {
        Some(config) => doctor::examine(config, &problems, &scope).await,
        None => doctor::report_problems(&problems, &scope),
    };
    let summary = CheckSummary::from_report(&report, config.is_some() && problems.is_empty());
    if arguments.json {
        output::print_json("oncely.check/1", summary.to_json())?;
    } else {
        output::print(&summary.to_lines().join("\n"))?;
    }
    Ok(match (summary.problems.is_empty(), summary.unreachable.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(exit::UNREACHABLE),
        (false, _) => ExitCode::from(exit::CONFIG),
    })
}

/// A report, sorted for output.
struct CheckSummary<'a> {
    problems: Vec<&'a Finding>,
    warnings: Vec<&'a Finding>,
    /// Findings that concern no setting.
    notes: Vec<&'a str>,
    unreachable: &'a [String],
    fine: Vec<(&'static str, String)>,
}

impl<'a> CheckSummary<'a> {
    /// Sorts a report's findings into problems, warnings and notes.
    fn from_report(report: &'a Report, is_valid: bool) -> Self {
        let mut summary = Self {
            problems: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            unreachable: &report.unreachable,
            fine: Vec::new(),
        };
        for finding in report.checks.iter().flat_map(|result| &result.findings) {
            match finding.verdict {
                // An unreachable server has its own list.
                _ if report.unreachable.contains(&finding.text) => {}
                Verdict::Error => summary.problems.push(finding),
                // Not checkable because of another problem, or not needed by the role.
                Verdict::Skipped if finding.about.is_empty() => {}
                _ if finding.about.is_empty() => summary.notes.push(&finding.text),
                _ => summary.warnings.push(finding),
            }
        }
        for (check, name) in [("pg.reach", "PostgreSQL"), ("mq.reach", "RabbitMQ"), ("redis.reach", "Redis")]
        {
            let result = report.checks.iter().find(|result| result.check.id == check);
            if let Some(result) = result.filter(|result| result.verdict == Verdict::Ok) {
                summary.fine.push((name, result.read.join(", ")));
            }
        }
        let result = report.checks.iter().find(|result| result.check.id == "config");
        if let (true, Some(result)) = (is_valid, result) {
            summary.fine.push(("configuration", result.read.join(", ")));
        }
        if report.checks.iter().any(|result| !result.read.is_empty()) {
            summary.fine.push(("checked as", report.role.to_string()));
        }
        summary
    }

    /// Formats the summary as JSON.
    fn to_json(&self) -> serde_json::Value {
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

    /// Formats the summary as lines of text.
    fn to_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.fine.iter().map(|(what, text)| format!("✓ {what}: {text}")));
        lines.extend(self.warnings.iter().map(|f| format!("! {}: {}", f.about, f.text)));
        lines.extend(self.notes.iter().map(|text| format!("! {text}")));
        lines.extend(self.unreachable.iter().map(|text| format!("! not reached: {text}")));
        lines.extend(self.problems.iter().map(|f| format!("✗ {}: {}", f.about, f.text)));
        lines
    }
}
