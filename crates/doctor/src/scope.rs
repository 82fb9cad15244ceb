//! Selection of checks.

use super::check::Check;
use super::limits::Limits;
use super::role::Role;

/// Selection of checks.
#[derive(Clone, Debug, Default)]
pub struct CheckSelection {
    /// Ids or groups of checks; empty: all.
    pub only: Vec<String>,
    /// Role of the login; `None`: by its grants.
    pub role: Option<Role>,
    /// Only the checks that a process of the role runs before it starts, with its time limits.
    pub at_start: bool,
    /// Thresholds of findings.
    pub limits: Limits,
}

impl CheckSelection {
    /// Returns whether the report contains a check. A check outside the selection may still run, because others depend on it; its findings
    /// are dropped.
    pub(super) fn includes(&self, check: &Check) -> bool {
        (check.at_start || !self.at_start)
            && (self.only.is_empty() || self.only.iter().any(|one| one == check.id || one == check.group()))
    }

    /// Returns whether the report contains a check of these groups.
    pub(super) fn includes_any_of(&self, groups: &[&str]) -> bool {
        super::CHECKS.iter().any(|check| groups.contains(&check.group()) && self.includes(check))
    }
}
