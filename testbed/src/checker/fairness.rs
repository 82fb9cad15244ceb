//! Liveness and fairness: in each window of time every healthy tenant that has work makes progress.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ledger::Key;

/// So long a tenant may wait while others overtake it: what was under way when workers died runs one by one, also on a busy machine.
const OVERTAKEN: Duration = Duration::from_secs(20);
/// So many messages of others may be done beyond those that were there when a tenant began to wait: a queue has several consumers, and
/// each of them takes many messages at once.
const SLACK: u64 = 10;
/// So long it may wait at all, where everything that it needs is up.
const AT_ALL: Duration = Duration::from_secs(30);

/// So long a message that updates a hot row may wait, where nothing is at fault.
const HOT: Duration = Duration::from_secs(25);

/// Looks at all tenants from time to time, and notes who waited too long.
#[derive(Clone, Debug, Default)]
pub struct Fairness {
    tenants: BTreeMap<String, Standing>,
    /// Faults that hold now.
    faults: usize,
    starved: Vec<String>,
    /// Since when nothing has been at fault, by the last looks at what waits.
    calm: Option<Duration>,
    /// Messages that waited before this time are not judged: each has to run alone in its process.
    one_by_one: Option<Duration>,
    /// Messages that waited too long.
    late: BTreeSet<Key>,
    /// The longest time that one of those has waited while nothing was at fault.
    pub longest: Duration,
}

/// How a tenant fares.
#[derive(Clone, Debug)]
struct Standing {
    done: u64,
    /// Since when it has had work and made no progress.
    since: Duration,
    /// What the others had done by then and what they had to do, together: when they have done more, they have overtaken it.
    ahead: u64,
    /// It is noted already.
    noted: bool,
}

impl Fairness {
    /// Begins a fault: as long as it holds, a tenant that gets nothing is no violation.
    pub fn begin_fault(&mut self) {
        self.faults += 1;
    }

    /// Ends a fault, and restarts the waits of all.
    pub fn end_fault(&mut self) {
        self.faults = self.faults.saturating_sub(1);
        self.restart();
    }

    /// Restarts the waits of all.
    pub fn restart(&mut self) {
        self.tenants.clear();
        self.calm = None;
        self.one_by_one = None;
    }

    /// From now on, at a time since the start, the messages that wait run one by one: those that come later must not wait for them.
    pub fn run_one_by_one(&mut self, at: Duration) {
        self.one_by_one = Some(at);
    }

    /// Messages that wait, and since when, at a time since the start.
    pub fn look_at_waiting(&mut self, at: Duration, waiting: &[(Key, Duration)]) {
        if self.faults > 0 {
            return;
        }
        let calm = *self.calm.get_or_insert(at);
        let is_judged = |since: Duration| self.one_by_one.is_none_or(|begun| since >= begun);
        for (key, since) in waiting.iter().filter(|(_, since)| is_judged(*since)) {
            let waited = at.saturating_sub(calm.max(*since));
            self.longest = self.longest.max(waited);
            if waited > HOT && self.late.insert(key.clone()) {
                self.starved.push(format!(
                    "{}/{}: {waited:.0?} while nothing was at fault, at {at:.0?}",
                    key.0, key.1
                ));
            }
        }
    }

    /// What is due by tenant, and what is done of it, at a time since the start.
    pub fn look(&mut self, at: Duration, due: &BTreeMap<String, u64>, done: &BTreeMap<String, u64>) {
        let done_by = |tenant: &str| done.get(tenant).copied().unwrap_or(0);
        let served: u64 = due.keys().map(|tenant| done_by(tenant)).sum();
        // What is done and not yet known to be published counts as both.
        let ahead: u64 = due.iter().map(|(tenant, due)| (*due).max(done_by(tenant))).sum();
        for (tenant, due) in due {
            let done = done_by(tenant);
            let begins = Standing { done, since: at, ahead: ahead - done.max(*due), noted: false };
            let standing = self.tenants.entry(tenant.clone()).or_insert_with(|| begins.clone());
            if done > standing.done || done >= *due || self.faults > 0 {
                *standing = begins;
            }
            let waited = at.saturating_sub(standing.since);
            let is_overtaken = served - done > standing.ahead + SLACK;
            if !standing.noted && (waited > AT_ALL || (waited > OVERTAKEN && is_overtaken)) {
                standing.noted = true;
                let how = if is_overtaken { "while others overtook it" } else { "with all the others" };
                self.starved.push(format!("{tenant}: {waited:.0?} {how}, at {at:.0?}, {done} of {due} done"));
            }
        }
    }

    /// Who waited too long, each time.
    #[must_use]
    pub fn starved(&self) -> &[String] {
        &self.starved
    }
}
