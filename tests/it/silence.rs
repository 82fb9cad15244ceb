//! Connections that go silent: open, and nothing comes through any more. No error tells; only our own limits do.

use std::time::Duration;

use testbed::eventually;
use testbed::proxy::OneShot;

use crate::support::{World, message};

const LIMITS: &str = "[postgres]\nstatement_timeout = \"1s\"\nlock_timeout = \"1s\"";

#[tokio::test]
async fn a_worker_gives_up_a_silent_connection_and_frees_its_locks() {
    let mut world = World::new().await;
    world.configure(LIMITS);
    world.consumer("payments", "lanes = 1\nretry = { delays = [\"100ms\"], max_attempts = 3 }");
    world.apply_topology().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("begin").execute(&mut gate).await.unwrap();
    // The handler's insert waits for this, so the worker is in the middle of its transaction, with its key claimed.
    sqlx::query("lock table app.effects in exclusive mode").execute(&mut gate).await.unwrap();
    let worker = world.start_with("worker", "worker", &environment);
    world.wait_for_line(&worker, "subscribed").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let waits = "select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())";
    world.wait_for(waits, 1).await;
    proxy.forget();
    sqlx::query("commit").execute(&mut gate).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 0);
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_found_done_and_not_run_again() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let worker = world.start_with("worker", "worker", &environment);
    world.wait_for_line(&worker, "subscribed").await;
    for (round, one_shot) in [OneShot::LoseCommitReply, OneShot::CutBeforeCommit].into_iter().enumerate() {
        proxy.arm(Some(one_shot));
        world.publish("payments", message("acme", &format!("k{round}")), "{}").await;
        let effects = "select count(*) from app.effects";
        world.wait_for(effects, i64::try_from(round + 1).unwrap()).await;
        world.wait_for_ready(&world.queue("payments"), 0).await;
    }
    let found = "select count(*) from oncely.audit where key = 'k0' and outcome = 'duplicate' and reason = 'postgres'";
    world.wait_for(found, 1).await;
    world.stop(worker).await;
    assert_eq!(proxy.struck(), 2);
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
    assert_eq!(
        world.count("select count(*) from oncely.audit where key = 'k1' and outcome = 'duplicate'").await,
        0
    );
    assert_eq!(
        world
            .count("select count(*) from oncely.audit where outcome not in ('completed', 'duplicate')")
            .await,
        0
    );
}

#[tokio::test]
async fn a_relay_whose_connection_is_silent_ends_in_time() {
    let mut world = World::new().await;
    // Longer than the test would wait for a relay that waits for its connection.
    world.configure(
        "[postgres]\nstatement_timeout = \"60s\"\n[worker]\nshutdown = \"1s\"\n[relay]\npoll = \"50ms\"",
    );
    world.consumer("payments", "");
    world.apply_topology().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let mut relay = world.start_with("relay", "relay", &environment);
    world.wait_for_line(&relay, "mirror lane started").await;
    // Until its next look at the mirror queue, it can stop at once. Its lanes may open their connections after it has said that it relays.
    eventually("it looks", || async {
        proxy.forget();
        if proxy.forgotten() > 0 { Ok(()) } else { Err("nothing was sent") }
    })
    .await
    .unwrap();
    let status = relay.terminate(Duration::from_secs(20)).await.unwrap();
    assert_eq!(status.code(), Some(70), "{}", relay.output());
}
