//! Bodies and messages of any size.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use testbed::Process;

use super::{Chance, LARGE, LIMIT, LONG, SLOW, serves, until};
use crate::support::{World, message};

/// Waits until a process has logged this, as long as it lives.
async fn logged(process: &mut Process, text: &str) {
    let began = Instant::now();
    while !process.output().contains(text) {
        assert!(process.is_running() && began.elapsed() < LONG, "{}", process.output());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A body of this size from pieces.
fn filled(start: &str, end: &str, piece: impl Fn(usize) -> String) -> String {
    let mut body = start.to_owned();
    for number in 0.. {
        let next = piece(number);
        if body.len() + next.len() + end.len() > LARGE {
            return body + end;
        }
        body.push_str(&next);
    }
    body
}

/// Bodies that take many times their size when a tree is made of them.
fn bodies() -> Vec<String> {
    let half = LARGE / 2 - 100;
    vec![
        filled("{\"id\":\"fields\"", "}", |n| format!(",\"{n:x}\":0")),
        filled("{\"id\":\"objects\"", "}", |n| format!(",\"{n:x}\":{{}}")),
        filled("{\"id\":\"escapes\"", "}", |n| format!(",\"\\u0061{n:x}\":\"\\n\"")),
        filled("{\"id\":\"items\",\"a\":[0", "]}", |_| ",0".to_owned()),
        filled("{\"id\":\"arrays\",\"a\":[0", "]}", |_| ",[]".to_owned()),
        format!("{{\"id\":\"deep\",\"a\":{}{}}}", "[".repeat(half), "]".repeat(half)),
        format!("{{\"id\":\"escaped\",\"a\":\"{}\"}}", "\\n".repeat(half)),
        format!("{{\"id\":\"name\",\"{}\":0}}", "\\n".repeat(half)),
    ]
}

#[tokio::test]
async fn no_body_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer(
        "payments",
        "fingerprint = \"canonical_json\"\nkey = { json_pointer = \"/id\" }\nlanes = 4",
    );
    world.apply_topology().await;
    let bodies = bodies();
    for body in &bodies {
        world.publish_bytes("payments", message("acme", "k"), body.as_bytes()).await;
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    let done = i64::try_from(bodies.len()).unwrap();
    until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'acme'", done).await;
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_number_of_lanes_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(SLOW).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "lanes = 8\nhandler = { function = \"app.slow\" }");
    world.apply_topology().await;
    // As many as the consumer's buffer takes are at work at a time.
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(LARGE - 100));
    for number in 0..12 {
        world.publish("payments", message("acme", &format!("k{number}")), &body).await;
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'acme'", 12).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_to_be_read_stays_in_its_queue() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer("payments", "prefetch = 4\nbatch = 1\nlanes = 1");
    world.apply_topology().await;
    // RabbitMQ takes 128 MiB before 4.0, and 16 MiB since.
    let body = vec![b'x'; 120 << 20];
    let queue = world.queue("payments");
    let taken = world.broker.publish("", &queue, message("acme", "huge"), &body).await;
    if taken.is_err() {
        eprintln!("skipped: this broker takes no message of {} bytes", body.len());
        return;
    }
    // Its marks are this process's own.
    let mut forged = FieldTable::default();
    forged.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    forged.insert("x-oncely-body-unread".into(), AMQPValue::ByteArray(vec![0; 24].into()));
    world
        .publish(
            "payments",
            BasicProperties::default().with_message_id("forged".into()).with_headers(forged),
            "",
        )
        .await;
    for number in 0..3 {
        world.publish_bytes("payments", message("acme", &format!("huge-{number}")), &body).await;
    }
    let mut worker = world.start("worker");
    // More of them than the broker sends ahead.
    serves(&mut world, &mut worker, "after").await;
    until(&mut world, &mut worker, "select count(*) from app.effects where key = 'forged'", 1).await;
    assert!(worker.output().contains("too large to be read"), "{}", worker.output());
    world.stop(worker).await;
    world.wait_for_ready(&queue, 4).await;
}

#[tokio::test]
async fn a_renewed_subscription_ends_no_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[log]\nlevel = \"oncely=debug,info\"");
    // Under leases; nothing is called. Renewed when eight messages wait for their copies.
    world.consumer("payments", "handler = { http = \"http://127.0.0.1:9/\", repeat = \"always\" }");
    world.apply_topology().await;
    let dead = format!("{}.dead", world.queue("payments"));
    let mut worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 1).await;
    // It subscribes when all messages are in the queue, and copies have none.
    assert!(world.oncely(&["consumers", "pause", "payments", "--reason", "test"]).await.status.success());
    logged(&mut worker, "not subscribed").await;
    world.broker.delete_queue(&dead).await.unwrap();
    let large = "x".repeat(LARGE);
    let without_key = || message("acme", "").with_message_id("".into());
    world.publish("payments", without_key(), &large).await;
    for _ in 0..10 {
        world.publish("payments", without_key(), "x").await;
    }
    for _ in 0..21 {
        world.publish("payments", without_key(), &large).await;
    }
    assert!(world.oncely(&["consumers", "resume", "payments"]).await.status.success());
    logged(&mut worker, "renewing the subscription").await;
    world.apply_topology().await;
    world.wait_for_ready(&dead, 32).await;
    assert!(worker.is_running() && worker.output().contains("subscription renewed"), "{}", worker.output());
    world.stop(worker).await;
}

#[tokio::test]
async fn no_message_whatever_it_holds_ends_a_worker_in_256_mib() {
    let mut chance = Chance::new();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer(
        "payments",
        "fingerprint = \"canonical_json\"\nkey = { json_pointer = \"/id\" }\nhandler = { function = \"app.handle\", json = \"off\" }",
    );
    world.consumer("orders", "");
    world.apply_topology().await;
    let mut sent = 0;
    for number in 0..60 {
        let key = format!("k{number}");
        // Few that are large: a test takes its time.
        let size = if number % 30 == 0 { LARGE - 100 } else { chance.size(1 << 18) };
        let body = chance.body(size);
        let properties = chance.properties(&key);
        // PostgreSQL makes a tree of what a consumer's functions take as JSON.
        let consumer = if body.len() < 1 << 19 && number % 2 == 1 { "orders" } else { "payments" };
        world.publish(consumer, properties, &body).await;
        sent += 1;
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    // Each has taken effect, or waits as a letter with its reason.
    let settled = "select (select count(*) from app.effects where tenant = 'acme')
        + (select count(*) from oncely.audit where tenant <> 'beta' and outcome in ('dead_lettered', 'rejected'))";
    until(&mut world, &mut worker, settled, sent).await;
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}
