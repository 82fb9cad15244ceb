//! `oncely doctor`: checks configuration, servers and grants, and prints fixes.

mod bundle;
mod mask;
mod screen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::check::RoleArgument;
use super::output;
use oncely_config::Config;
use oncely_doctor::{self as doctor, CHECKS, CheckSelection, Report, Verdict};
use oncely_ops::exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Changes nothing. A check that cannot run is skipped, with the reason.\nExit 0: no problem, or \
                  information only. 1: warnings. 5: errors. 3: a server does not answer."
)]
pub(super) struct DoctorArguments {
    /// Only these checks (pg.handler), or all of a group (pg, mq, redis, live, …)
    #[arg(
        long,
        value_name = "ID,..",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(only_values()),
        hide_possible_values = true
    )]
    only: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show the facts that each check has read, and checks without findings
    #[arg(short, long)]
    verbose: bool,
    /// Check only the needs of this role [default: the login's roles]
    #[arg(long = "as", value_enum)]
    role: Option<RoleArgument>,
    /// Also write an archive for a bug report: without secrets, tenants, keys or contents of messages. The file must not exist
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,
    /// Only list the checks: the facts each reads, the bad values, the fixes
    #[arg(long, conflicts_with_all = ["only", "verbose", "bundle"])]
    list: bool,
}

/// Returns the valid values of `--only`.
fn only_values() -> Vec<&'static str> {
    let mut names: Vec<&str> = CHECKS.iter().flat_map(|check| [check.id, check.group()]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(super) async fn run(file: &Path, arguments: DoctorArguments) -> crate::VerbResult {
    if arguments.list {
        match arguments.json {
            true => output::print_json("oncely.doctor.checks/1", json!({ "checks": CHECKS }))?,
            false => output::print(&screen::format_checks())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let scope = CheckSelection {
        only: arguments.only,
        role: arguments.role.map(Into::into),
        ..CheckSelection::default()
    };
    let (config, problems) = Config::examine(file);
    let report = match &config {
        Some(config) => doctor::examine(config, &problems, &scope).await,
        None => doctor::report_problems(&problems, &scope),
    };
    let code = exit_code(&report);
    if let Some(path) = &arguments.bundle {
        bundle::write(path, file, config.as_ref(), &report).await?;
        output::print_note(&format!("wrote {}: check it before you send it", path.display()));
    }
    if arguments.json {
        output::print_json("oncely.doctor/1", to_json(&report, code))?;
    } else {
        output::print(&screen::format_report(&report, arguments.verbose))?;
    }
    Ok(ExitCode::from(code))
}

/// Returns the exit code of a report.
fn exit_code(report: &Report) -> u8 {
    match report.verdict() {
        _ if !report.unreachable.is_empty() => exit::UNREACHABLE,
        Verdict::Error => exit::DANGER,
        Verdict::Warning => exit::NO,
        Verdict::Ok | Verdict::Info | Verdict::Skipped => 0,
    }
}

/// Formats a report as JSON.
fn to_json(report: &Report, code: u8) -> serde_json::Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "role": report.role,
        "verdict": report.verdict(),
        "exit": code,
        "unreachable": report.unreachable,
        "checks": report.checks,
    })
}
