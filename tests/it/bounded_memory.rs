//! Worker, relay and gateway with the memory that the manifests give them, whatever a message holds: none ends, and the messages of
//! others go on.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use testbed::{Process, Redis};

use crate::support::{World, message};

/// As in deploy/kubernetes.
pub(crate) const LIMIT: u64 = 256 << 20;

/// The largest body that a consumer takes by default.
const LARGE: usize = 16 << 20;

/// Bounds a wait for the largest bodies, which an unoptimised build reads slowly beside other tests.
const LONG: Duration = testbed::DEADLINE.saturating_mul(5);

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
async fn no_number_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(
        "create function app.cast(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             perform (message.payload ->> 'n')::integer;
             return null;
         end $$;
         create function app.echo(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             return message.payload;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer(
        "casts",
        "handler = { function = \"app.cast\" }\nretry = { delays = [], max_attempts = 1 }",
    );
    world.consumer("payments", "handler = { function = \"app.echo\" }\non_large_response = \"compress\"");
    world.apply_topology().await;
    // As PostgreSQL writes them out they have a hundred thousand digits each.
    let numbers = |count: usize| format!("{{\"n\":[0{}]}}", ",1e131071".repeat(count));
    for number in 0..400 {
        let key = format!("k{number}");
        world
            .publish("casts", message("acme", &key), &numbers(if number % 2 == 0 { 2_000 } else { 7 }))
            .await;
        world.publish("payments", message("acme", &key), &numbers(7)).await;
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    // What is not written out comes without its payload, and is no number then.
    let settled = "select (select count(*) from app.effects where tenant = 'acme')
        + (select count(*) from oncely.dead_letters where tenant = 'acme')";
    let given_up = "select count(*) from oncely.dead_letters where consumer = 'casts'";
    for number in 0.. {
        if world.count(given_up).await == 200 {
            break;
        }
        // One that succeeds, as a witness.
        world.publish("casts", message("beta", &format!("k{number}")), "{}").await;
        until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'beta'", number + 2)
            .await;
    }
    until(&mut world, &mut worker, settled, 800).await;
    let responses = "select count(*) from oncely.idempotency_keys
        where consumer = 'payments' and tenant = 'acme' and octet_length(response::text) > 900000";
    assert_eq!(world.count(responses).await, 400);
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_response_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(
        "create function app.answer(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             return to_jsonb(repeat('x', (message.payload ->> 'size')::integer));
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.answer\" }\non_large_response = \"compress\"");
    world.apply_topology().await;
    for number in 0..300 {
        // All of them are more than a worker has room for; some are so by themselves.
        let size = if number % 100 == 7 { 100_000_000 } else { 1_000_000 };
        world
            .publish("payments", message("acme", &format!("k{number}")), &format!("{{\"size\":{size}}}"))
            .await;
    }
    let mut worker = world.start("worker");
    until(&mut world, &mut worker, "select count(*) from app.effects", 297).await;
    let refused = "select count(*) from oncely.dead_letters where reason = 'handler_rejected'
        and detail like 'the response has 100000002 bytes as JSON; the limit is 4194304 %'";
    until(&mut world, &mut worker, refused, 3).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn responses_that_are_too_large_together_make_batches_smaller() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create sequence app.runs;
         grant usage on sequence app.runs to public;
         create function app.answer(message oncely.message) returns jsonb language plpgsql as $$
         begin
             -- Not rolled back.
             perform nextval('app.runs'), app.handle(message);
             return to_jsonb(repeat('x', 20000));
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.answer\" }");
    world.apply_topology().await;
    let messages = 3_000;
    let queue = world.queue("payments");
    let one = |number| (queue.clone(), message("acme", &format!("k{number}")), b"{}".to_vec());
    world.broker.publish_all("", (0..messages).map(one).collect()).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", messages).await;
    let runs = world.count("select last_value from app.runs").await;
    assert!(runs < messages * 3 / 2, "{runs} runs of {messages} messages");
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
    let large = "x".repeat(LARGE);
    let without_key = || message("acme", "").with_message_id("".into());
    world.publish("payments", without_key(), &large).await;
    for _ in 0..10 {
        world.publish("payments", without_key(), "x").await;
    }
    for _ in 0..21 {
        world.publish("payments", without_key(), &large).await;
    }
    let mut worker = world.start("worker");
    let refused = "select count(*) from oncely.audit where reason like 'key_%'";
    until(&mut world, &mut worker, refused, 32).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 32).await;
    assert!(worker.output().contains("renewed"), "{}", worker.output());
    world.stop(worker).await;
}

fn voids(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("x".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; count])));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

