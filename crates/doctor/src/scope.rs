//! Selection of checks, and thresholds.

use std::time::Duration;

use super::check::Check;
use super::role::Role;

/// Selection of checks.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Ids or groups of checks; empty: all.
    pub only: Vec<String>,
    /// Role of the login; `None`: by its grants.
    pub role: Option<Role>,
    /// Only the checks that a process of the role runs before it starts, with its time limits.
    pub at_start: bool,
    /// Thresholds of findings.
    pub limits: Limits,
}

impl Scope {
    /// Returns whether a check is selected. Some run in any case, because others depend on them.
    pub(super) fn includes(&self, check: &Check) -> bool {
        (check.at_start || !self.at_start)
            && (self.only.is_empty() || self.only.iter().any(|one| one == check.id || one == check.group()))
    }

    /// Returns whether a check of these groups is selected.
    pub(super) fn asks_for(&self, groups: &[&str]) -> bool {
        super::CHECKS.iter().any(|check| groups.contains(&check.group()) && self.includes(check))
    }
}

/// Thresholds of findings. The defaults are documented in the book.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum age of a transaction that holds back vacuum.
    pub transaction: Duration,
    /// Number of dead rows in a table that is reported if they are a fifth of it.
    pub dead_rows: i64,
    /// Bytes of the log kept by an inactive slot that cause a warning.
    pub slot_bytes: i64,
    /// Minimum number of decisions or deliveries for a judgement of identities.
    pub decisions: i64,
    /// Length of a pause that causes a warning.
    pub pause: Duration,
    /// Maximum difference of the clocks.
    pub skew: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transaction: Duration::from_secs(15 * 60),
            dead_rows: 50_000,
            slot_bytes: 1 << 30,
            decisions: 50,
            pause: Duration::from_secs(86_400),
            skew: Duration::from_secs(1),
        }
    }
}
