//! What a check is.

use serde::Serialize;

/// A check.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Its stable name: what it is about, a full stop, what of it.
    pub id: &'static str,
    /// In one line.
    pub title: &'static str,
    /// What it reads.
    pub reads: &'static str,
    /// What is bad, and how bad.
    pub bad: &'static str,
    /// What to do then.
    pub fix: &'static str,
    /// What `oncely check` asks, and mostly what a worker or relay asks before it starts.
    pub at_start: bool,
}

impl Check {
    /// Where the book says more.
    #[must_use]
    pub fn page(&self) -> String {
        format!("docs/src/how-to/doctor.md#{}", self.id.replace('.', ""))
    }

    /// What it is about: the part of its id before the full stop.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }
}
