//! What a person sees at night: `oncely status`, and the heartbeats behind it.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _};
use testbed::eventually;

use crate::console::console;
use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message};

async fn world(settings: &str) -> World {
    let mut world = World::new().await;
    world.consumer("payments", settings);
    world.apply_topology().await;
    world
}

/// Exit code and JSON.
async fn status(world: &World) -> (i32, Value) {
    let output = world.oncely(&["status", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(object["schema"], "oncely.status/2");
    let code = output.status.code().unwrap();
    assert_eq!(object["exit"], code);
    (code, object)
}

/// Waits until the findings say something, and returns the exit code and all of them.
async fn told(world: &World, part: &str) -> (i32, String) {
    eventually(part, || async {
        let (code, object) = status(world).await;
        let text = object["findings"].to_string();
        if text.contains(part) { Ok((code, text)) } else { Err(text) }
    })
    .await
    .unwrap()
}

const PROCESSES: &str = "select count(*) from oncely.processes";

#[tokio::test]
async fn all_is_well_where_worker_and_relay_live_and_nothing_waits() {
    let mut world = world("").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for(PROCESSES, 2).await;
    world.wait_for_line(&worker, "subscribed").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    // With the next heartbeat.
    let object = eventually("a duplicate is counted", || async {
        let (code, object) = status(&world).await;
        let counts = &object["processes"][1]["consumers"][0]["counts"];
        match counts["completed"] == 1 && object["queues"][0]["unacknowledged"] == 0 && code == 0 {
            true => Ok(object),
            false => Err(object.to_string()),
        }
    })
    .await
    .unwrap();
    assert_eq!(object["findings"], json!([]));
    let queue = &object["queues"][0];
    assert_eq!(
        (&queue["ready"], &queue["retrying"], &queue["dead"], &queue["workers"]),
        (&json!(0), &json!(0), &json!(0), &json!(1))
    );
    assert!(queue["completed_at"].is_string(), "{queue}");
    assert_eq!(world.oncely(&["status", "--watch"]).await.status.code(), Some(2), "there is no terminal");
    let text = world.oncely(&["status"]).await;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for part in ["✓ no findings", "UNACKED", "RETRYING", "DUPLICATES", "relay", "worker", "s ago"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count(PROCESSES).await, 0, "who ends in peace leaves no row");
}

#[tokio::test]
async fn what_is_at_work_and_what_waits_for_its_next_try_is_counted() {
    let mut world = world("retry = { delays = [\"1h\"], max_attempts = 2 }\nbatch = 1").await;
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    for key in ["bad-1", "bad-2"] {
        world.publish("payments", message("acme", key), r#"{"do": "fail"}"#).await;
    }
    world.wait_for("select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS'", 2).await;
    // Whether they fail by themselves is known when another one has succeeded.
    world.publish("payments", message("acme", "good"), "{}").await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'retried'", 2).await;
    world.publish("payments", message("acme", "slow"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    let (code, object) = eventually("it is seen", || async {
        let (code, object) = status(&world).await;
        let queue = &object["queues"][0];
        match queue["unacknowledged"] == 1 && queue["retrying"] == 2 {
            true => Ok((code, object)),
            false => Err(object.to_string()),
        }
    })
    .await
    .unwrap();
    assert_eq!(code, 1, "others go on: {object}");
    let findings = object["findings"].to_string();
    for part in [
        "2 messages failed and will be retried",
        "tenant acme · key bad-1, 1 attempt",
        "key bad-2",
        "the next in 59m",
        "P0001",
    ] {
        assert!(findings.contains(part), "no {part:?} in {findings}");
    }
    gate.open().await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_consumer_that_stands_still_says_since_when_and_why() {
    let mut world = world("").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    let (code, findings) = told(&world, "is stalled since").await;
    assert_eq!(code, 5, "{findings}");
    assert!(findings.contains("tenant acme · key k"), "{findings}");
    assert!(findings.contains("undefined table (SQLSTATE 42P01)"), "{findings}");
    sqlx::query("create table app.not_there (n integer)").execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    eventually("it goes on", || async {
        let (_, object) = status(&world).await;
        let text = object["findings"].to_string();
        if text.contains("is stalled since") { Err(text) } else { Ok(()) }
    })
    .await
    .unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn no_worker_a_silent_one_and_a_missing_queue_are_told() {
    let mut world = world("").await;
    let (code, findings) = told(&world, "no worker consumes").await;
    assert_eq!(code, 5, "{findings}");
    assert!(findings.contains("no worker is running") && findings.contains("no relay runs"), "{findings}");
    let mut worker = world.start("worker");
    world.wait_for(PROCESSES, 1).await;
    world.kill(&mut worker);
    sqlx::query("update oncely.processes set last_seen_at = last_seen_at - interval '20 seconds'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let (_, findings) = told(&world, "has been silent for").await;
    assert!(findings.contains("worker worker"), "{findings}");
    let worker = world.start_as("worker", "second");
    world.wait_for_line(&worker, "subscribed").await;
    world.broker.delete_queue(&format!("{}.dead", world.queue("payments"))).await.unwrap();
    let (code, findings) = told(&world, "does not exist").await;
    assert_eq!(code, 5, "{findings}");
    assert!(findings.contains(".dead"), "{findings}");
    world.stop(worker).await;
    // A relay removes who has been silent for an hour.
    sqlx::query("update oncely.processes set last_seen_at = last_seen_at - interval '2 hours'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.processes where kind = 'worker'", 0).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_killed_worker_is_missed_until_one_has_taken_its_place_or_somebody_forgets_it() {
    let mut world = world("").await;
    let (mut first, mut other) = (world.start("worker"), world.start("worker"));
    world.wait_for(PROCESSES, 2).await;
    world.kill(&mut first);
    world.kill(&mut other);
    sqlx::query(
        "update oncely.processes set started_at = started_at - interval '1 minute', last_seen_at = last_seen_at - interval '20 seconds'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    told(&world, "has been silent for").await;
    let successor = world.start("worker");
    // It takes the place of one, and not of both: the other is still missed.
    world.wait_for("select count(*) from oncely.processes where has_succeeded", 1).await;
    world.wait_for(PROCESSES, 2).await;
    let beaten = "select (last_seen_at > clock_timestamp() - interval '2 seconds')::int::bigint from oncely.processes where has_succeeded";
    for _ in 0..2 {
        world.wait_for(beaten, 0).await;
        world.wait_for(beaten, 1).await;
    }
    assert_eq!(world.count(PROCESSES).await, 2);
    let (_, findings) = told(&world, "has been silent for").await;
    assert!(findings.contains("oncely processes forget"), "{findings}");
    let forget = async |arguments: &[&str]| {
        let all = [&["processes", "forget", "--json"], arguments].concat();
        let output = world.oncely(&all).await;
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said["forgotten"].clone())
    };
    assert_eq!(forget(&["--host", "elsewhere"]).await, (Some(1), json!(0)));
    assert_eq!(forget(&["--operator", "Ann", "--note", "scaled down"]).await, (Some(0), json!(1)));
    assert_eq!(forget(&[]).await, (Some(1), json!(0)), "none that lives");
    let recorded = "select concat_ws(' ', actor like '% (Ann)', count, reason) from oncely.operator_actions";
    assert_eq!(world.text(recorded).await.as_deref(), Some("t 1 scaled down"));
    let (_, object) = status(&world).await;
    assert!(!object["findings"].to_string().contains("silent"), "{object}");
    world.stop(successor).await;
}

#[tokio::test]
async fn a_frozen_worker_leaves_its_queue_to_nobody_although_it_is_subscribed() {
    let mut world = world("").await;
    let worker = world.start("worker");
    world.wait_for(PROCESSES, 1).await;
    world.wait_for_line(&worker, "subscribed").await;
    worker.signal(testbed::Signal::STOP).unwrap();
    // Two beats later: one that may be on its way is not written any more.
    sqlx::query("update oncely.processes set last_seen_at = last_seen_at - interval '13 seconds'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let (code, findings) = told(&world, "its workers died, hang, or can't reach PostgreSQL").await;
    assert_eq!(code, 5, "{findings}");
    assert!(findings.contains("worker consumes") && findings.contains("has been silent for"), "{findings}");
    worker.signal(testbed::Signal::CONT).unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn a_handler_that_fails_for_every_new_message_is_told_by_all_who_are_asked() {
    let mut world = world("retry = { delays = [\"1h\"], max_attempts = 2 }").await;
    world.configure("[worker]\nlisten = \"127.0.0.1:0\"");
    let worker = world.start("worker");
    let address = crate::support::http::address(&worker).await;
    for number in 0..20 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
    }
    let (code, findings) = told(&world, "every message fails since").await;
    assert_eq!(code, 5, "{findings}");
    assert!(
        findings.contains("no such account") && findings.contains("(SQLSTATE ONC01); tenant acme · key k"),
        "{findings}"
    );
    let ready =
        crate::support::http::wait_for(&address, "/readyz", 503, "every message of payments fails").await;
    assert!(ready.contains("(ONC01)") && !ready.contains("no such account"), "anybody may ask: {ready}");
    let failing = "oncely_consumer_failing{consumer=\"payments\"} 1\n";
    crate::support::http::wait_for(&address, "/metrics", 200, failing).await;
    let top = world.oncely(&["top", "--once"]).await;
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("FAILING") && top.contains("no such account"), "{top}");
    // One that succeeds ends it.
    world.publish("payments", message("acme", "good"), "{}").await;
    crate::support::http::wait_for(&address, "/readyz", 200, "ready").await;
    eventually("not every message fails any more", || async {
        let findings = status(&world).await.1["findings"].to_string();
        if findings.contains("every message fails") { Err(findings) } else { Ok(()) }
    })
    .await
    .unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn a_dead_letter_queue_that_was_emptied_is_told() {
    let mut world = world("").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    let dead = format!("{}.dead", world.queue("payments"));
    world.wait_for_ready(&dead, 1).await;
    let (code, findings) = told(&world, "1 dead letter waiting").await;
    assert_eq!(code, 1, "{findings}");
    assert!(!findings.contains("emptied"), "{findings}");
    assert!(world.broker.take(&dead).await.unwrap().is_some());
    sqlx::query("update oncely.dead_letters set dead_lettered_at = dead_lettered_at - interval '5 minutes'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let (_, findings) = told(&world, "the queue was purged or deleted").await;
    assert!(findings.contains("holds 0 messages, but 1 dead letter waiting"), "{findings}");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_process_can_only_write_its_own_heartbeat() {
    let mut world = world("").await;
    let id = uuid::Uuid::now_v7();
    let beat = "select oncely.beat($1, 'worker', 'mine', '1', 'host', 1, '', 'ready', null, '[]')::text";
    sqlx::query(beat).bind(id).execute(&mut world.sql).await.unwrap();
    sqlx::query("update oncely.processes set login = 'somebody else'").execute(&mut world.sql).await.unwrap();
    let refused = sqlx::query(beat).bind(id).execute(&mut world.sql).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("23505"));
    sqlx::query("select oncely.leave($1)::text").bind(id).execute(&mut world.sql).await.unwrap();
    assert_eq!(world.count(PROCESSES).await, 1);
    let large =
        "select oncely.beat($1, 'worker', repeat('x', 256), '1', 'host', 1, '', 'ready', null, '[]')::text";
    let refused = sqlx::query(large).bind(uuid::Uuid::now_v7()).execute(&mut world.sql).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("23514"));
}

#[tokio::test]
async fn a_heartbeat_that_cannot_be_read_hides_nobody_else() {
    let mut world = world("").await;
    let worker = world.start("worker");
    world.wait_for(PROCESSES, 1).await;
    let most = u64::MAX;
    let numbers = format!(
        "[{{\"consumer\": \"payments\", \"unsettled\": {most}, \"unacknowledged\": {{\"{}\": {most}}},
           \"counts\": {{\"completed\": {most}, \"refused\": {most}, \"duplicates_mirror\": {most}, \"duplicates_batch\": {most}}}}}]",
        world.queue("payments")
    );
    let beat = "select oncely.beat(gen_random_uuid(), 'worker', 'strange', '0', 'h', 1, '', 'ready', null, $1::text::jsonb)";
    for beyond in ["[1e400]", "[{\"counts\": {\"completed\": 1000000000000001}}]", &numbers] {
        let refused = sqlx::query(beat).bind(beyond).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("23514"), "{beyond}");
    }
    // A table that somebody has changed.
    sqlx::query("alter table oncely.processes drop constraint processes_numbers")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let nested = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    let beats = ["[1e400]", &nested, &numbers, &numbers];
    for one in beats {
        sqlx::query(beat).bind(one).execute(&mut world.sql).await.unwrap();
    }
    let (_, object) = status(&world).await;
    assert_eq!(object["processes"].as_array().unwrap().len(), 1 + beats.len(), "{object}");
    assert_eq!(object["queues"][0]["unacknowledged"], most.to_string(), "it is as much as there can be");
    for verb in [&["status"][..], &["consumers", "list"], &["top", "--once"]] {
        let output = world.oncely(verb).await;
        assert_ne!(output.status.code(), Some(101), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let (running, operator) = console(&world).await;
    for page in ["/", "/consumers", "/consumer?name=payments", "/outbox", "/doctor"] {
        operator.page(page).await;
    }
    drop(running);
    let huge = sqlx::query(
        "select oncely.beat(gen_random_uuid(), 'worker', 'huge', '0', 'h', 1, '', 'ready', null, to_jsonb(repeat('x', 262145)))",
    );
    let refused = huge.execute(&mut world.sql).await.unwrap_err();
    assert!(refused.to_string().contains("256 kB"), "{refused}");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_stall_keeps_its_beginning_while_a_dead_letter_comes_and_other_tries_fail() {
    let mut world = world("retry = { delays = [\"50ms\"], max_attempts = 1 }").await;
    let worker = world.start("worker");
    for key in ["stuck-1", "stuck-2"] {
        world.publish("payments", message("acme", key), r#"{"do": "missing_table"}"#).await;
    }
    told(&world, "is stalled since").await;
    let since = |object: &Value| object["processes"][0]["consumers"][0]["stalled"]["since"].clone();
    let first = since(&status(&world).await.1);
    assert!(first.is_string());
    let park = world.oncely(&["failed", "park", "stuck-1", "--tenant", "acme", "--yes"]).await;
    assert!(park.status.success(), "{}", String::from_utf8_lossy(&park.stderr));
    world.wait_for("select count(*) from oncely.dead_letters where key = 'stuck-1'", 1).await;
    // The other one has been tried again since.
    let tries = worker.output().matches("no attempt is spent").count();
    world.wait_for_lines(&worker, "no attempt is spent", tries + 2).await;
    eventually("a heartbeat later", || async {
        let (code, object) = status(&world).await;
        let stalled = &object["processes"][0]["consumers"][0]["stalled"];
        match stalled["key"] == "stuck-2" && code == 5 && since(&object) == first {
            true => Ok(()),
            false => Err(object.to_string()),
        }
    })
    .await
    .unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn a_primary_that_takes_no_writes_is_told_and_no_worker_is_blamed() {
    let mut world = world("").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for(PROCESSES, 2).await;
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    let set = |value: &str| {
        AssertSqlSafe(format!(
            "set default_transaction_read_only = off; alter database {name} set default_transaction_read_only = {value}"
        ))
    };
    world.sql.execute(set("on")).await.unwrap();
    let (code, text) = told(&world, "takes no writes").await;
    assert!(code == 5 && text.contains("default_transaction_read_only is on"), "{text}");
    assert!(!text.contains("no worker") && !text.contains("silent"), "{text}");
    let output = world.oncely(&["status"]).await;
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!screen.contains("\u{2713} PostgreSQL") && screen.contains("\u{2717} PostgreSQL"), "{screen}");
    world.sql.execute(set("off")).await.unwrap();
    world.stop(worker).await;
    world.stop(relay).await;
}
