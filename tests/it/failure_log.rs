//! What the log says of messages that fail.

use crate::support::{World, message};

#[tokio::test]
async fn a_failing_key_is_named_at_its_first_failure_and_not_again() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"20ms\"], max_attempts = 5 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    for key in ["bad-1", "bad\u{1b}[2J"] {
        world.publish("payments", message("acme", key), r#"{"do": "fail", "card": "4111"}"#).await;
    }
    world.wait_beside_good_ones("payments", "select count(*) from oncely.dead_letters", 2).await;
    world.wait_for_lines(&worker, "message dead-lettered", 2).await;
    let log = worker.output();
    world.stop(worker).await;
    let of =
        |key: &str, text: &str| log.lines().filter(|line| line.contains(key) && line.contains(text)).count();
    for key in ["bad-1", "bad\\u{1b}[2J"] {
        assert_eq!(of(key, "failed; retrying"), 1, "{key}, of four failures that are tried again: {log}");
        assert_eq!(of(key, "message dead-lettered"), 1, "{log}");
    }
    assert_eq!(of("bad-1", "detail=\"boom (SQLSTATE P0001)"), 2, "with its SQLSTATE: {log}");
    assert!(
        !log.contains("4111") && !log.contains("\u{1b}[2J"),
        "no payload, and nothing that moves the cursor"
    );
}

#[tokio::test]
async fn a_flood_of_failures_is_ten_names_and_a_count() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let messages = (0..200)
        .map(|n| {
            (world.queue("payments"), message("acme", &format!("k-{n}")), br#"{"do": "reject"}"#.to_vec())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.dead_letters", 200).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 200).await;
    let log = world.stopped_log(worker).await;
    assert_eq!(log.matches("message dead-lettered").count(), 10, "{log}");
    let rest = log.lines().find(|line| line.contains("more messages dead-lettered")).unwrap_or_default();
    for part in ["190", "handler_rejected", "ONC01", "k-"] {
        assert!(rest.contains(part), "no {part} in {rest:?}");
    }
}
