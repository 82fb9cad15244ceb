//! What those saw who watched a trial: consoles' pages, what `top`, `doctor` and `status` said, and what went wrong with it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding::{Findings, Invariant, What};

/// Longest time of a page: the console's own limit, three seconds and a bit, and something for the way.
pub const PAGE_LIMIT: Duration = Duration::from_millis(3_500);

/// What was read, and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Answers of the consoles, by status.
    pub pages: BTreeMap<u16, u64>,
    /// The slowest page, without the time for which the machine kept its console (or us) waiting.
    pub slowest: Option<(Duration, String)>,
    /// Decisions that were told to whoever followed the trail.
    pub followed: u64,
    /// Requeues that an operator began in a console, and letters of them.
    pub requeues: (u64, u64),
    /// How the programs ended, such as `doctor 1`, and how often.
    pub ends: BTreeMap<String, u64>,
    /// Lines of `top`.
    pub lines: u64,
    /// What must not be.
    pub wrong: Vec<(What, String)>,
}

impl Watched {
    /// An answer has come.
    pub fn record_page(&mut self, status: u16, took: Duration, path: &str) {
        *self.pages.entry(status).or_insert(0) += 1;
        if self.slowest.as_ref().is_none_or(|(most, _)| took > *most) {
            self.slowest = Some((took, path.to_owned()));
        }
        if took > PAGE_LIMIT {
            self.wrong.push((What::WatcherSlow, format!("{path}: {status} after {took:.1?}")));
        }
    }

    /// A program has ended.
    pub fn record_end(&mut self, how: &str) {
        *self.ends.entry(how.to_owned()).or_insert(0) += 1;
    }

    pub(super) fn judge(&self, found: &mut Findings) {
        for (what, text) in &self.wrong {
            found.add(Invariant::I15, *what, text);
        }
    }
}
