//! What is looked at, and how bad is bad.

use std::time::Duration;

use super::check::Check;
use super::role::Role;

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Ids of checks, or what they begin with before the full stop; empty: all.
    pub only: Vec<String>,
    /// What the login is for; `None`: what its roles say.
    pub role: Option<Role>,
    /// Only what a process of the role asks before it starts, with the patience of such a process.
    pub at_start: bool,
    /// How bad is bad.
    pub limits: Limits,
}

impl Scope {
    /// Is this check asked for? Some are looked at all the same, because others follow from them.
    pub(super) fn includes(&self, check: &Check) -> bool {
        (check.at_start || !self.at_start)
            && (self.only.is_empty() || self.only.iter().any(|one| one == check.id || one == check.group()))
    }

    /// Is some check asked for that begins so?
    pub(super) fn asks_for(&self, groups: &[&str]) -> bool {
        super::CHECKS.iter().any(|check| groups.contains(&check.group()) && self.includes(check))
    }
}

/// Where a number becomes a finding. The defaults are what the book says.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A transaction that holds back vacuum for longer is told.
    pub transaction: Duration,
    /// So many dead rows in a table are told where they are a fifth of it.
    pub dead_rows: i64,
    /// So many bytes of the log that an inactive slot keeps are a warning.
    pub slot_bytes: i64,
    /// Fewer decisions or deliveries than this say nothing about identities.
    pub decisions: i64,
    /// A pause that lasts longer is a warning.
    pub pause: Duration,
    /// The clocks may be so far apart.
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
