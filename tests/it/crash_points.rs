//! A process dies before and after each of its inputs and outputs, with batches of 1, 2, 10 and 100 (1 and 10 only with the profile
//! `full`); then another one goes on, and the books must be as if nothing had happened.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely_failpoint::STEPS;
use sqlx::Row as _;
use testbed::{Broker, Process, Redis};

use crate::support::{World, message};

const BATCHES: [usize; 4] = [1, 2, 10, 100];

/// Returns sizes of batches: two, or all with nextest's profile `full` and without nextest.
fn batches() -> Vec<usize> {
    match std::env::var("NEXTEST_PROFILE").as_deref() {
        Ok("default") => vec![BATCHES[1], BATCHES[3]],
        _ => BATCHES.to_vec(),
    }
}

fn steps(of: &str) -> Vec<&'static str> {
    let steps: Vec<_> = STEPS.iter().copied().filter(|step| step.starts_with(of)).collect();
    assert!(!steps.is_empty());
    steps
}

fn at(step: &str) -> Vec<(&'static str, String)> {
    vec![("FAILPOINT", step.to_owned())]
}

/// Waits until the process has died at its step; a step that is not reached is a test that tests nothing.
async fn dies(mut process: Process, step: &str, batch: usize) {
    let ended = process.wait_for_end(Duration::from_secs(30)).await;
    let status = ended.unwrap_or_else(|error| panic!("{step}, batch {batch}: {error}: {}", process.output()));
    assert_eq!(status.signal(), Some(6), "{step}, batch {batch}: {status}: {}", process.output());
}

async fn with_batch(batch: usize, redis: &Redis) -> World {
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "precheck = \"trust\"");
    world.configure(&format!("[relay]\nbatch = {batch}\npoll = \"20ms\"\n[gc]\nbatch = {batch}"));
    let retry = "retry = { delays = [\"20ms\"], max_attempts = 2 }";
    world.consumer("payments", &format!("batch = {batch}\nlanes = 1\nreplies = true\n{retry}"));
    sqlx::query("insert into app.numbers values ('7')").execute(&mut world.sql).await.unwrap();
    world.apply_topology().await;
    world
}

/// What must have become of the keys of one step.
struct Expected {
    effects: BTreeMap<String, i64>,
    dead: Vec<String>,
}

