//! Definition of a check.

use serde::Serialize;

/// A check.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Stable id: `subject.aspect`.
    pub id: &'static str,
    /// Title, in one line.
    pub title: &'static str,
    /// Data that it reads.
    pub reads: &'static str,
    /// Bad results and their severity.
    pub bad: &'static str,
    /// Remedy.
    pub fix: &'static str,
    /// Whether `oncely check` runs it; workers and relays run most of these before they start.
    pub at_start: bool,
}

impl Check {
    /// Returns the path of the documentation of the check, with its section.
    #[must_use]
    pub fn page(&self) -> String {
        format!("docs/src/how-to/doctor.md#{}", self.id.replace('.', ""))
    }

    /// Returns the subject of the check: the part of its id before the full stop.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }
}
