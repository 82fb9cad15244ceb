//! Locks: what somebody holds is left for later, and what our batching brings together is nobody's failure.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _};

use super::publish_many;
use crate::support::{World, message};

#[tokio::test]
async fn keys_that_a_client_holds_keep_no_other_message_waiting_and_spend_nothing() {
    let mut world = World::new().await;
    world.configure("[postgres]\nlock_timeout = \"1s\"");
    world.consumer("payments", "retry = { delays = [\"100ms\"], max_attempts = 1 }");
    world.apply_topology().await;
    let mut client = world.database.connect().await.unwrap();
    let mut transaction = client.begin().await.unwrap();
    for key in ["held0", "held1"] {
        sqlx::query(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
             values ('acme', 'payments', $1, 'COMPLETED', 1, now(), now())",
        )
        .bind(key)
        .execute(&mut *transaction)
        .await
        .unwrap();
    }
    publish_many(&world, "acme", "held", 2, "{}").await;
    publish_many(&world, "other", "free", 400, "{}").await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 400).await;
    // Also what comes while they are held.
    publish_many(&world, "other", "late", 100, "{}").await;
    world.wait_for("select count(*) from app.effects", 500).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
    transaction.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 502).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn a_tenant_whose_keys_are_all_held_keeps_no_other_tenant_waiting() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut client = world.database.connect().await.unwrap();
    let mut transaction = client.begin().await.unwrap();
    let hold = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        select 'acme', 'payments', 'held' || n, 'COMPLETED', 1, now(), now() from generate_series(0, 599) as n";
    sqlx::query(hold).execute(&mut *transaction).await.unwrap();
    publish_many(&world, "acme", "held", 600, "{}").await;
    let worker = world.start("worker");
    world.wait_for_ready(&world.queue("payments"), 0).await;
    for round in 1..=3 {
        publish_many(&world, "globex", &format!("free{round}-"), 5, "{}").await;
        world.wait_within(Duration::from_secs(15), "select count(*) from app.effects", 5 * round).await;
    }
    transaction.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 615).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn batches_that_lock_the_same_rows_in_another_order_spend_no_attempt() {
    let mut world = World::new().await;
    world
        .sql
        .execute(
            "create table app.hot (id integer primary key, n integer not null default 0);
             insert into app.hot select generate_series(0, 19);
             create function app.count_hot(message oncely.message) returns jsonb language plpgsql as $$
             begin
                 update app.hot set n = n + 1 where id = (message.payload ->> 'row')::integer;
                 return null;
             end $$",
        )
        .await
        .unwrap();
    world.consumer(
        "payments",
        "batch = 100\nlanes = 4\nhandler = { function = \"app.count_hot\" }\nretry = { delays = [\"100ms\"], max_attempts = 1 }",
    );
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..1_200_usize)
        .map(|number| {
            let row = number.wrapping_mul(2_654_435_761) >> 7;
            (
                queue.clone(),
                message("acme", &format!("k{number}")),
                format!("{{\"row\": {}}}", row % 20).into(),
            )
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    let done = "select sum(n) from app.hot";
    world.wait_within(Duration::from_secs(60), done, 1_200).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}
