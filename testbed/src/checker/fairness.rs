//! Liveness and fairness: in each window of time every healthy tenant that has work makes progress.

use std::collections::BTreeMap;
use std::time::Duration;

/// So long a tenant may wait while others are served.
const WHILE_OTHERS: Duration = Duration::from_secs(8);
/// So long it may wait at all, where everything that it needs is up.
const AT_ALL: Duration = Duration::from_secs(30);

/// Looks at all tenants from time to time, and notes who waited too long.
#[derive(Clone, Debug, Default)]
pub struct Fairness {
    tenants: BTreeMap<String, Standing>,
    /// Faults that hold now.
    faults: usize,
    /// When anybody made progress.
    anybody: Duration,
    starved: Vec<String>,
}

/// How a tenant fares.
#[derive(Clone, Debug)]
struct Standing {
    done: u64,
    /// Since when it has had work and made no progress.
    since: Duration,
    /// It is noted already.
    noted: bool,
}

impl Fairness {
    /// A fault is there: as long as it holds nobody is owed anything.
    pub fn fault(&mut self) {
        self.faults += 1;
    }

    /// A fault is healed: all begin to wait anew.
    pub fn healed(&mut self, at: Duration) {
        self.faults = self.faults.saturating_sub(1);
        self.restart(at);
    }

    /// All begin to wait anew.
    pub fn restart(&mut self, at: Duration) {
        for standing in self.tenants.values_mut() {
            standing.since = at;
        }
        self.anybody = at;
    }

    /// What is due by tenant, and what is done of it, at a time since the start.
    pub fn look(&mut self, at: Duration, due: &BTreeMap<String, u64>, done: &BTreeMap<String, u64>) {
        for (tenant, due) in due {
            let done = done.get(tenant).copied().unwrap_or(0);
            let standing =
                self.tenants.entry(tenant.clone()).or_insert(Standing { done, since: at, noted: false });
            if done > standing.done {
                self.anybody = at;
            }
            if done > standing.done || done >= *due || self.faults > 0 {
                *standing = Standing { done, since: at, noted: false };
            }
        }
        let (anybody, starved) = (self.anybody, &mut self.starved);
        for (tenant, standing) in self.tenants.iter_mut().filter(|(_, standing)| !standing.noted) {
            let waited = at.saturating_sub(standing.since);
            let others = anybody > standing.since + WHILE_OTHERS / 2;
            if waited > AT_ALL || (waited > WHILE_OTHERS && others) {
                standing.noted = true;
                let how = if others { "while others were served" } else { "with all the others" };
                starved.push(format!("{tenant}: {waited:.0?} {how}, {} done", standing.done));
            }
        }
    }

    /// Who waited too long, each time.
    #[must_use]
    pub fn starved(&self) -> &[String] {
        &self.starved
    }
}
