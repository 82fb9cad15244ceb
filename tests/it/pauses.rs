//! A consumer that somebody has paused.

use serde_json::Value;

use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message};

const PAUSE: &str = "select oncely.pause_consumer('payments', null, 'a deployment', 'ana')";
const RESUME: &str = "select oncely.resume_consumer('payments', 'done', 'ana')";
const EFFECTS: &str = "select count(*) from app.effects";
/// A worker that obeys says so with its heartbeat.
const OBEYED: &str =
    "select count(*) from oncely.processes where consumers -> 0 -> 'paused' ->> 'reason' = 'a deployment'";

async fn world() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 1\nlanes = 1\nprefetch = 10");
    world.consumer("invoices", "");
    world.apply_topology().await;
    world
}

async fn say(world: &mut World, what: &'static str) {
    sqlx::query(what).execute(&mut world.sql).await.unwrap();
}

#[tokio::test]
async fn a_pause_lets_what_has_begun_end_and_returns_the_rest() {
    let mut world = world().await;
    let worker = world.start("worker");
    let gate = Gate::shut(&world).await;
    world.publish("payments", message("acme", "begun"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    for key in ["k1", "k2", "k3"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    gate.open().await;
    world.wait_for(EFFECTS, 1).await;
    world.wait_for_line(&worker, "paused: not subscribed").await;
    // All of them are back, and the one that was at work is acknowledged.
    world.wait_for_ready(&world.queue("payments"), 3).await;
    assert_eq!(world.count(EFFECTS).await, 1);
    // Others go on.
    world.publish("invoices", message("acme", "i"), "{}").await;
    world.wait_for(EFFECTS, 2).await;
    say(&mut world, RESUME).await;
    world.wait_for(EFFECTS, 5).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.audit where outcome <> 'completed'").await,
        0,
        "nothing ran twice"
    );
}

#[tokio::test]
async fn a_pause_outlives_the_worker_and_ends_by_itself() {
    let mut world = world().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 2).await;
    world.stop(worker).await;
    say(&mut world, "select oncely.pause_consumer('payments', clock_timestamp() + interval '20 s', 'a deployment', 'ana')").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start("worker");
    world.wait_for(OBEYED, 1).await;
    assert_eq!(world.count(EFFECTS).await, 0, "not even for a moment");
    let status = world.oncely(&["status", "--json"]).await;
    let object: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(object["processes"][0]["consumers"][0]["paused"]["reason"], "a deployment");
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_worker_stops_in_peace_while_it_is_paused() {
    let mut world = world().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 2).await;
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    world.stop(worker).await;
    world.wait_for("select count(*) from oncely.processes", 0).await;
}

#[tokio::test]
async fn what_a_worker_did_is_written_in_spans_up_to_its_end() {
    let mut world = world().await;
    let worker = world.start("worker");
    for key in ["k1", "k2", "k2"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for(EFFECTS, 2).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    let done = "select concat(sum(delivered), ' ', sum(completed), ' ', sum(duplicates), ' ',
            sum((select sum(d) from unnest(durations) as d)))
        from oncely.stats where consumer = 'payments'";
    assert_eq!(world.text(done).await.as_deref(), Some("3 2 1 3"));
}
