//! What operators see and do: `oncely outbox`, `oncely status`.

use std::process::Output;

use lapin::types::FieldTable;
use serde_json::Value;

use super::{bodies, parked_beside, run, world_with};
use crate::support::World;

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Three parked events of two exchanges, one pending.
async fn with_parked() -> World {
    let mut world = world_with("").await;
    run(
        &mut world,
        "select oncely.emit('gone', 'a', 'secret 1', tenant => 'acme'), oncely.emit('gone', 'b', 'secret 2', tenant => 'other'),
            oncely.emit('', 'no such queue', 'secret 3', tenant => 'acme', ordering_key => 'k');
         update oncely.events set state = 'parked', attempts = 3, last_error = 'so it said',
            reason = case exchange when 'gone' then 'exchange_missing' else 'unroutable' end;
         select oncely.emit('', 'later', 'secret 4', delay => '1 h')",
    )
    .await;
    world
}

#[tokio::test]
async fn the_list_says_what_waits_and_why() {
    let world = with_parked().await;
    let output = world.oncely(&["outbox", "list"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    for text in ["exchange_missing", "unroutable", "so it said", "parked", "pending", "later"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("secret"), "{shown}");
    for (filter, count) in [
        (vec!["--state", "parked"], 3),
        (vec!["--state", "pending"], 1),
        (vec!["--exchange", "gone"], 2),
        (vec!["--tenant", "acme"], 2),
        (vec!["--routing-key", "b"], 1),
        (vec!["--ordering-key", "k"], 1),
        (vec!["--reason", "unroutable"], 1),
        (vec!["--older-than", "1h"], 0),
        (vec!["--limit", "2"], 2),
    ] {
        let output = world.oncely(&[&["outbox", "list", "--json"], filter.as_slice()].concat()).await;
        assert_eq!(output.status.code(), Some(i32::from(count == 0)), "{filter:?}");
        let listed = json(&output);
        assert_eq!(listed["schema"], "oncely.outbox/1");
        assert_eq!(listed["events"].as_array().unwrap().len(), count, "{filter:?}");
    }
}

#[tokio::test]
async fn a_change_needs_a_filter_and_consent_and_leaves_a_trail() {
    let mut world = with_parked().await;
    for (arguments, code) in [
        (vec!["outbox", "retry"], 2),
        (vec!["outbox", "retry", "--all"], 4),
        (vec!["outbox", "discard", "--exchange", "gone"], 4),
        (vec!["outbox", "discard", "--exchange", "gone", "--yes", "--max", "1"], 4),
        (vec!["outbox", "discard", "--exchange", "nowhere", "--yes"], 1),
        (vec!["outbox", "retry", "--all", "--dry-run"], 0),
    ] {
        let output = world.oncely(&arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", error(&output));
    }
    assert_eq!(world.count("select count(*) from oncely.events where state = 'parked'").await, 3);
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
    let output = world
        .oncely(&[
            "outbox",
            "discard",
            "--exchange",
            "gone",
            "--tenant",
            "other",
            "--yes",
            "--json",
            "--note",
            "why",
        ])
        .await;
    assert_eq!(
        (&json(&output)["done"], output.status.code()),
        (&Value::from(1), Some(0)),
        "{}",
        error(&output)
    );
    let output = world.oncely(&["outbox", "retry", "--all", "--yes"]).await;
    assert!(error(&output).contains("2 are due now"), "{}", error(&output));
    let retried = "select count(*) from oncely.events where state = 'pending' and attempts = 0 and available_at <= clock_timestamp()";
    // By the clock of a client, which may be a little ahead of the server's.
    world.wait_for(retried, 2).await;
    let trail = "select string_agg(verb || ' ' || count || ' ' || tenant || ' ' || coalesce(reason, '-'), ', ' order by occurred_at) from oncely.operator_actions";
    assert_eq!(world.text(trail).await.unwrap(), "discard_events 1 other why, retry_events 2 acme -");
}

#[tokio::test]
async fn what_a_relay_holds_is_left_alone() {
    let mut world = with_parked().await;
    let mut relay = world.database.connect().await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut relay).await.unwrap();
    sqlx::query("select from oncely.events where routing_key = 'a' for update")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let output = world.oncely(&["outbox", "discard", "--exchange", "gone", "--yes"]).await;
    assert!(error(&output).contains("discarded 1\n1 left alone"), "{}", error(&output));
    transaction.rollback().await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.events where exchange = 'gone'").await, 1);
}

#[tokio::test]
async fn a_retried_event_is_published_and_a_discarded_head_frees_its_key() {
    let mut world = world_with("").await;
    let queue = world.queue("told");
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{queue}', 'retried');
             select oncely.emit('{queue}-gone', '', 'head', ordering_key => 'k');
             select oncely.emit('', '{queue}', 'behind', ordering_key => 'k')"
        ),
    )
    .await;
    let relay = world.start("relay");
    let others = world.queue("others");
    world.broker.declare_queue(&others, FieldTable::default()).await.unwrap();
    parked_beside(&mut world, &others, 2).await;
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    for arguments in [
        ["outbox", "retry", "--reason", "unroutable", "--yes"],
        ["outbox", "discard", "--reason", "exchange_missing", "--yes"],
    ] {
        let output = world.oncely(&arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", error(&output));
    }
    world.wait_for("select count(*) from oncely.events", 0).await;
    let mut arrived = bodies(&world.broker, &queue).await;
    arrived.sort();
    assert_eq!(arrived, ["behind", "retried"]);
    world.stop(relay).await;
}

#[tokio::test]
async fn status_shows_depth_age_and_what_is_parked() {
    let mut world = with_parked().await;
    run(
        &mut world,
        "update oncely.events set created_at = created_at - interval '2 h' where reason = 'unroutable'",
    )
    .await;
    let output = world.oncely(&["status"]).await;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("1 on their way, none due") && shown.contains("3 parked, oldest 2h"), "{shown}");
    let events = &json(&world.oncely(&["status", "--json"]).await)["postgres"]["events"];
    assert_eq!((&events["pending"], &events["parked"]), (&Value::from(1), &Value::from(3)), "{events}");
}

#[tokio::test]
async fn idle_ordering_keys_are_collected_and_pending_events_never() {
    let mut world = world_with("").await;
    run(
        &mut world,
        "select oncely.emit('', 'q', 'x', ordering_key => 'waits'), oncely.emit('', 'q', 'x', ordering_key => 'idle'),
            oncely.emit('', 'q', 'x', ordering_key => 'young'), oncely.emit('', 'q', 'x', tenant => 'acme', ordering_key => 'busy');
         delete from oncely.events where ordering_key in ('idle', 'young', 'busy');
         update oncely.events set created_at = created_at - interval '10 years';
         update oncely.ordering_keys set used_at = used_at - interval '2 days' where ordering_key <> 'young'",
    )
    .await;
    // Somebody emits under one of them at this moment.
    let mut emitter = world.database.connect().await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut emitter).await.unwrap();
    sqlx::query("select oncely.emit('', 'q', 'x', tenant => 'acme', ordering_key => 'busy')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{}", error(&output));
    transaction.commit().await.unwrap();
    let left =
        "select string_agg(ordering_key || last_number, ' ' order by ordering_key) from oncely.ordering_keys";
    assert_eq!(world.text(left).await.unwrap(), "busy2 waits1 young1");
    assert_eq!(world.count("select count(*) from oncely.events").await, 2);
}
