//! Steps that several scripts have.

use std::time::Duration;

use testbed::checker::{Act, Intent};
use testbed::{Arena, eventually_within};

/// Intents with keys of this name.
pub(super) fn some(count: usize, act: Act, name: &str) -> Vec<Intent> {
    (0..count).map(|number| Intent::new("acme", &format!("{name}-{number}"), act, 0)).collect()
}

/// Publishes and waits for the confirms.
pub(super) async fn publish(arena: &Arena, intents: Vec<Intent>) -> anyhow::Result<()> {
    arena.publish(intents);
    eventually_within(Duration::from_secs(20), "all is published", || async {
        let left = arena.unpublished();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await
}

/// As if the processes' whole machine had died: else the server goes on with a transaction of one statement, and commits it.
pub(super) async fn end_sessions(arena: &Arena) -> anyhow::Result<()> {
    arena
        .sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ '^oncely (worker|relay) '")
        .await
}
