//! Keys of signatures, marks and tags, which are replaced while everything is at work.

use std::time::Duration;

use lapin::BasicProperties;
use serde_json::Value;
use testbed::Signal;

use crate::support::{Login, World, message};

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";
const EFFECTS: &str = "select count(*) from app.effects";

/// A handler that fails until it is mended.
const FRAGILE: &str = r"
create table app.broken (what text);
insert into app.broken values ('all of it');
create function app.fragile(message oncely.message) returns jsonb language plpgsql as $$
begin
    if exists (select from app.broken) then
        raise exception 'boom';
    end if;
    return app.handle(message);
end
$$";

/// Replaces the key of a purpose, and waits until the new one signs.
async fn rotate(world: &mut World, purpose: &str, more: &[&str]) {
    let rotated = rotate_soon(world, purpose, more).await;
    let id = rotated["id"].as_str().unwrap();
    let signs =
        format!("select count(*) from oncely.secrets where id = '{id}' and signs_from <= clock_timestamp()");
    world.wait_for(&signs, 1).await;
}

async fn rotate_soon(world: &World, purpose: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["secrets", "rotate", purpose, "--signs-in", "5s", "--json"];
    arguments.extend(more);
    let output = world.oncely(&arguments).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn requeue(world: &World) -> Value {
    let output = world.oncely(&["failed", "requeue", "--all", "--yes", "--json"]).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A world whose consumer has one dead letter, and would take it now.
async fn with_letter() -> World {
    let mut world = World::new().await;
    sqlx::raw_sql(FRAGILE).execute(&mut world.sql).await.unwrap();
    world.consumer(
        "payments",
        "handler = { function = \"app.fragile\" }\nretry = { delays = [\"100ms\"], max_attempts = 1 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(WAITING, 1).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    world.stop(worker).await;
    sqlx::raw_sql("delete from app.broken").execute(&mut world.sql).await.unwrap();
    world
}

#[tokio::test]
async fn a_worker_that_stood_still_over_a_rotation_asks_before_it_judges_what_the_new_key_signed() {
    let mut world = with_letter().await;
    let worker = world.start("worker");
    // Without a key there is nothing but its mark to know it by.
    let headers = message("acme", "").headers().clone().unwrap();
    world.publish("payments", BasicProperties::default().with_headers(headers), "{}").await;
    world.wait_for(WAITING, 2).await;
    worker.signal(Signal::STOP).unwrap();
    for purpose in ["identity", "letter"] {
        rotate(&mut world, purpose, &[]).await;
    }
    let done = requeue(&world).await;
    assert_eq!(done["done"], 2, "{done}");
    worker.signal(Signal::CONT).unwrap();
    world.wait_for(EFFECTS, 1).await;
    world
        .wait_for(
            "select count(*) from oncely.dead_letters where reason = 'key_missing' and generation = 2",
            1,
        )
        .await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 2, "both were known again");
    world.stop(worker).await;
}

#[tokio::test]
async fn what_an_old_key_signed_is_accepted_for_the_stated_time_and_then_refused() {
    for (accept, dead) in [("1h", 0), ("0s", 1)] {
        let mut world = with_letter().await;
        // Signed with the old key; nobody takes it yet.
        requeue(&world).await;
        world.wait_for_ready(&world.queue("payments"), 1).await;
        rotate(&mut world, "identity", &["--accept", accept]).await;
        let worker = world.start("worker");
        let refused = "select count(*) from oncely.dead_letters where reason = 'signature_invalid'
            and detail like '%is not accepted here%'";
        if dead == 1 {
            world.wait_for(refused, 1).await;
        } else {
            world.wait_for(EFFECTS, 1).await;
            assert_eq!(world.count(refused).await, 0);
        }
        assert_eq!(world.count(EFFECTS).await, 1 - dead);
        world.stop(worker).await;
    }
}

#[tokio::test]
async fn a_letter_that_was_marked_before_a_rotation_is_requeued_after_it_and_its_copy_swept() {
    let mut world = with_letter().await;
    let worker = world.start("worker");
    rotate(&mut world, "letter", &[]).await;
    let done = requeue(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["dropped"]), (&1.into(), &1.into()), "{done}");
    world.wait_for(EFFECTS, 1).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 0).await;
    world.stop(worker).await;

    // Once it is not accepted any more, the copy can't be told from a stranger's.
    let mut world = with_letter().await;
    rotate(&mut world, "letter", &["--accept", "0s"]).await;
    let done = requeue(&world).await;
    let swept = &done["swept"][0];
    assert_eq!((&done["done"], &swept["kept"]), (&1.into(), &1.into()), "{done}");
    assert_eq!(swept["unreadable_marks"]["unknown_key"], 1, "{done}");
}