/// As many good messages as a batch holds; then one whose publisher waits for an answer, one that fails first, one that is refused, one that fails at COMMIT, one without a key, and a
/// copy of one that took effect before.
async fn publish(world: &World, step: &str, batch: usize) -> Expected {
    let queue = world.queue("payments");
    let key = |what: &str| format!("{step} {what}");
    let mut messages: Vec<(String, lapin::BasicProperties, Vec<u8>)> = Vec::new();
    let mut effects = BTreeMap::new();
    let mut add = |key: String, body: &str| {
        messages.push((queue.clone(), message("acme", &key), body.as_bytes().to_vec()));
    };
    for number in 0..batch {
        add(key(&number.to_string()), "{}");
        effects.insert(key(&number.to_string()), 1);
    }
    // Asks for an answer, and asks again: before a key that is known, which a lane would go on expecting.
    for _ in 0..2 {
        let asked =
            message("acme", &key("asks")).with_reply_to("answers".into()).with_correlation_id(step.into());
        messages.push((queue.clone(), asked, b"{}".to_vec()));
    }
    effects.insert(key("asks"), 1);
    let mut add = |key: String, body: &str| {
        messages.push((queue.clone(), message("acme", &key), body.as_bytes().to_vec()));
    };
    add(key("fail_once"), r#"{"do": "fail_once"}"#);
    effects.insert(key("fail_once"), 1);
    add(key("refused"), r#"{"do": "refuse"}"#);
    add(key("number"), r#"{"do": "number", "number": "7"}"#);
    add("first".to_owned(), "{}");
    add(key("0"), "{}");
    messages.push((queue.clone(), message("acme", ""), key("no key").into_bytes()));
    let count = messages.len();
    world.broker.publish_all("", messages).await.unwrap();
    if step.contains("suspects") || step.contains("mark") {
        Broker::bounce(&world.urls.rabbitmq, &queue, count).await.unwrap();
    }
    Expected { effects, dead: vec![key("number")] }
}

/// Every key has its one effect and its one audit row, and nothing is left anywhere.
async fn books_are_right(world: &mut World, step: &str, expected: &Expected) {
    let rows = sqlx::query("select key, count(*) from app.effects where starts_with(key, $1) group by key")
        .bind(format!("{step} "))
        .fetch_all(&mut world.sql)
        .await
        .unwrap();
    let found: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found, expected.effects, "{step}: each effect once");
    let rows = sqlx::query(
        "select i.key, i.status::text, (select count(*) from oncely.audit as a where a.key = i.key and a.outcome in ('completed', 'refused'))
         from oncely.idempotency_keys as i where starts_with(i.key, $1)",
    )
    .bind(format!("{step} "))
    .fetch_all(&mut world.sql)
    .await
    .unwrap();
    // One was refused: recorded like an effect, and without one.
    assert_eq!(
        rows.len(),
        expected.effects.len() + expected.dead.len() + 1,
        "{step}: one row a key, no other"
    );
    for row in rows {
        let (key, status, audited): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
        let wanted = if expected.dead.contains(&key) { ("FAILED", 0) } else { ("COMPLETED", 1) };
        assert_eq!((status.as_str(), audited), wanted, "{step}: {key}");
    }
    let queue = world.queue("payments");
    for left in [queue.clone(), format!("{queue}.retry.20ms")] {
        assert_eq!(world.broker.ready(&left).await.unwrap(), 0, "{step}: {left}");
    }
    let answers = "select count(*) || ' ' || count(distinct (message_id, payload)) from oncely.events where correlation_id = $1";
    let row = sqlx::query(answers).bind(step).fetch_one(&mut world.sql).await.unwrap();
    let (answers, different) = row
        .get::<String, _>(0)
        .split_once(' ')
        .map(|(a, d)| (a.parse::<u32>().unwrap(), d.to_owned()))
        .unwrap();
    assert!(answers >= 2 && different == "1", "{step}: {answers} answers, {different} different ones");
    // The dead-letter queue holds exactly the two that belong there; copies of them are allowed.
    let mut dead = Vec::new();
    while let Some(letter) = world.broker.take(&format!("{queue}.dead")).await.unwrap() {
        let key = letter.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        dead.push(if key.is_empty() { String::from_utf8(letter.data).unwrap() } else { key });
    }
    dead.sort();
    dead.dedup();
    assert_eq!(dead, [format!("{step} no key"), format!("{step} number")], "{step}");
}

/// A worker that is told to stop returns what it has not begun: workers go on until nothing is left.
async fn finish(world: &World) {
    let queue = world.queue("payments");
    // In the order in which a message goes while no worker is at work: else it would pass between two looks.
    let queues = [format!("{queue}.retry.20ms"), queue];
    for _ in 0..10 {
        let mut left = 0;
        for queue in &queues {
            left += world.broker.ready(queue).await.unwrap();
        }
        if left == 0 {
            return;
        }
        let worker = world.start_as("worker", "finishing");
        for queue in &queues {
            world.wait_for_ready(queue, 0).await;
        }
        world.stop(worker).await;
    }
}

async fn worker_dies_at_every_step(batch: usize) {
    let redis = Redis::start().await.unwrap();
    let mut world = with_batch(batch, &redis).await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "first"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    // Only small batches are a transaction of one statement.
    let is_elsewhere = |step: &str| step.contains("commit_fresh") && batch > 64;
    let steps: Vec<_> = steps("worker.").into_iter().filter(|step| !is_elsewhere(step)).collect();
    for step in &steps {
        let expected = publish(&world, step, batch).await;
        dies(world.start_with("worker", "dying", &at(step)), step, batch).await;
        let worker = world.start_as("worker", "surviving");
        let starts = format!("starts_with(key, '{step} ')");
        let effects = format!("select count(distinct key) from app.effects where {starts}");
        let wanted = i64::try_from(expected.effects.len()).unwrap();
        world.wait_beside_good_ones("payments", &effects, wanted).await;
        let failed =
            format!("select count(*) from oncely.idempotency_keys where {starts} and status = 'FAILED'");
        world.wait_beside_good_ones("payments", &failed, 1).await;
        world.stop(worker).await;
        finish(&world).await;
        books_are_right(&mut world, step, &expected).await;
    }
    eprintln!("{} steps of the worker with batches of {batch}", steps.len());
}

#[tokio::test]
async fn a_worker_dies_at_every_step_with_batches_of_1() {
    worker_dies_at_every_step(BATCHES[0]).await;
}

#[tokio::test]
async fn a_worker_dies_at_every_step_with_batches_of_2() {
    worker_dies_at_every_step(BATCHES[1]).await;
}

#[tokio::test]
async fn a_worker_dies_at_every_step_with_batches_of_10() {
    worker_dies_at_every_step(BATCHES[2]).await;
}

#[tokio::test]
async fn a_worker_dies_at_every_step_with_batches_of_100() {
    worker_dies_at_every_step(BATCHES[3]).await;
}

/// How many entries the mirror has. One that was written again in another half of an hour is in two buckets.
async fn entries(redis: &Redis) -> usize {
    let mut connection =
        redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let buckets: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut entries = BTreeSet::new();
    for bucket in buckets {
        let keys: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(bucket).query_async(&mut connection).await.unwrap();
        entries.extend(keys);
    }
    entries.len()
}

#[tokio::test]
async fn a_relay_dies_at_every_step_with_every_batch() {
    let steps = steps("relay.");
    for batch in batches() {
        let redis = Redis::start().await.unwrap();
        let mut world = with_batch(batch, &redis).await;
        let worker = world.start("worker");
        let (mut total, mut clients) = (0, 0);
        for step in &steps {
            let messages = (0..batch.max(3))
                .map(|n| (world.queue("payments"), message("acme", &format!("{step} {n}")), b"{}".to_vec()))
                .collect();
            world.broker.publish_all("", messages).await.unwrap();
            total += batch.max(3);
            world.wait_for("select count(*) from app.effects", i64::try_from(total).unwrap()).await;
            // And one that a client of the SQL protocol completed: the relay makes its tag.
            let client = format!(
                "do $$ begin
                    perform oncely.claim('acme', 'orders', '{step}', null);
                    perform oncely.complete('acme', 'orders', '{step}');
                end $$"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(client)).execute(&mut world.sql).await.unwrap();
            clients += 1;
            dies(world.start_with("relay", "dying", &at(step)), step, batch).await;
            let relay = world.start_as("relay", &format!("after {step}"));
            world.wait_for_line(&relay, "mirror lane started").await;
            world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
            world.stop(relay).await;
            assert_eq!(
                entries(&redis).await,
                total + clients,
                "{step}, batch {batch}: each key has its entry"
            );
        }
        world.stop(worker).await;
    }
    eprintln!("{} steps of the relay with batches of {:?}", steps.len(), batches());
}

#[tokio::test]
async fn a_relay_dies_at_every_step_of_publishing_events_with_every_batch() {
    let steps = steps("events.");
    for batch in batches() {
        let mut world = World::new().await;
        world.configure(&format!(
            "[relay]\npoll = \"20ms\"\n[events]\nbatch = {batch}\nlanes = 1\nretry = {{ delays = [\"20ms\"], max_attempts = 2 }}"
        ));
        let queue = world.queue("told");
        world.broker.declare_queue(&queue, lapin::types::FieldTable::default()).await.unwrap();
        let count = batch.max(3);
        for step in &steps {
            let emit = format!(
                "select oncely.emit('', '{queue}', n::text), oncely.emit('', '{queue}', (1000 + n)::text, ordering_key => 'k')
                 from generate_series(1, {count}) as n;
                 select oncely.emit('nowhere', '{queue}', 'refused')"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(emit)).execute(&mut world.sql).await.unwrap();
            dies(world.start_with("relay", "dying", &at(step)), step, batch).await;
            let relay = world.start_as("relay", &format!("after {step}"));
            world.wait_for("select count(*) from oncely.events where state = 'parked' and reason = 'exchange_missing'", 1).await;
            world.wait_for("select count(*) from oncely.events", 1).await;
            world.stop(relay).await;
            sqlx::query("delete from oncely.events").execute(&mut world.sql).await.unwrap();
            let mut arrived: Vec<usize> = Vec::new();
            while let Some(delivery) = world.broker.take(&queue).await.unwrap() {
                let number = String::from_utf8(delivery.data).unwrap().parse().unwrap();
                if !arrived.contains(&number) {
                    arrived.push(number);
                }
            }
            let ordered: Vec<usize> = arrived.iter().copied().filter(|&n| n > 1000).collect();
            assert!(ordered.is_sorted(), "{step}, batch {batch}: {ordered:?}");
            arrived.sort_unstable();
            let wanted: Vec<usize> = (1..=count).chain(1001..=1000 + count).collect();
            assert_eq!(arrived, wanted, "{step}, batch {batch}: each event has arrived");
        }
    }
    eprintln!("{} steps of publishing with batches of {:?}", steps.len(), batches());
}

#[tokio::test]
async fn a_collection_dies_at_every_step_with_every_batch() {
    let steps = steps("gc.");
    for batch in batches() {
        let redis = Redis::start().await.unwrap();
        let mut world = with_batch(batch, &redis).await;
        world.register("payments", "7d").await;
        for step in &steps {
            // Old ones in all states, young ones, and old ones whose mirror record is pending.
            sqlx::raw_sql(
                "delete from oncely.idempotency_keys;
                 delete from oncely.mirror_queue;
                 insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
                 select 'acme', 'payments', status || age || '-' || n, status::oncely.key_status, 1, now() - make_interval(days => age),
                    case when status <> 'IN_PROGRESS' then now() - make_interval(days => age) end,
                    case when status = 'FAILED' then 'poison' end
                 from unnest(array['COMPLETED', 'FAILED', 'IN_PROGRESS']) as status
                 cross join unnest(array[1, 10, 30]) as age
                 cross join generate_series(1, 120) as n;
                 insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
                 values ('acme', gen_random_uuid(), 'mirror', now() - interval '20 days', now(), 'payments', '\\x00112233445566778899aabbccddeeff')",
            )
            .execute(&mut world.sql)
            .await
            .unwrap();
            // The maintenance of the trail: it deletes no key, and goes on with the next look.
            if ["partitions", "seal", "drop"].iter().any(|of_trail| step.contains(of_trail)) {
                dies(world.start_with("relay", "dying", &at(step)), step, batch).await;
                continue;
            }
            let output = world.oncely_with(&["gc", "run"], &[("FAILPOINT", step)]).await;
            assert_eq!(output.status.signal(), Some(6), "{step}, batch {batch}: {}", output.status);
            // The server may take a moment to notice that the holder of the lock is gone.
            testbed::eventually("the lock is free", || async {
                let output = world.oncely(&["gc", "run", "--json"]).await;
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                if report["consumers"].is_array() { Ok(()) } else { Err(report) }
            })
            .await
            .unwrap();
            let left = "select string_agg(distinct status::text || date_part('day', now() - created_at), ' ') from oncely.idempotency_keys";
            assert_eq!(
                world.text(left).await.as_deref(),
                Some("COMPLETED1 COMPLETED10 FAILED1 IN_PROGRESS1"),
                "{step}, batch {batch}: what is old goes, what may still be mirrored stays"
            );
            assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 480, "{step}");
        }
        let relay = world.start("relay");
        world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
        world.stop(relay).await;
        let ahead = "select count(*) from pg_inherits where inhparent = 'oncely.audit'::regclass";
        assert!(world.count(ahead).await >= 5, "the partitions are there");
    }
    eprintln!("{} steps of the collection with batches of {:?}", steps.len(), batches());
}
