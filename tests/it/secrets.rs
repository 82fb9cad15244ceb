//! Keys of signatures, marks and tags, which are replaced while everything is at work.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sqlx::Connection as _;
use testbed::{Redis, Signal};

use crate::support::{Login, World, message};

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";
const EFFECTS: &str = "select count(*) from app.effects";
const MIRROR_QUEUE: &str = "select count(*) from oncely.mirror_queue";
const DUPLICATES: &str = "select count(*) from oncely.audit where outcome = 'duplicate'";
const REFUSED: &str = "select count(*) from oncely.dead_letters where reason = 'signature_invalid'
    and detail like '%is not accepted here%'";

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

/// Replaces the keys of purposes, and waits until the new ones sign.
async fn rotate(world: &mut World, purposes: &[&str], more: &[&str]) {
    for purpose in purposes {
        rotate_soon(world, purpose, more).await;
    }
    world.wait_for("select count(*) from oncely.secrets where signs_from > clock_timestamp()", 0).await;
}

async fn rotate_soon(world: &World, purpose: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["secrets", "rotate", purpose, "--signs-in", "5s", "--json"];
    arguments.extend(more);
    let output = world.oncely(&arguments).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn headers(copy: &Delivery) -> FieldTable {
    copy.properties.headers().clone().unwrap_or_default()
}

async fn run(world: &mut World, statements: &'static str) {
    sqlx::raw_sql(statements).execute(&mut world.sql).await.unwrap();
}

async fn requeue(world: &World) -> Value {
    let output = world.oncely(&["failed", "requeue", "--all", "--yes", "--json"]).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A world whose consumer has one dead letter, and would take it now.
async fn with_letter() -> World {
    with_letter_by("").await
}

async fn with_letter_by(settings: &str) -> World {
    let mut world = World::new().await;
    world.configure(settings);
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
    rotate(&mut world, &["identity", "letter"], &[]).await;
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
        rotate(&mut world, &["identity"], &["--accept", accept]).await;
        let worker = world.start("worker");
        if dead == 1 {
            world.wait_for(REFUSED, 1).await;
        } else {
            world.wait_for(EFFECTS, 1).await;
            assert_eq!(world.count(REFUSED).await, 0);
        }
        assert_eq!(world.count(EFFECTS).await, 1 - dead);
        world.stop(worker).await;
    }
}

#[tokio::test]
async fn a_letter_that_was_marked_before_a_rotation_is_requeued_after_it_and_its_copy_swept() {
    let mut world = with_letter().await;
    let worker = world.start("worker");
    rotate(&mut world, &["letter"], &[]).await;
    let done = requeue(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["dropped"]), (&1.into(), &1.into()), "{done}");
    world.wait_for(EFFECTS, 1).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 0).await;
    world.stop(worker).await;

    // Once it is not accepted any more, the copy can't be told from a stranger's.
    let mut world = with_letter().await;
    rotate(&mut world, &["letter"], &["--accept", "0s"]).await;
    let done = requeue(&world).await;
    let swept = &done["swept"][0];
    assert_eq!((&done["done"], &swept["kept"]), (&1.into(), &1.into()), "{done}");
    assert_eq!(swept["unreadable_marks"]["unknown_key"], 1, "{done}");
}

