//! `consumers.fair`: tenants take turns within what the broker has sent ahead.

use crate::support::gate::Gate;
use crate::support::{World, message};

/// Another tenant has so many messages before the one of acme.
const FLOOD: i64 = 150;

/// How many messages took effect before acme's, and whether those of the other tenant kept their order.
async fn effects_before_acme(settings: &str) -> (i64, bool) {
    let mut world = World::new().await;
    world.configure("[postgres]\nstatement_timeout = \"60s\"\nlock_timeout = \"60s\"");
    world.consumer("payments", &format!("lanes = 1\nbatch = 10\nprefetch = 400\n{settings}"));
    world.apply_topology().await;
    sqlx::raw_sql("alter table app.effects add column place bigint generated always as identity")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    world.publish("payments", message("flood", "k000"), r#"{"do": "wait"}"#).await;
    for number in 1..FLOOD {
        world.publish("payments", message("flood", &format!("k{number:03}")), "{}").await;
    }
    world.publish("payments", message("acme", "one"), "{}").await;
    // All of them are in the worker's hands before the first batch is through.
    let sent = format!(
        "select count(*) from oncely.processes where consumers -> 0 -> 'unacknowledged' ->> '{}' = '{}'",
        world.queue("payments"),
        FLOOD + 1
    );
    world.wait_for(&sent, 1).await;
    gate.open().await;
    world.wait_for("select count(*) from app.effects", FLOOD + 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    let before = "select count(*) from app.effects where place < (select place from app.effects where tenant = 'acme')";
    let disorder = "select count(*) from (
            select key < lag(key) over (order by place) as earlier from app.effects where tenant = 'flood'
        ) as e where earlier";
    (world.count(before).await, world.count(disorder).await == 0)
}

#[tokio::test]
async fn a_tenants_single_message_waits_for_one_round_of_anothers_backlog() {
    let (before, in_order) = effects_before_acme("fair = true").await;
    assert!(before < 20, "it is in the batch behind the one that was at work: {before}");
    assert!(in_order, "a tenant's own messages keep their order");
    assert_eq!(effects_before_acme("").await, (FLOOD, true), "without turns they go as they came");
}
