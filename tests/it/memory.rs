//! Memory: of the worker whatever is sent, and of PostgreSQL's process between batches.

use std::time::Duration;

use testbed::eventually_within;

use crate::support::{World, message};

#[tokio::test]
async fn the_servers_process_keeps_the_memory_of_a_large_batch() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1\nbatch = 500");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let body = format!("{{\"note\": \"{}\"}}", "x".repeat(250));
    let messages = (0..5_000)
        .map(|number| (queue.clone(), message("acme", &format!("k{number}")), body.clone().into_bytes()))
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 5_000).await;
    // proc(5): the tenth field is the number of page faults for which nothing was read. The name of the process has blanks in it.
    let faults = world
        .count(
            "select max(split_part(substring(pg_read_file('/proc/' || pid || '/stat') from '\\) (.*)$'), ' ', 8)::bigint)
             from pg_stat_activity where application_name like 'oncely worker%' and datname = current_database()",
        )
        .await;
    world.stop(worker).await;
    // 6,100 here (the first touch of shared buffers, most of them), and 14,100 where the memory goes back to the kernel.
    assert!((500..10_000).contains(&faults), "{faults} page faults");
}

/// Most resident memory that a worker may use.
const MOST: u64 = 200_000_000;

#[tokio::test]
async fn a_worker_s_memory_is_bounded_whatever_is_sent() {
    let mut world = World::new().await;
    world.consumer("payments", "max_body = 1048576");
    world.apply_topology().await;
    let body = vec![b'x'; 8 << 20];
    for number in 0..60 {
        world.publish_bytes("payments", message("acme", &format!("large-{number}")), &body).await;
    }
    world.publish("payments", message("acme", "good"), "{}").await;
    let worker = world.start("worker");
    let dead = format!("{}.dead", world.queue("payments"));
    eventually_within(Duration::from_secs(240), "all are dead letters", || async {
        let ready = world.broker.ready(&dead).await?;
        if ready >= 60 { Ok(()) } else { Err(anyhow::anyhow!("{ready}: {}", worker.output())) }
    })
    .await
    .unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    let peak = worker.peak_memory().unwrap();
    world.stop(worker).await;
    world.broker.purge(&dead).await.unwrap();
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    // 518 MB without the bound.
    assert!(peak < MOST, "{peak} bytes");
}

#[tokio::test]
async fn a_worker_s_memory_is_bounded_while_a_handler_takes_its_time() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create function app.wait(m oncely.message) returns jsonb language plpgsql as $$
         begin
             perform pg_advisory_xact_lock_shared(4711);
             insert into app.effects (tenant, consumer, key) values (m.tenant, m.consumer, m.key);
             return null;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    // Nothing but the gate ends a batch.
    world.configure("[postgres]\nstatement_timeout = \"5m\"\nlock_timeout = \"5m\"");
    world.consumer(
        "payments",
        "handler = { function = \"app.wait\", json = \"off\" }\nbuffer = 16777216\ndeadline = \"5m\"",
    );
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    let body = vec![b'x'; 1 << 20];
    for number in 0..150 {
        world.publish_bytes("payments", message("acme", &format!("k{number}")), &body).await;
    }
    let worker = world.start("worker");
    // It reads no more until its connection is lost, and fetches nothing while it has no room: the broker would send 2,000.
    eventually_within(Duration::from_secs(120), "it has no room", || async {
        let told = worker.output();
        if told.contains("deliveries are paused") { Ok(()) } else { Err(told) }
    })
    .await
    .unwrap();
    sqlx::query("select pg_advisory_unlock(4711)").execute(&mut gate).await.unwrap();
    world.wait_within(Duration::from_secs(120), "select count(*) from app.effects", 150).await;
    let peak = worker.peak_memory().unwrap();
    world.stop(worker).await;
    assert!(peak < MOST, "{peak} bytes");
    assert_eq!(world.count("select count(*) from app.effects").await, 150, "once, though they came again");
}
