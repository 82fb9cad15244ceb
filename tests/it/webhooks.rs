//! The example that takes a file of messages through RabbitMQ into tables, and `oncely publish --lines` with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sqlx::Row as _;

use crate::support::World;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The example on a queue of this test's.
async fn example() -> World {
    let mut world = World::new().await;
    let folder = root().join("examples/webhooks");
    let text = std::fs::read_to_string(folder.join("oncely.toml")).unwrap();
    let queue = format!("queue = {:?}", world.queue("webhooks"));
    assert!(text.contains("queue = \"webhooks\""));
    world.configure(&text.replace("queue = \"webhooks\"", &queue));
    let schema = std::fs::read_to_string(folder.join("schema.sql")).unwrap();
    // Twice, as its first line says.
    for _ in 0..2 {
        sqlx::raw_sql(sqlx::AssertSqlSafe(schema.clone())).execute(&mut world.sql).await.unwrap();
    }
    world.open_schema("webhooks").await;
    world.apply_topology().await;
    world
}

async fn publish(world: &World, file: &Path) {
    let queue = world.queue("webhooks");
    let output = world.oncely(&["publish", &queue, "--lines", file.to_str().unwrap()]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Counts the file independently, plays it twice, and compares each counter.
async fn counted_once(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let mut known = BTreeSet::new();
    let mut activity: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut lines = 0;
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        lines += 1;
        if known.insert((text("tenant"), text("message_id"))) {
            *activity.entry((text("tenant"), text("type"))).or_default() += 1;
        }
    }
    assert!(known.len() < lines, "the file has redeliveries");
    let mut world = example().await;
    world.configure("[audit]\nduplicates = true");
    let workers = [world.start_as("worker", "one"), world.start_as("worker", "two")];
    publish(&world, file).await;
    publish(&world, file).await;
    let events = "select count(*) from webhooks.events";
    // Each message has its row, so none is left that a worker which is told to stop would give back.
    let rows = "select count(*) from oncely.audit";
    world.wait_within(Duration::from_secs(120), rows, i64::try_from(2 * lines).unwrap()).await;
    for worker in workers {
        world.stop(worker).await;
    }
    assert_eq!(world.broker.ready(&world.queue("webhooks")).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("webhooks"))).await.unwrap(), 0);
    assert_eq!(world.count(events).await, i64::try_from(known.len()).unwrap());
    let rows = sqlx::query("select tenant, type, sum(events)::bigint from webhooks.activity group by 1, 2")
        .fetch_all(&mut world.sql)
        .await
        .unwrap();
    let found: BTreeMap<(String, String), i64> =
        rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
    assert_eq!(found, activity);
    let actors = "select sum(events)::bigint from webhooks.actors";
    let with_actor = "select count(*) from webhooks.events where actor is not null";
    assert_eq!(world.count(actors).await, world.count(with_actor).await);
    assert!(world.count(with_actor).await > 0);
    eprintln!("{lines} lines twice, {} counted", known.len());
}

#[tokio::test]
async fn the_sample_of_webhooks_is_counted_once_although_it_is_published_twice() {
    counted_once(&root().join("examples/webhooks/sample.jsonl")).await;
}

#[tokio::test]
async fn real_webhooks_are_counted_once_although_they_are_published_twice() {
    let file: PathBuf = root().join("../shared/data/messages.jsonl");
    if !file.exists() {
        eprintln!("SKIPPED: the collection of real messages is not here");
        return;
    }
    counted_once(&file).await;
}

#[tokio::test]
async fn a_line_that_is_no_message_is_named_and_those_before_it_are_published() {
    let world = example().await;
    let queue = world.queue("webhooks");
    let file = world.file().with_file_name("bad.jsonl");
    let good = r#"{"tenant": "t", "message_id": "1", "payload": {"a":  1.0}}"#;
    let long = format!(r#"{{"message_id": "{}", "payload": 1}}"#, "x".repeat(256));
    for (bad, says) in [
        ("{\"tenant\": \"t\"}", "there is no payload"),
        ("{\"payload\": 1, \"tennant\": \"t\"}", "unknown field `tennant`"),
        ("no JSON", "expected"),
        (long.as_str(), "message_id has 256 bytes"),
    ] {
        std::fs::write(&file, format!("{good}\n\n{bad}\n{good}\n")).unwrap();
        let output = world.oncely(&["publish", &queue, "--lines", file.to_str().unwrap()]).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("line 3: ") && text.contains(says) && text.contains("1 messages before it"),
            "{text}"
        );
    }
    let taken = world.broker.take_exactly(&queue, 4).await.unwrap();
    for delivery in taken {
        assert_eq!(delivery.data, br#"{"a":  1.0}"#, "the payload's very bytes");
        assert_eq!(
            delivery.properties.content_type().as_ref().map(|text| text.as_str()),
            Some("application/json")
        );
    }
    let gone = world.oncely(&["publish", "nowhere", "--lines", "examples/webhooks/sample.jsonl"]).await;
    let text = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(text.contains("line 1 was not published"), "{text}");
}
