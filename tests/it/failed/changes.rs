//! What an operator must say before anything changes, and letters that are given up.

use lapin::types::AMQPValue;
use serde_json::json;

use super::{WAITING, dead, failed, fragile, kind};
use crate::support::message;

#[tokio::test]
async fn a_discarded_letter_leaves_the_queue_and_its_neighbours_stay() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["one", "two", "three"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 3).await;
    world.wait_for_ready(&dead(&world), 3).await;
    let done = failed(&world, 0, &["discard", "--key", "two", "--yes"]).await;
    assert_eq!(
        (&done["done"], &done["swept"][0]["dropped"], &done["swept"][0]["kept"]),
        (&json!(1), &json!(1), &json!(2))
    );
    world.stop(worker).await;
    let letters = world.broker.take_exactly(&dead(&world), 2).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["one", "three"]);
    for letter in &letters {
        let headers = letter.properties.headers().as_ref().unwrap().inner();
        let routing_key = AMQPValue::LongString(world.queue("payments").into());
        assert_eq!(headers.get("x-oncely-routing-key"), Some(&routing_key));
        assert!(headers.contains_key("x-oncely-reason"));
    }
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    let key = "select status::text from oncely.idempotency_keys where key = 'two'";
    assert_eq!(world.text(key).await.unwrap(), "FAILED", "a discarded message does not run");
}

#[tokio::test]
async fn nothing_is_changed_without_consent_a_filter_or_beyond_the_limit() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["one", "two"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 2).await;
    world.stop(worker).await;
    for verb in ["requeue", "discard"] {
        for (code, arguments) in [
            (4, &["--all"][..]),
            (4, &["--all", "--yes", "--max", "1"]),
            (2, &["--yes"]),
            (0, &["--all", "--dry-run"]),
            (1, &["--key", "nobody", "--yes"]),
        ] {
            let mut all = vec!["failed", verb];
            all.extend(arguments);
            let output = world.oncely(&all).await;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{all:?}: {text}");
        }
    }
    assert_eq!(world.count(WAITING).await, 2);
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
}