#[tokio::test]
async fn keys_are_replaced_under_load_and_nothing_is_dead_lettered_or_doubled() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"300ms\"], max_attempts = 5 }");
    world.apply_topology().await;
    // Gets each copy that is to be tried again, too: it shows which key has signed it.
    let (tap, retries) =
        (format!("{}.tap", world.queue("payments")), format!("{}.retry", world.queue("payments")));
    world.broker.declare_queue(&tap, FieldTable::default()).await.unwrap();
    world.broker.bind(&tap, &retries, "").await.unwrap();
    let workers = [world.start_as("worker", "a"), world.start_as("worker", "b")];
    let rotated = rotate_soon(&world, "identity", &[]).await;
    for purpose in ["letter", "mirror"] {
        rotate_soon(&world, purpose, &[]).await;
    }
    let by_new = format!("1.{}.", rotated["id"].as_str().unwrap());
    let (mut published, mut good, mut by_old, mut new_in_a_row) = (0, 0, 0, 0);
    let began = Instant::now();
    // So many in a row come from both workers.
    while new_in_a_row < 100 {
        assert!(began.elapsed() < Duration::from_secs(90), "a worker signs with the old key still");
        for _ in 0..10 {
            let key = format!("k{published}");
            world.publish("payments", message("acme", &key), r#"{"do": "fail_once"}"#).await;
            published += 1;
        }
        // One succeeds, so that those that fail answer for it.
        world.publish("payments", message("acme", &format!("good{good}")), "{}").await;
        good += 1;
        // A duplicate of what is done by now.
        let key = format!("k{}", (published - 10) / 2);
        world.publish("payments", message("acme", &key), r#"{"do": "fail_once"}"#).await;
        while let Some(copy) = world.broker.take(&tap).await.unwrap() {
            let Some(AMQPValue::LongString(signed)) =
                headers(&copy).inner().get("x-oncely-identity").cloned()
            else {
                panic!("{copy:?}")
            };
            match signed.as_bytes().starts_with(by_new.as_bytes()) {
                true => new_in_a_row += 1,
                false => (by_old, new_in_a_row) = (by_old + 1, 0),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(by_old > 0, "all of it was signed with the new key");
    world.wait_within(Duration::from_secs(60), EFFECTS, published + good).await;
    assert_eq!(world.count("select count(distinct key) from app.effects").await, published + good);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    let by_both = "select count(distinct worker) from oncely.audit where outcome = 'completed'";
    assert_eq!(world.count(by_both).await, 2);
    for worker in workers {
        world.stop(worker).await;
    }
    world.broker.delete_queue(&tap).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_can_read_no_keys_waits_and_takes_nothing_that_an_ended_one_has_signed() {
    let mut world = with_letter().await;
    requeue(&world).await;
    let queue = world.queue("payments");
    let copy = world.broker.take_exactly(&queue, 1).await.unwrap().remove(0);
    let login = Login::create(&mut world, "oncely_worker").await;
    run(&mut world, "grant usage on schema app to public; grant all on all tables in schema app to public")
        .await;
    let worker = world.start_with("worker", "keyless", &login.environment());
    world.wait_for_line(&worker, "subscribed").await;
    run(&mut world, "revoke execute on function oncely.signing_keys from oncely_worker").await;
    rotate(&mut world, &["identity"], &["--accept", "0s"]).await;
    // What it has read is older than fifteen seconds then.
    let long_ago = "select count(*) from oncely.secrets where signs_from > created_at
        and signs_from + interval '11 seconds' <= clock_timestamp()";
    world.wait_within(Duration::from_secs(60), long_ago, 1).await;
    world.broker.publish("", &queue, copy.properties, &copy.data).await.unwrap();
    world.wait_for_line(&worker, "consuming waits until this is fixed").await;
    world.wait_for("select count(*) from oncely.processes where state = 'unready'", 1).await;
    run(&mut world, "grant execute on function oncely.signing_keys to oncely_worker").await;
    world.wait_for(REFUSED, 1).await;
    assert_eq!(world.count(EFFECTS).await, 0);
    world.wait_for("select count(*) from oncely.processes where state = 'ready'", 1).await;
    world.stop(worker).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_sweep_marks_anew_what_waits_so_that_it_outlives_the_key_of_its_day() {
    let mut world = with_letter().await;
    rotate(&mut world, &["letter"], &[]).await;
    assert!(world.oncely(&["failed", "sweep"]).await.status.success());
    sqlx::query("update oncely.secrets set accepted_until = now() where accepted_until is not null")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let done = requeue(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["dropped"]), (&1.into(), &1.into()), "{done}");
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 0).await;
}

#[tokio::test]
async fn a_letter_that_only_its_queue_has_whole_is_requeued_by_its_mark_alone_and_never_guessed() {
    let mut world = with_letter_by("[dead_letters]\nmax_body = 1").await;
    rotate(&mut world, &["letter"], &["--accept", "0s"]).await;
    let output = world.oncely(&["failed", "requeue", "--all", "--yes", "--json"]).await;
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &done["failed"]), (Some(1), &1.into()), "{done}");
    assert_eq!(done["swept"][0]["unreadable_marks"]["unknown_key"], 1, "{done}");
    assert_eq!(world.count("select count(*) from oncely.dead_letters where state = 'requeueing'").await, 1);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    // Its publisher sends it again.
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_key_that_begins_to_sign_while_another_replaces_it_still_counts() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let first = rotate_soon(&world, "identity", &[]).await;
    let id = first["id"].as_str().unwrap();
    let mut other = world.database.connect().await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("select oncely.rotate_secret('identity', '1 minute', null, 'again', 'me')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    // The others see nothing of it, and sign.
    let keys = "from oncely.signing_keys() where purpose = 'identity'";
    let signs = format!("select count(*) from (select id {keys} limit 1) as s where id = '{id}'");
    world.wait_for(&signs, 1).await;
    transaction.commit().await.unwrap();
    assert_eq!(world.count(&signs).await, 0, "the one of before, until the last one does");
    assert_eq!(world.count(&format!("select count(*) {keys} and id = '{id}'")).await, 1);
    assert_eq!(world.count(&format!("select count(*) {keys}")).await, 3);
}

#[tokio::test]
async fn entries_under_a_replaced_key_are_missed_until_they_are_said_again_and_an_erasure_finds_both() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "");
    world.configure("[audit]\nduplicates = true\n[relay]\npoll = \"20ms\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let known = |by: &str| {
        format!("select count(*) from oncely.audit where outcome = 'duplicate' and reason = '{by}'")
    };
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(EFFECTS, 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&known("mirror"), 1).await;

    rotate(&mut world, &["mirror"], &[]).await;
    let began = Instant::now();
    while world.count(&known("postgres")).await == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the worker asks with the old key still");
        let before = world.count(DUPLICATES).await;
        world.publish("payments", message("acme", "k"), "{}").await;
        world.wait_for(DUPLICATES, before + 1).await;
    }
    let verify = async |world: &World| world.oncely(&["mirror", "verify"]).await.status.code();
    assert_eq!(verify(&world).await, Some(1), "it is missing");
    // A relay that has not read the new key yet writes what nobody finds.
    while verify(&world).await != Some(0) {
        assert!(began.elapsed() < Duration::from_secs(90), "the relay writes with the old key still");
        assert!(world.oncely(&["mirror", "rebuild"]).await.status.success());
        world.wait_for(MIRROR_QUEUE, 0).await;
    }
    let before = world.count(&known("mirror")).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&known("mirror"), before + 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count(EFFECTS).await, 1);

    let output = world.oncely(&["tenant", "erase", "acme", "--forget-keys", "--yes", "--json"]).await;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["receipt"]["mirror_entries"], 2, "{said}");
}

