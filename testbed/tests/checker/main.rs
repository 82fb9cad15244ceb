//! The judge sees what is wrong, and names it: a judge that finds nothing proves nothing.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used)]

mod events;
mod fairness;
mod leases;
mod messages;
mod observed;
mod proxied;
mod requests;
mod stored;
mod verdicts;

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use testbed::checker::events::{Arrival, Emitted, Events};
use testbed::checker::mirror::{Entry, find_stale, read_entries};
use testbed::checker::{
    Act, Class, Evidence, Fairness, Intent, Invariant, Key, Ladder, Letter, PAGE_LIMIT, RETURNING, Sent,
    Step, What, count, digest, judge,
};
use testbed::{Database, Servers};

pub(crate) fn key(name: &str) -> Key {
    ("acme".to_owned(), name.to_owned())
}

pub(crate) fn intent(name: &str, act: Act, version: u32) -> Intent {
    Intent::new("acme", name, act, version)
}

pub(crate) fn letter(intent: &Intent, reason: &str) -> Letter {
    let key = (intent.tenant.clone(), intent.key.clone());
    Letter { key, digest: digest(&intent.body), reason: reason.to_owned() }
}

pub(crate) fn sent(intents: &[(&Intent, Class)]) -> Sent {
    let mut sent = Sent::default();
    for (intent, class) in intents {
        sent.intend(intent);
        sent.learn(intent, *class);
    }
    sent
}

/// One effect, with everything that belongs to it.
pub(crate) fn took_effect(evidence: &mut Evidence, intent: &Intent) {
    let key = key(&intent.key);
    *evidence.effects.entry(key.clone()).or_default() += 1;
    evidence.runs.entry(key.clone()).or_default().push((digest(&intent.body), 1, "worker-1".to_owned()));
    evidence.status.insert(key.clone(), "COMPLETED".to_owned());
    evidence.completed.insert(key, 1);
}

pub(crate) fn found(sent: &Sent, evidence: &Evidence) -> BTreeMap<(Invariant, What), u64> {
    judge(sent, evidence).into_iter().map(|v| ((v.invariant, v.what), v.count)).collect()
}

/// A trial in which everything went as it should: work, a failure of each kind, a conflict, an unknown confirm.
pub(crate) fn good() -> (Sent, Evidence) {
    let mut evidence = Evidence::default();
    let [a, b] = ["a", "b"].map(|name| intent(name, Act::Work, 0));
    let (reject, divide, fail) =
        (intent("r", Act::Reject, 0), intent("d", Act::Divide, 0), intent("f", Act::Fail, 0));
    let (winner, loser) = (intent("c", Act::Work, 0), intent("c", Act::Work, 1));
    let unknown = intent("u", Act::Work, 0);
    let books = sent(&[
        (&a, Class::Confirmed),
        (&a, Class::Confirmed),
        (&b, Class::Confirmed),
        (&reject, Class::Confirmed),
        (&divide, Class::Confirmed),
        (&fail, Class::Confirmed),
        (&winner, Class::Confirmed),
        (&loser, Class::Confirmed),
        (&unknown, Class::Unknown),
    ]);
    for one in [&a, &b, &winner] {
        took_effect(&mut evidence, one);
    }
    for (one, reason) in [
        (&reject, "handler_rejected"),
        (&divide, "poison"),
        (&fail, "attempts_exhausted"),
        (&loser, "key_conflict"),
    ] {
        evidence.dead.insert(letter(one, reason));
    }
    evidence.recoveries.push(("kill_worker".to_owned(), Some(Duration::from_secs(1))));
    (books, evidence)
}
