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
    /// Makes the report of the checks of a scope; a check without a finding and without read data is skipped.
    pub(super) fn from_findings(check_findings: CheckFindings, role: Role, scope: &CheckSelection) -> Self {
        let mut checks = Vec::new();
        for check in CHECKS.iter().filter(|check| scope.includes(check)) {
            let mut findings: Vec<Finding> =
                check_findings.findings.iter().filter(|finding| finding.check == check.id).cloned().collect();
            let unreachable = check_findings.unreachable.iter().filter(|(of, _)| *of == check.id);
            findings.extend(unreachable.map(|(_, text)| Finding {
                check: check.id,
                // Redis is optional.
                verdict: if check.group() == "redis" { Verdict::Warning } else { Verdict::Error },
                about: String::new(),
                text: text.clone(),
                kind: None,
            }));
            let read: Vec<String> = check_findings
                .read
                .iter()
                .filter(|(of, _)| *of == check.id)
                .map(|(_, text)| text.clone())
                .collect();
            if findings.is_empty() && read.is_empty() {
                let text = describe_missing_result(check, &check_findings);
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
        let unreachable = check_findings.unreachable.into_iter().map(|(_, text)| text).collect();
        Self { role, checks, unreachable, quoted: check_findings.quoted }
    }

    /// Returns the worst verdict of all checks.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|result| result.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Returns the number of a check's findings with this verdict.
    #[must_use]
    pub fn count(&self, check: &str, verdict: Verdict) -> usize {
        let results = self.checks.iter().filter(|result| result.check.id == check);
        results.flat_map(|result| &result.findings).filter(|finding| finding.verdict == verdict).count()
    }
}

/// Describes the reason for which a check has no result.
fn describe_missing_result(check: &Check, check_findings: &CheckFindings) -> String {
    let server = match check.group() {
        "mq" => "mq.",
        "redis" => "redis.",
        "config" => "config",
        _ => "pg.",
    };
    if let Some((of, _)) = check_findings.unreachable.iter().find(|(of, _)| of.starts_with(server)) {
        return format!("the server does not answer: see {of}");
    }
    let first = check_findings.findings.iter().find(|finding| {
        finding.verdict == Verdict::Error && (finding.check.starts_with(server) || finding.check == "config")
    });
    match first {
        Some(first) => format!("fix {} first", first.check),
        None => "nothing to check".to_owned(),
    }
}