#[tokio::test]
async fn no_log_and_no_verb_tells_a_key_however_fine_it_is() {
    let mut world = with_letter().await;
    let filter = [("RUST_LOG", "trace".to_owned())];
    let worker = world.start_with("worker", "fine", &filter);
    world.wait_for_line(&worker, "subscribed").await;
    let mut text = String::new();
    for arguments in [
        &["secrets", "rotate", "letter", "--signs-in", "5s"][..],
        &["secrets", "rotate", "mirror", "--json"],
        &["secrets", "list", "-o", "json"],
        &["failed", "requeue", "--all", "--yes"],
        &["doctor"],
        &["status"],
    ] {
        let output = world.oncely_with(arguments, &[("RUST_LOG", "trace")]).await;
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    world.wait_for(EFFECTS, 1).await;
    text.push_str(&worker.output());
    world.stop(worker).await;
    assert!(text.contains("TRACE") && text.contains("secrets/1"), "there was nothing to be seen");
    let secrets: Vec<Vec<u8>> =
        sqlx::query_scalar("select secret from oncely.secrets").fetch_all(&mut world.sql).await.unwrap();
    assert_eq!(secrets.len(), 5);
    for secret in secrets {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let bytes: Vec<String> = secret.iter().take(8).map(u8::to_string).collect();
        for shown in [&hex[..16], &hex[..16].to_uppercase(), &bytes.join(", ")] {
            let line = text.lines().find(|line| line.contains(shown));
            assert!(line.is_none(), "{line:?}");
        }
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
    let replaced = replaced["id"].as_str().unwrap();
    assert_eq!(states, [(id, "pending"), (replaced, "accepted"), (first[0].0.as_str(), "signing")]);
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
