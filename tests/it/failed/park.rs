//! Messages that are set aside by hand.

use serde_json::json;

use super::{WAITING, failed};
use crate::support::{World, message};

async fn world(retry: &str) -> World {
    let mut world = World::new().await;
    world.consumer("payments", &format!("retry = {{ delays = [{retry:?}], max_attempts = 9 }}"));
    world.apply_topology().await;
    world
}

async fn park(world: &World, code: i32, key: &str) -> serde_json::Value {
    failed(world, code, &["park", key, "--tenant", "acme", "--yes", "--note", "it harms"]).await
}

#[tokio::test]
async fn a_key_that_nobody_has_seen_is_parked_before_it_comes_and_runs_once_it_is_requeued() {
    let mut world = world("20ms").await;
    let plan = failed(&world, 0, &["park", "k", "--tenant", "acme", "--dry-run"]).await;
    assert_eq!((&plan["count"], &plan["known"]), (&json!(1), &json!(null)));
    assert_eq!(
        world.count("select count(*) from oncely.idempotency_keys").await,
        0,
        "a dry run changes nothing"
    );
    assert_eq!(park(&world, 0, "k").await["outcome"], "parked");
    let action =
        "select concat_ws('|', tenant, verb, count, reason, filter ->> 'key') from oncely.operator_actions";
    assert_eq!(world.text(action).await.unwrap(), "acme|park|1|it harms|k");
    let worker = world.start("worker");
    for key in ["k", "other"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for(&format!("{WAITING} and reason = 'parked' and key = 'k' and attempt = 0"), 1).await;
    world.wait_for("select count(*) from app.effects where key = 'other'", 1).await;
    world.wait_for_ready(&super::dead(&world), 1).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'k'").await, 0);
    let text = world.oncely(&["explain", "k"]).await;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("PARKED: set aside by hand") && text.contains("it harms"), "{text}");
    failed(&world, 0, &["requeue", "--key", "k", "--yes"]).await;
    world.wait_for("select count(*) from app.effects where key = 'k'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&super::dead(&world)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_key_that_is_tried_again_is_parked_in_between() {
    let mut world = world("2s").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "fail"}"#).await;
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS' and attempts = 1",
            1,
        )
        .await;
    assert_eq!(park(&world, 0, "k").await["known"]["attempts"], 1);
    world.wait_for(&format!("{WAITING} and reason = 'parked'"), 1).await;
    world.stop(worker).await;
    let runs = "select attempts::bigint from oncely.idempotency_keys where key = 'k' and status = 'FAILED'";
    assert_eq!(world.count(runs).await, 1, "it did not run again");
}

#[tokio::test]
async fn a_key_that_keeps_a_worker_waiting_is_parked() {
    let mut world = world("20ms").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    world.wait_for_line(&worker, "42P01").await;
    assert_eq!(park(&world, 0, "k").await["outcome"], "parked");
    world.wait_for(&format!("{WAITING} and reason = 'parked'"), 1).await;
    world.publish("payments", message("acme", "next"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'next'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn what_is_final_is_not_parked_and_nobody_is_asked_twice() {
    let mut world = world("20ms").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "done"), "{}").await;
    world.publish("payments", message("acme", "bad"), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from oncely.audit", 2).await;
    world.stop(worker).await;
    park(&world, 1, "done").await;
    park(&world, 1, "bad").await;
    failed(&world, 4, &["park", "k", "--tenant", "acme"]).await;
    failed(&world, 2, &["park", "k", "--tenant", "acme", "--consumer", "nobody"]).await;
    failed(&world, 1, &["park", "k", "--tenant", "", "--yes"]).await;
    let states = "select string_agg(key || ' ' || status || ' ' || coalesce(reason, ''), ', ' order by key) from oncely.idempotency_keys";
    assert_eq!(world.text(states).await.unwrap(), "bad FAILED handler_rejected, done COMPLETED ");
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
}

#[tokio::test]
async fn a_parked_key_stays_until_its_message_has_come_however_long_that_takes() {
    let mut world = world("20ms").await;
    world.register("payments", "7d").await;
    for key in ["k", "other"] {
        park(&world, 0, key).await;
    }
    let worker = world.start("worker");
    world.publish("payments", message("acme", "other"), "{}").await;
    world.wait_for(&format!("{WAITING} and key = 'other'"), 1).await;
    world.stop(worker).await;
    sqlx::raw_sql(
        "update oncely.idempotency_keys
         set created_at = created_at - interval '30 days', completed_at = completed_at - interval '30 days'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let plan = world.oncely(&["gc", "run", "--dry-run", "--json"]).await;
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan["consumers"][0]["failed"], 1, "{plan}");
    let done = world.oncely(&["gc", "run"]).await;
    assert!(done.status.success(), "{done:?}");
    let left = "select string_agg(key, ' ') from oncely.idempotency_keys";
    assert_eq!(
        world.text(left).await.as_deref(),
        Some("k"),
        "the dead letter of the other one speaks for it"
    );
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&format!("{WAITING} and key = 'k' and reason = 'parked'"), 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
}
