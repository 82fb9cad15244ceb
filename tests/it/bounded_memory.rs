//! Worker, relay and gateway with the memory that the manifests give them, whatever a message holds: none ends, and the messages of
//! others go on.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use testbed::Process;

use crate::support::{World, message};

/// As in deploy/kubernetes.
pub(crate) const LIMIT: u64 = 256 << 20;

/// What a consumer's largest body may be by default, but for a kilobyte.
const LARGE: usize = (16 << 20) - 1_024;

const LONG: Duration = Duration::from_secs(300);

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

#[tokio::test]
async fn no_body_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer(
        "payments",
        "fingerprint = \"canonical_json\"\nkey = { json_pointer = \"/id\" }\nhandler = { function = \"app.handle\", json = \"off\" }",
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

fn voids(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("x".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; count])));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

fn many(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    for number in 0..count {
        headers.insert(ShortString::from(format!("{number:x}")), AMQPValue::Void);
    }
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

#[tokio::test]
async fn no_headers_end_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer("payments", "");
    world.apply_topology().await;
    for number in 0..150 {
        for properties in [
            voids(&format!("voids-{number}"), 120_000),
            many(&format!("many-{number}"), 16_000),
            // As many as are read, and as many as are taken.
            voids(&format!("read-{number}"), 8_000),
            voids(&format!("taken-{number}"), 4_094),
        ] {
            world.publish("payments", properties, "{}").await;
        }
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'acme'", 150).await;
    let refused = "select count(*) from oncely.audit where reason = 'headers_too_large'";
    until(&mut world, &mut worker, refused, 450).await;
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_event_ends_a_relay_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // Past emit, as before there was a limit that its subject can't raise.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload,
             ordering_key, ordering_number)
         select 'acme', gen_random_uuid(), now(), now() - interval '1 hour', '', '{queue}',
             convert_to(repeat('x', 125000000), 'UTF8'), k, case when k is not null then 1 end
         from unnest(array[null, null, null, 'a', 'b', 'c']) as k;
         select oncely.emit('', '{queue}', repeat('x', 16777216), tenant => 'acme') from generate_series(1, 8);
         select oncely.emit('', '{queue}', repeat('x', 16777216), tenant => 'acme', ordering_key => 'k')
         from generate_series(1, 3);
         select oncely.emit('', '{queue}', 'h', tenant => 'acme',
             headers => (select jsonb_object_agg(n::text, null) from generate_series(1, 4096) as n))
         from generate_series(1, 300);
         select oncely.emit('', '{queue}', 'y', tenant => 'beta')",
    )))
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.events where state = 'pending'", 0).await;
    assert_eq!(
        world
            .text("select string_agg(distinct state || ' ' || reason, ',') || count(*) from oncely.events")
            .await,
        Some("parked too_large6".to_owned())
    );
    world.wait_for_ready(&queue, 312).await;
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}