/// Headers of one header each with tables of one entry, one in another.
fn chains(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    for number in 0..count {
        let mut value = AMQPValue::Void;
        for _ in 0..62 {
            let mut outer = FieldTable::default();
            outer.insert("a".into(), value);
            value = AMQPValue::FieldTable(outer);
        }
        headers.insert(ShortString::from(format!("{number:x}")), value);
    }
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

/// One header that takes six times as much as JSON.
fn controls(key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("x".into(), AMQPValue::LongString("\u{1}".repeat(87_000).into()));
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
    sqlx::raw_sql(SLOW).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "batch = 50\nhandler = { function = \"app.slow\" }");
    world.apply_topology().await;
    // The others come while both lanes are at work on these.
    let slow = format!("{{\"text\":\"{}\"}}", "x".repeat(LARGE / 3));
    for number in 0..2 {
        world.publish("payments", message("slow", &format!("k{number}")), &slow).await;
    }
    for number in 0..150 {
        for properties in [
            voids(&format!("voids-{number}"), 120_000),
            many(&format!("many-{number}"), 16_000),
            // As many as are read, and as many as are taken.
            voids(&format!("read-{number}"), 8_000),
            voids(&format!("taken-{number}"), 4_094),
            chains(&format!("chains-{number}"), 130),
            chains(&format!("few-chains-{number}"), 9),
            controls(&format!("controls-{number}")),
        ] {
            world.publish("payments", properties, "{}").await;
        }
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'acme'", 450).await;
    let refused = "select count(*) from oncely.audit where reason = 'headers_too_large'";
    until(&mut world, &mut worker, refused, 600).await;
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_mirror_record_ends_a_relay_in_256_mib() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.with_redis(&redis.url(), "");
    world.configure("[relay]\nbatch = 5000");
    sqlx::raw_sql(
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         select 'acme', gen_random_uuid(), 'mirror', now(), now() + interval '1 day', 'payments',
             decode(repeat(md5(n::text), 4096), 'hex')
         from generate_series(1, 1000) as n",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.mirror_queue", 0).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn no_heartbeat_ends_a_command_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer("payments", "");
    // The most that a login's heartbeats may hold.
    sqlx::raw_sql(
        "insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at,
             last_seen_at, consumers)
         select gen_random_uuid(), 'worker', 'w' || n, '1', 'h', n, '', 'ready', 'app', now(), now(),
             (select jsonb_agg('{\"\": 0}'::jsonb) from generate_series(1, 26000))
         from generate_series(1, 100) as n;
         insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at,
             last_seen_at, consumers)
         select gen_random_uuid(), 'worker', 'other', '1', 'h', 1, '', 'ready', 'other', now(), now(),
             '[{\"consumer\": \"payments\"}]'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut status = world.start_verb("oncely", &["status", "--json"], "status", &[]);
    status.ended(LONG).await.unwrap();
    let output = status.output();
    assert!(output.contains("\"other\""), "{output}");
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
             convert_to(repeat('x', bytes), 'UTF8'), k || bytes, case when k is not null then 1 end
         from unnest(array[null, null, null, 'a', 'b', 'c']) as k, unnest(array[30000000, 125000000]) as bytes;
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
        Some("parked too_large12".to_owned())
    );
    world.wait_for_ready(&queue, 312).await;
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}

#[tokio::test]
async fn no_returned_event_ends_a_relay_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // No queue has this name: the broker sends each event back whole.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "select oncely.emit('', 'no queue', repeat('x', 16777216), tenant => 'acme',
             ordering_key => case when n % 2 = 0 then 'k' || n end)
         from generate_series(1, 12) as n;
         select oncely.emit('', '{queue}', 'y', tenant => 'beta')",
    )))
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    let failed = "select count(*) from oncely.events where tenant = 'acme' and last_error is not null";
    until(&mut world, &mut relay, failed, 12).await;
    world.wait_for_ready(&queue, 1).await;
    assert!(relay.is_running(), "{}", relay.output());
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}

#[tokio::test]
async fn an_event_has_no_headers_that_are_larger_as_text_than_a_relay_reads() {
    let mut world = World::new().await;
    let written = sqlx::query(
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, headers)
         values ('acme', gen_random_uuid(), now(), now(), '', 'q', '', (
             select jsonb_object_agg(n::text, '1e131071'::jsonb) from generate_series(1, 1000) as n
         ))",
    )
    .execute(&mut world.sql)
    .await;
    let error = written.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().constraint(), Some("events_headers_size"), "{error}");
}

/// Messages as chance has them.
pub(crate) struct Chance(fastrand::Rng);

impl Chance {
    pub(crate) fn new() -> Self {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0.usize(..most)
    }

