//! The doctor's report as text.

use super::super::output::safe;
use oncely_doctor::{CHECKS, CheckResult, Report, Verdict};

/// Returns the sign of a verdict, which differs without colours, too.
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
pub(super) fn show(report: &Report, verbose: bool) -> String {
    let mut lines = Vec::new();
    for verdict in [Verdict::Error, Verdict::Warning, Verdict::Info, Verdict::Skipped] {
        for examined in report.checks.iter().filter(|examined| examined.verdict == verdict) {
            check(examined, verbose, &mut lines);
        }
    }
    if verbose {
        for examined in report.checks.iter().filter(|examined| examined.verdict == Verdict::Ok) {
            check(examined, verbose, &mut lines);
        }
    }
    let count = |verdict| report.checks.iter().filter(|examined| examined.verdict == verdict).count();
    let counts = Verdict::ALL.map(|verdict| format!("{} {}", count(verdict), verdict.as_str()));
    lines.push(format!("{} checks as {}: {}", report.checks.len(), report.role, counts.join(", ")));
    lines.join("\n")
}

fn check(examined: &CheckResult, verbose: bool, lines: &mut Vec<String>) {
    let mark = sign(examined.verdict);
    let id = examined.check.id;
    if examined.verdict == Verdict::Skipped && !verbose {
        // One line each: no action is needed.
        let whys: Vec<String> =
            examined.findings.iter().map(|finding| finding_lines(&finding.about, &finding.text)).collect();
        lines.push(format!("{mark} {id}: skipped: {}", whys.join("; ")));
        return;
    }
    lines.push(format!("{mark} {id}: {}", examined.check.title));
    for finding in &examined.findings {
        let text = finding_lines(&finding.about, &finding.text);
        lines.push(format!("    {} {text}", sign(finding.verdict)));
    }
    if matches!(examined.verdict, Verdict::Warning | Verdict::Error) {
        lines.push(format!("    fix: {}", examined.check.fix));
        lines.push(format!("    see: {}", examined.page));
    }
    if verbose {
        lines.extend(examined.read.iter().map(|what| format!("    read: {}", safe(what))));
    }
}

fn finding_lines(about: &str, text: &str) -> String {
    match about {
        "" => safe(text),
        about => format!("{}: {}", safe(about), safe(text)),
    }
}

/// Formats the list of all checks.
pub(super) fn list() -> String {
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
