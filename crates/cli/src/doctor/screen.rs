//! The doctor's report as text.

use super::super::output::escape;
use oncely_doctor::{CHECKS, CheckResult, Report, Verdict};

/// Returns the sign of a verdict; signs differ without colours, too.
fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "✓",
        Verdict::Info => "i",
        Verdict::Skipped => "–",
        Verdict::Warning => "!",
        Verdict::Error => "✗",
    }
}

/// Formats the findings, the worst check first; then the skipped checks, and the number of checks without findings.
pub(super) fn format_report(report: &Report, verbose: bool) -> String {
    let mut lines = Vec::new();
    for verdict in [Verdict::Error, Verdict::Warning, Verdict::Info, Verdict::Skipped] {
        for result in report.checks.iter().filter(|result| result.verdict == verdict) {
            push_check(result, verbose, &mut lines);
        }
    }
    if verbose {
        for result in report.checks.iter().filter(|result| result.verdict == Verdict::Ok) {
            push_check(result, verbose, &mut lines);
        }
    }
    let count = |verdict| report.checks.iter().filter(|result| result.verdict == verdict).count();
    let counts = Verdict::ALL.map(|verdict| format!("{} {}", count(verdict), verdict.as_str()));
    lines.push(format!("{} checks as {}: {}", report.checks.len(), report.role, counts.join(", ")));
    lines.join("\n")
}

/// Adds the lines of a check. A skipped check has one line, unless `verbose`.
fn push_check(result: &CheckResult, verbose: bool, lines: &mut Vec<String>) {
    let mark = sign(result.verdict);
    let id = result.check.id;
    if result.verdict == Verdict::Skipped && !verbose {
        // One line each: no action is needed.
        let reasons: Vec<String> =
            result.findings.iter().map(|finding| format_finding(&finding.about, &finding.text)).collect();
        lines.push(format!("{mark} {id}: skipped: {}", reasons.join("; ")));
        return;
    }
    lines.push(format!("{mark} {id}: {}", result.check.title));
    for finding in &result.findings {
        let text = format_finding(&finding.about, &finding.text);
        lines.push(format!("    {} {text}", sign(finding.verdict)));
    }
    if matches!(result.verdict, Verdict::Warning | Verdict::Error) {
        lines.push(format!("    fix: {}", result.check.fix));
        lines.push(format!("    see: {}", result.page));
    }
    if verbose {
        lines.extend(result.read.iter().map(|what| format!("    read: {}", escape(what))));
    }
}

/// Formats the text of a finding, after its subject unless that is empty.
fn format_finding(about: &str, text: &str) -> String {
    match about {
        "" => escape(text),
        about => format!("{}: {}", escape(about), escape(text)),
    }
}

/// Formats the list of all checks.
pub(super) fn format_checks() -> String {
    let of = |check: &oncely_doctor::Check| {
        format!(
            "{}: {}\n    reads: {}\n    bad: {}\n    fix: {}\n    see: {}",
            check.id,
            check.title,
            check.reads,
            check.bad,
            check.fix,
            check.page()
        )
    };
    CHECKS.iter().map(of).collect::<Vec<_>>().join("\n")
}
