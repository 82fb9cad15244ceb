//! What the doctor says.

use serde::Serialize;

use super::catalogue::CHECKS;
use super::check::Check;
use super::role::Role;
use super::scope::Scope;
use crate::preflight::{Finding, Found, Quoted, Verdict};

/// What a check says.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Examined {
    /// The check.
    #[serde(flatten)]
    pub check: &'static Check,
    /// The worst of its findings; [`Verdict::Ok`] only where it has looked and found nothing.
    pub verdict: Verdict,
    /// What it found, the worst first.
    pub findings: Vec<Finding>,
    /// What it read.
    pub read: Vec<String>,
    /// Where the book says more.
    pub page: String,
}

/// What all checks say.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What the login is for.
    pub role: Role,
    /// In the order of [`CHECKS`].
    pub checks: Vec<Examined>,
    /// Servers that do not answer.
    pub unreachable: Vec<String>,
    /// What an archive must not say of the above.
    #[serde(skip)]
    pub(crate) quoted: Vec<Quoted>,
}

impl Report {
    pub(super) fn of(found: Found, role: Role, scope: &Scope) -> Self {
        let mut checks = Vec::new();
        for check in CHECKS.iter().filter(|check| scope.includes(check)) {
            let mut findings: Vec<Finding> =
                found.findings.iter().filter(|finding| finding.check == check.id).cloned().collect();
            let away = found.unreachable.iter().filter(|(of, _)| *of == check.id);
            findings.extend(away.map(|(_, text)| Finding {
                check: check.id,
                // Without Redis everything goes on.
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
            checks.push(Examined {
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

    /// The worst of all.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|examined| examined.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// How many findings of this severity a check has.
    #[must_use]
    pub fn count(&self, check: &str, verdict: Verdict) -> usize {
        let of = self.checks.iter().filter(|examined| examined.check.id == check);
        of.flat_map(|examined| &examined.findings).filter(|finding| finding.verdict == verdict).count()
    }
}

/// Why a check has nothing to say.
fn not_looked_at(check: &Check, found: &Found) -> String {
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
        Some(first) => format!("looked at when {} is mended", first.check),
        None => "there was nothing to look at".to_owned(),
    }
}