    /// A size: as likely of one order of magnitude as of another.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let bits = self.0.u32(..=most.ilog2());
        self.0.usize(..=most.min(2 << bits))
    }

    /// A short piece of JSON, a value alone or in a container that is whole.
    fn item(&mut self) -> &'static str {
        const ITEMS: [&str; 14] = [
            "0",
            "-1.5e-300",
            "null",
            "true",
            "\"\"",
            "\"\\u0000\"",
            "\"\\ud83d\\ude00\"",
            "\"\u{10ffff}\"",
            "[]",
            "{}",
            "[[]]",
            "{\"a\":{}}",
            "{\"a\":0,\"a\":1}",
            "123456789012345678901234567890",
        ];
        ITEMS[self.0.usize(..ITEMS.len())]
    }

    /// A body of this size or a little more, of one shape.
    pub(crate) fn body(&mut self, size: usize) -> String {
        let mut body = format!("{{\"id\":\"{:x}\"", self.0.u64(..));
        match self.0.u8(..7) {
            // Deep, of mixed brackets.
            0 => {
                let mut ends = Vec::new();
                body.push_str(",\"deep\":");
                while body.len() + ends.len() < size {
                    let (start, end) = if self.0.bool() { ("[", "]") } else { ("{\"a\":", "}") };
                    body.push_str(start);
                    ends.push(end);
                }
                body.push('0');
                body.extend(ends.into_iter().rev());
            }
            // Fields, most of them twice.
            1 | 2 => {
                let names = 1 + self.size(100_000);
                while body.len() < size {
                    let (name, item) = (self.below(names), self.item());
                    body.push_str(&format!(",\"{name:x}\":{item}"));
                }
            }
            3 => {
                body.push_str(",\"items\":[0");
                while body.len() < size {
                    body.push(',');
                    body.push_str(self.item());
                }
                body.push(']');
            }
            // One item again and again: all that a parser allocates for it is the same.
            4 => {
                let item = self.item();
                body.push_str(",\"items\":[0");
                while body.len() < size {
                    body.push(',');
                    body.push_str(item);
                }
                body.push(']');
            }
            5 => {
                let piece = ["x", "\\n", "\\u0041", "\u{e9}", "\\ud83d\\ude00"][self.below(5)];
                body.push_str(&format!(",\"text\":\"{}\"", piece.repeat(size / piece.len())));
            }
            _ => body.push_str(&format!(",\"number\":1{}", "0".repeat(size))),
        }
        body.push('}');
        // Some break off.
        if self.below(8) == 0 {
            let mut end = self.below(body.len());
            while !body.is_char_boundary(end) {
                end -= 1;
            }
            body.truncate(end);
        }
        body
    }

    fn value(&mut self) -> AMQPValue {
        match self.below(6) {
            0 => AMQPValue::Void,
            1 => AMQPValue::Boolean(true),
            2 => AMQPValue::LongLongInt(i64::MIN),
            3 => AMQPValue::Timestamp(u64::MAX),
            4 => AMQPValue::LongString("x".repeat(self.size(2_000)).into()),
            _ => AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; self.size(200)])),
        }
    }

    /// Properties with headers of less than a frame of RabbitMQ's: many, or deep.
    fn properties(&mut self, key: &str) -> BasicProperties {
        let mut headers = FieldTable::default();
        let mut room = 100_000;
        for number in 0..self.size(8_000) {
            let value = self.value();
            let Some(left) = usize::checked_sub(room, wire_size(&value)) else { break };
            headers.insert(ShortString::from(format!("{number:x}")), value);
            room = left;
        }
        for _ in 0..self.size(200) {
            let mut outer = FieldTable::default();
            outer.insert("in".into(), AMQPValue::FieldTable(headers));
            headers = outer;
        }
        headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
        BasicProperties::default().with_message_id(key.into()).with_headers(headers)
    }
}

/// More than the bytes of a header in a frame.
fn wire_size(value: &AMQPValue) -> usize {
    16 + match value {
        AMQPValue::LongString(text) => text.as_bytes().len(),
        AMQPValue::FieldArray(array) => array.as_slice().len(),
        _ => 0,
    }
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

#[tokio::test]
async fn no_event_whatever_it_holds_ends_a_relay_in_256_mib() {
    let mut chance = Chance::new();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    for number in 0..80 {
        // Past emit: more than it takes, too.
        let size = if number % 10 == 0 { chance.below(40 << 20) } else { chance.size(1 << 20) };
        let (names, length) = (chance.size(8_000), chance.size(50));
        let is_nested = chance.below(4) == 0;
        sqlx::query(
            "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, headers,
                 ordering_key, ordering_number)
             select 'acme', gen_random_uuid(), now(), now() - interval '1 hour', '', $1, convert_to(repeat('x', $2), 'UTF8'),
                 (select jsonb_object_agg(n::text, case when $5 then jsonb_build_array(n, null) else to_jsonb(repeat('y', $4)) end)
                     from generate_series(1, $3) as n),
                 case when $6 then 'k' || $7 end, case when $6 then 1 end",
        )
        .bind(&queue)
        .bind(i32::try_from(size).unwrap())
        .bind(i32::try_from(names).unwrap())
        .bind(i32::try_from(length).unwrap())
        .bind(is_nested)
        .bind(chance.below(2) == 0)
        .bind(number)
        .execute(&mut world.sql)
        .await
        .unwrap();
    }
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("select oncely.emit('', '{queue}', 'y', tenant => 'beta')")))
        .execute(&mut world.sql)
        .await
        .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.events where state = 'pending'", 0).await;
    let parked = world.count("select count(*) from oncely.events where tenant = 'acme'").await;
    assert_eq!(world.count("select count(*) from oncely.events where tenant = 'beta'").await, 0);
    world.wait_for_ready(&queue, 81 - u32::try_from(parked).unwrap()).await;
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}
