//! Real messages that nobody on this project wrote, through the real programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde::Deserialize;
use serde_json::value::RawValue;
use sqlx::Row as _;
use testbed::Redis;

use crate::support::World;

#[derive(Deserialize)]
struct Line<'a> {
    tenant: String,
    message_id: String,
    #[serde(rename = "type")]
    kind: String,
    headers: BTreeMap<String, String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[tokio::test]
async fn real_messages_take_effect_once_and_are_stored_unchanged() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/messages.jsonl");
    let Ok(text) = std::fs::read_to_string(&file) else {
        eprintln!("SKIPPED: the collection of real messages is not here");
        return;
    };
    let lines: Vec<Line<'_>> =
        text.split('\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_str(l).unwrap()).collect();
    let distinct: BTreeSet<(&str, &str)> =
        lines.iter().map(|l| (l.tenant.as_str(), l.message_id.as_str())).collect();
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "");
    world.configure("[audit]\nduplicates = true");
    world.consumer("webhooks", "handler = { function = \"app.handle_batch\", batch = true }");
    world.apply_topology().await;
    let workers = [world.start_as("worker", "one"), world.start_as("worker", "two")];
    let relay = world.start("relay");
    let queue = world.queue("webhooks");
    for chunk in lines.chunks(200) {
        let messages = chunk
            .iter()
            .map(|line| {
                let mut headers = FieldTable::default();
                for (name, value) in &line.headers {
                    headers.insert(name.as_str().into(), AMQPValue::LongString(value.as_str().into()));
                }
                headers.insert("x-tenant-id".into(), AMQPValue::LongString(line.tenant.as_str().into()));
                let properties = BasicProperties::default()
                    .with_message_id(line.message_id.as_str().into())
                    .with_type(line.kind.as_str().into())
                    .with_headers(headers);
                (queue.clone(), properties, line.payload.get().as_bytes().to_vec())
            })
            .collect();
        world.broker.publish_all("", messages).await.unwrap();
    }
    world.wait_for("select count(*) from app.effects", i64::try_from(distinct.len()).unwrap()).await;
    let surplus = i64::try_from(lines.len() - distinct.len()).unwrap();
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", surplus).await;
    for worker in workers {
        world.stop(worker).await;
    }
    world.stop(relay).await;
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&format!("{queue}.dead")).await.unwrap(), 0);

    let stored = sqlx::query("select tenant, key, body, payload is not null from app.effects")
        .fetch_all(&mut world.sql)
        .await
        .unwrap();
    let mut stored: BTreeMap<(String, String), (Vec<u8>, bool)> =
        stored.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3)))).collect();
    assert_eq!(stored.len(), distinct.len(), "each once");
    let mut compared = 0;
    for line in &lines {
        // The second copy of a redelivered message finds its first gone.
        if let Some((body, is_json)) = stored.remove(&(line.tenant.clone(), line.message_id.clone())) {
            assert_eq!(body, line.payload.get().as_bytes(), "{} {}", line.tenant, line.message_id);
            assert!(is_json, "PostgreSQL could hold it as jsonb");
            compared += 1;
        }
    }
    assert_eq!(compared, distinct.len());
    eprintln!(
        "{} messages, {} effects, {surplus} duplicates, {compared} payloads compared",
        lines.len(),
        distinct.len()
    );
}
