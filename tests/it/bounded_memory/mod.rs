//! Worker, relay and gateway with the memory that the manifests give them, whatever a message holds: none ends, and the messages of
//! others go on.

mod chance;
mod events;
mod headers;
mod messages;
mod processes;
mod responses;

use std::time::{Duration, Instant};

use testbed::Process;

use crate::support::{World, message};

pub(crate) use chance::Chance;

/// As in deploy/kubernetes.
pub(crate) const LIMIT: u64 = 256 << 20;

/// The largest body that a consumer takes by default.
const LARGE: usize = 16 << 20;

/// Bounds a wait for the largest bodies, which an unoptimised build reads slowly beside other tests. Three waits fit into nextest's limit for
/// a test (`.config/nextest.toml`): a test fails with its state before nextest ends it.
const LONG: Duration = Duration::from_secs(280);

/// A handler that takes its time for a large body.
const SLOW: &str = "create function app.slow(message oncely.message) returns jsonb language plpgsql as $$
    begin
        perform pg_sleep(case when octet_length(message.body) > 1000 then 2 else 0 end);
        return app.handle(message);
    end $$";

/// Waits until a query gives this number, as long as the process lives.
async fn until(world: &mut World, process: &mut Process, query: &str, wanted: i64) {
    let began = Instant::now();
    loop {
        let found = world.count(query).await;
        assert!(process.is_running(), "{found} of {wanted}: {}", process.output());
        if found == wanted {
            return;
        }
        assert!(began.elapsed() < LONG, "{found} of {wanted}: {}", process.output());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A message of another tenant.
async fn serves(world: &mut World, worker: &mut Process, key: &str) {
    world.publish("payments", message("beta", key), &format!("{{\"id\":{key:?}}}")).await;
    let done = format!("select count(*) from app.effects where tenant = 'beta' and key = '{key}'");
    until(world, worker, &done, 1).await;
}