#[tokio::test]
async fn keys_are_replaced_under_load_and_nothing_is_dead_lettered_or_doubled() {
    const MESSAGES: i64 = 400;
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"300ms\"], max_attempts = 5 }");
    world.apply_topology().await;
    let workers = [world.start_as("worker", "a"), world.start_as("worker", "b")];
    for purpose in ["identity", "letter", "mirror"] {
        rotate_soon(&world, purpose, &[]).await;
    }
    let signs = "select count(*) from oncely.secrets where signs_from <= clock_timestamp()";
    let mut published = 0;
    // Until a while after the new keys sign.
    let over =
        "select count(*) from oncely.secrets where signs_from + interval '3 seconds' <= clock_timestamp()";
    while world.count(over).await < 6 || published < MESSAGES {
        for _ in 0..10 {
            let key = format!("k{published}");
            world.publish("payments", message("acme", &key), r#"{"do": "fail_once"}"#).await;
            published += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.count(signs).await, 6);
    world.wait_within(Duration::from_secs(60), EFFECTS, published).await;
    assert_eq!(world.count("select count(distinct key) from app.effects").await, published);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    let by_both = "select count(distinct worker) from oncely.audit where outcome = 'completed'";
    assert_eq!(world.count(by_both).await, 2);
    for worker in workers {
        world.stop(worker).await;
    }
}

#[tokio::test]
async fn a_forged_name_of_a_key_is_dead_lettered_and_holds_nobody_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    for number in 0..50 {
        let mut properties = message("acme", &format!("f{number}"));
        let mut headers = properties.headers().clone().unwrap();
        let forged = format!("1.{number:08x}.{}.{{}}", "ab".repeat(32));
        headers.insert("x-oncely-identity".into(), lapin::types::AMQPValue::LongString(forged.into()));
        properties = properties.with_headers(headers);
        world.publish("payments", properties, "{}").await;
        world.publish("payments", message("acme", &format!("k{number}")), "{}").await;
    }
    let invalid = "select count(*) from oncely.dead_letters where reason = 'signature_invalid'";
    world.wait_for(invalid, 50).await;
    world.wait_for("select count(*) from app.effects", 50).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_rotation_is_recorded_and_replaces_what_has_not_begun_and_what_is_over_is_collected() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let listed = async |world: &World| -> Vec<(String, String)> {
        let output = world.oncely(&["secrets", "list", "--json"]).await;
        assert!(output.status.success(), "{output:?}");
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["schema"], "oncely.secrets/1");
        let rows = object["secrets"].as_array().unwrap();
        assert!(rows.iter().all(|row| row.get("secret").is_none()), "{object}");
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        rows.iter()
            .filter(|row| row["purpose"] == "identity")
            .map(|row| (text(row, "id"), text(row, "state")))
            .collect()
    };
    let first = listed(&world).await;
    assert_eq!((first.len(), first[0].1.as_str()), (1, "signing"));
    let accept = ["--accept", "0s", "--note", "yearly"];
    let replaced = rotate_soon(&world, "identity", &accept).await;
    let second = rotate_soon(&world, "identity", &accept).await;
    let id = second["id"].as_str().unwrap();
    let states = listed(&world).await;
    let states: Vec<(&str, &str)> = states.iter().map(|(id, state)| (id.as_str(), state.as_str())).collect();
    assert_eq!(states, [(id, "pending"), (first[0].0.as_str(), "signing")], "{replaced} is gone");
    // Until the second signs, the first does, and is accepted: whatever was said when another was to follow it.
    let until = "select count(*) from oncely.secrets as o join oncely.secrets as n using (purpose)
        where o.accepted_until = n.signs_from and n.signs_from > o.signs_from";
    assert_eq!(world.count(until).await, 1);
    let signs =
        format!("select count(*) from oncely.secrets where id = '{id}' and signs_from <= clock_timestamp()");
    world.wait_for(&signs, 1).await;
    assert!(listed(&world).await.contains(&(first[0].0.clone(), "over".to_owned())));
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    assert_eq!(listed(&world).await, [(id.to_owned(), "signing".to_owned())], "what is over is gone");
    let recorded =
        "select count(*) from oncely.operator_actions where verb = 'rotate key' and reason = 'yearly'
        and filter ->> 'purpose' = 'identity' and filter::text not like '%secret%'";
    assert_eq!(world.count(recorded).await, 2);
    for wrong in [["--signs-in", "4s"], ["--signs-in", "31d"], ["--accept", "4000d"]] {
        let output = world.oncely(&[&["secrets", "rotate", "mirror"][..], &wrong].concat()).await;
        assert_eq!(output.status.code(), Some(4), "{output:?}");
    }
}

#[tokio::test]
async fn each_login_has_the_keys_of_its_work_and_no_others() {
    let mut world = World::new().await;
    for (role, mirror, signing, rotates) in [
        ("oncely_worker", true, true, false),
        ("oncely_relay", true, false, false),
        ("oncely_operator", true, true, true),
        ("oncely_auditor", false, false, false),
        ("oncely_tenant_auditor", false, false, false),
        ("oncely_consumer", false, false, false),
        ("oncely_emitter", false, false, false),
    ] {
        let login = Login::create(&mut world, role).await;
        let mut sql = login.connect().await;
        for (statement, allowed) in [
            ("select secret from oncely.mirror_keys()", mirror),
            ("select secret from oncely.signing_keys()", signing),
            ("select oncely.rotate_secret('letter', '1 min', null, 'x', 'me')", rotates),
            ("select secret from oncely.secrets", false),
            ("select max(secret::text) from oncely.secrets", false),
            ("update oncely.secrets set accepted_until = null", false),
            ("delete from oncely.secrets", false),
            (
                "insert into oncely.secrets select 'letter', '00000000', '0123456789abcdef', now(), now()",
                false,
            ),
        ] {
            let done = sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut sql).await;
            match done {
                Ok(_) => assert!(allowed, "{role} may {statement}"),
                Err(error) => {
                    let code =
                        error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
                    assert_eq!((allowed, code.as_str()), (false, "42501"), "{role}: {statement}: {error}");
                }
            }
        }
        drop(sql);
        login.drop_now(&mut world).await;
    }
}
