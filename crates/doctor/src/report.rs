//! The doctor's report.

use serde::Serialize;

use super::catalogue::CHECKS;
use super::check::Check;
use super::role::Role;
use super::scope::CheckSelection;
use oncely_process::preflight::{CheckFindings, Finding, QuotedText, Verdict};

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckResult {
    /// The check.
    #[serde(flatten)]
    pub check: &'static Check,
    /// Worst verdict of its findings; [`Verdict::Ok`] only if it has run and found nothing.
    pub verdict: Verdict,
    /// Findings, the worst first.
    pub findings: Vec<Finding>,
    /// Data that it has read.
    pub read: Vec<String>,
    /// Page of its documentation.
    pub page: String,
}

/// Results of all checks.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Role of the login.
    pub role: Role,
    /// Results in the order of [`CHECKS`].
    pub checks: Vec<CheckResult>,
    /// Servers that do not answer.
    pub unreachable: Vec<String>,
    /// Quoted texts that an archive must mask.
    #[serde(skip)]
    pub quoted: Vec<QuotedText>,
}

impl Report {
    pub(super) fn from_findings(found: CheckFindings, role: Role, scope: &CheckSelection) -> Self {
        let mut checks = Vec::new();
        for check in CHECKS.iter().filter(|check| scope.includes(check)) {
            let mut findings: Vec<Finding> =
                found.findings.iter().filter(|finding| finding.check == check.id).cloned().collect();
            let away = found.unreachable.iter().filter(|(of, _)| *of == check.id);
            findings.extend(away.map(|(_, text)| Finding {
                check: check.id,
                // Redis is optional.
                verdict: if check.group() == "redis" { Verdict::Warning } else { Verdict::Error },
                about: String::new(),
                text: text.clone(),
                kind: None,
            }));
            let read: Vec<String> =
                found.read.iter().filter(|(of, _)| *of == check.id).map(|(_, what)| what.clone()).collect();
            if findings.is_empty() && read.is_empty() {
                let text = not_looked_at(check, &found);
                findings.push(Finding {
                    check: check.id,
                    verdict: Verdict::Skipped,
                    about: String::new(),
                    text,
                    kind: None,
                });
            }
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
            checks.push(CheckResult {
                check,
                verdict: findings.first().map_or(Verdict::Ok, |finding| finding.verdict),
                findings,
                read,
                page: check.page(),
            });
        }
        let unreachable = found.unreachable.into_iter().map(|(_, text)| text).collect();
        Self { role, checks, unreachable, quoted: found.quoted }
    }

    /// Returns the worst verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|examined| examined.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Returns the number of a check's findings with this verdict.
    #[must_use]
    pub fn count(&self, check: &str, verdict: Verdict) -> usize {
        let of = self.checks.iter().filter(|examined| examined.check.id == check);
        of.flat_map(|examined| &examined.findings).filter(|finding| finding.verdict == verdict).count()
    }
}

/// Returns why a check has no result.
fn not_looked_at(check: &Check, found: &CheckFindings) -> String {
    let server = match check.group() {
        "mq" => "mq.",
        "redis" => "redis.",
        "config" => "config",
        _ => "pg.",
    };
    if let Some((of, _)) = found.unreachable.iter().find(|(of, _)| of.starts_with(server)) {
        return format!("the server does not answer: see {of}");
    }
    let first = found.findings.iter().find(|finding| {
        finding.verdict == Verdict::Error && (finding.check.starts_with(server) || finding.check == "config")
    });
    match first {
        Some(first) => format!("fix {} first", first.check),
        None => "nothing to check".to_owned(),
    }
}
