//! Lease stores: one suite for all of them, and what each has of its own.

mod articles;
mod broken_library;
mod cells;
mod clocks;
mod postgres;
mod redis_store;
mod runner;

use oncely::identity::{Identity, IdentityPart};
use oncely::lease::conformance::{self, CASES, Clock};
use oncely::lease::{Claim, ClaimOutcome, LeaseId, LeaseStore, MemoryClock, MemoryStore, fingerprint};
use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn identity(key: &str) -> Identity {
    let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
    Identity { tenant: part("acme"), consumer: part("payments"), key: part(key) }
}

pub(crate) fn claim<'a>(identity: &'a Identity, owner: &'a str) -> Claim<'a> {
    Claim {
        identity,
        fingerprint: fingerprint(b"{}"),
        owner,
        lease: LEASE,
        max_run: Duration::from_secs(600),
        retention: Duration::from_secs(86_400),
        max_crashes: 3,
    }
}

pub(crate) async fn hold(store: &impl LeaseStore, identity: &Identity, owner: &str) -> LeaseId {
    match store.claim(&claim(identity, owner)).await.unwrap() {
        ClaimOutcome::Granted(grant) => LeaseId { identity: identity.clone(), token: grant.token },
        other => panic!("{other:?}"),
    }
}

/// The suite, and random histories by a seed that a red run prints.
async fn conforms(store: &impl LeaseStore, clock: &impl Clock, histories: u64) {
    let broken = conformance::all(store, clock).await;
    assert!(broken.is_empty(), "{broken:#?}");
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    conformance::histories(store, clock, seed, histories, 20).await.unwrap();
}

#[tokio::test]
async fn the_store_in_memory_conforms() {
    assert!(CASES.len() >= 40, "{}", CASES.len());
    let clock = MemoryClock::default();
    let store = MemoryStore::in_memory(clock.clone());
    conforms(&store, &clock, 100).await;
}
