//! What bad messages and failing handlers get: the dead-letter queue with a stable reason, or another try; their
//! neighbours get their effect.

use lapin::BasicProperties;
use lapin::types::AMQPValue;

use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message};

pub(crate) fn text(headers: &lapin::types::FieldTable, name: &str) -> Option<String> {
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Takes the only dead letter and returns it with its reason.
pub(crate) async fn dead_letter(world: &World, consumer: &str) -> (lapin::message::Delivery, String) {
    let queue = format!("{}.dead", world.queue(consumer));
    let letter = world.broker.take_exactly(&queue, 1).await.unwrap().remove(0);
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0, "it is the only one");
    let reason = text(letter.properties.headers().as_ref().unwrap(), "x-oncely-reason").unwrap();
    (letter, reason)
}

#[tokio::test]
async fn a_rejected_message_is_dead_lettered_with_its_reason_body_and_properties() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let body = r#"{"do": "reject"}"#;
    let properties = message("acme", "k")
        .with_content_type("application/json".into())
        .with_correlation_id("c-1".into())
        .with_expiration("600000".into());
    world.publish("payments", properties, body).await;
    let (letter, reason) = dead_letter(&world, "payments").await;
    world.stop(worker).await;
    assert_eq!(reason, "handler_rejected");
    assert_eq!(letter.data, body.as_bytes());
    assert_eq!(letter.routing_key.as_str(), world.queue("payments"), "its routing key is its own");
    let properties = &letter.properties;
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "k");
    assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "c-1");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert!(properties.expiration().is_none(), "a dead letter must not expire");
    let headers = properties.headers().as_ref().unwrap();
    assert_eq!(text(headers, "x-tenant-id").as_deref(), Some("acme"));
    assert!(text(headers, "x-oncely-detail").unwrap().contains("no such account: account 7"));
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
    let row = "select outcome || ' ' || reason || ' ' || error_code from oncely.audit where key = 'k'";
    assert_eq!(world.text(row).await.as_deref(), Some("dead_lettered handler_rejected ONC01"));
    let key = "select status || ' ' || reason from oncely.idempotency_keys";
    assert_eq!(world.text(key).await.as_deref(), Some("FAILED handler_rejected"));
}

#[tokio::test]
async fn a_failing_message_is_tried_as_often_as_allowed_and_then_dead_lettered() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "fail"}"#).await;
    let (_, reason) = dead_letter(&world, "payments").await;
    world.stop(worker).await;
    assert_eq!(reason, "attempts_exhausted");
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 2);
    let attempts = "select string_agg(attempt || ':' || outcome, ' ' order by occurred_at) from oncely.audit";
    assert_eq!(world.text(attempts).await.as_deref(), Some("1:retried 2:retried 3:dead_lettered"));
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 3);
    assert_eq!(world.count("select count(*) from app.effects").await, 0, "every failed run was rolled back");
}

#[tokio::test]
async fn a_message_that_fails_once_takes_effect_at_its_second_try() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "fail_once"}"#).await;
    world.wait_for("select count(*) from app.effects where attempt = 2", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    let key = "select status || ' ' || attempts from oncely.idempotency_keys";
    assert_eq!(world.text(key).await.as_deref(), Some("COMPLETED 2"));
}

#[tokio::test]
async fn a_copy_of_a_message_that_was_given_up_is_dead_lettered_and_not_run() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    assert_eq!(dead_letter(&world, "payments").await.1, "handler_rejected");
    world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    assert_eq!(dead_letter(&world, "payments").await.1, "handler_rejected");
    world.stop(worker).await;
    let attempts = "select string_agg(attempt::text, ' ' order by occurred_at) from oncely.audit";
    assert_eq!(world.text(attempts).await.as_deref(), Some("1 0"), "the second did not run");
}

/// One bad message among a hundred good ones, in one batch.
async fn one_among_a_hundred(batch_form: bool, bad: &str, expected: &str) {
    let mut world = World::new().await;
    if batch_form {
        world.consumer("payments", "handler = { function = \"app.handle_batch\", batch = true }");
    } else {
        world.consumer("payments", "");
    }
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..101)
        .map(|number| {
            let body = if number == 50 { bad.to_owned() } else { r#"{"n": 1}"#.to_owned() };
            (queue.clone(), message("acme", &format!("k{number}")), body.into_bytes())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 100).await;
    let (letter, reason) = dead_letter(&world, "payments").await;
    world.wait_for_ready(&queue, 0).await;
    world.stop(worker).await;
    assert_eq!(reason, expected);
    assert_eq!(letter.properties.message_id().as_ref().unwrap().as_str(), "k50");
    assert_eq!(world.count("select count(*) from app.effects").await, 100);
    assert_eq!(world.count("select count(*) from app.effects where key = 'k50'").await, 0);
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
}

#[tokio::test]
async fn one_rejected_among_a_hundred_costs_its_neighbours_nothing() {
    one_among_a_hundred(false, r#"{"do": "reject"}"#, "handler_rejected").await;
}

#[tokio::test]
async fn one_failing_among_a_hundred_costs_its_neighbours_nothing() {
    one_among_a_hundred(false, r#"{"do": "fail"}"#, "attempts_exhausted").await;
}

#[tokio::test]
async fn one_poison_among_a_hundred_in_the_batch_form_costs_its_neighbours_nothing() {
    one_among_a_hundred(true, r#"{"do": "divide"}"#, "poison").await;
}

/// Batches of 200, of which every third message is rejected: parts, quarters and single messages, in batches that begin
/// together and in batches that begin in parts because one before has failed.
#[tokio::test]
async fn many_rejected_among_many_are_exactly_those_that_are_dead_lettered() {
    for batch in [false, true] {
        let mut world = World::new().await;
        let form = match batch {
            true => "handler = { function = \"app.handle_batch\", batch = true }",
            false => "handler = { function = \"app.handle\" }",
        };
        world.consumer("payments", &format!("batch = 200\nlanes = 1\n{form}"));
        world.apply_topology().await;
        let queue = world.queue("payments");
        let body = |n: i32| if n % 3 == 0 { r#"{"do": "reject"}"# } else { "{}" };
        let messages =
            (0..600).map(|n| (queue.clone(), message("acme", &format!("k{n}")), body(n).into())).collect();
        world.broker.publish_all("", messages).await.unwrap();
        let worker = world.start("worker");
        world.wait_for("select count(*) from app.effects", 400).await;
        world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 200).await;
        world.broker.take_exactly(&format!("{queue}.dead"), 200).await.unwrap();
        world.stop(worker).await;
        let wrong = "select count(*) from app.effects where substr(key, 2)::integer % 3 = 0";
        assert_eq!(world.count(wrong).await, 0, "{form}: what was rejected left no effect");
        let audited = "select count(distinct key) from oncely.audit where outcome = 'completed'";
        assert_eq!(world.count(audited).await, 400, "{form}");
    }
}

#[tokio::test]
async fn a_failure_at_commit_is_the_one_messages_failure() {
    let mut world = World::new().await;
    sqlx::query("insert into app.numbers values ('7')").execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "");
    world.apply_topology().await;
    for key in ["a", "b", "c"] {
        let body = if key == "b" { r#"{"do": "number", "number": "7"}"# } else { "{}" };
        world.publish("payments", message("acme", key), body).await;
    }
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 2).await;
    let (letter, reason) = dead_letter(&world, "payments").await;
    world.stop(worker).await;
    assert_eq!(reason, "attempts_exhausted");
    assert_eq!(letter.properties.message_id().as_ref().unwrap().as_str(), "b");
    assert_eq!(
        world.text("select error_code from oncely.audit where key = 'b' limit 1").await.as_deref(),
        Some("23505")
    );
    assert_eq!(world.count("select count(*) from app.effects where key = 'b'").await, 0);
}

#[tokio::test]
async fn a_broken_environment_pauses_consuming_and_spends_no_attempt() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"50ms\"], max_attempts = 1 }\nretention = \"30d\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    world.wait_for_line(&worker, "no attempt is spent").await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
    sqlx::query("create table app.not_there (n integer)").execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit").await, 1);
}

#[tokio::test]
async fn a_message_that_the_batch_form_forgets_is_not_lost() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "handler = { function = \"app.forgetful\", batch = true }\nretry = { delays = [\"50ms\"], max_attempts = 2 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "good"), "{}").await;
    world.publish("payments", message("acme", "bad"), r#"{"do": "forget"}"#).await;
    let (letter, reason) = dead_letter(&world, "payments").await;
    world.wait_for("select count(*) from oncely.audit where key = 'good' and outcome = 'completed'", 1).await;
    world.stop(worker).await;
    assert_eq!(
        (letter.properties.message_id().as_ref().unwrap().as_str(), reason.as_str()),
        ("bad", "attempts_exhausted")
    );
    let detail = world.text("select detail from oncely.audit where key = 'bad' limit 1").await.unwrap();
    assert!(detail.contains("0 rows"), "{detail}");
}

#[tokio::test]
async fn copies_wait_for_a_dead_letter_exchange_that_is_gone_and_the_original_stays() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    let dead = format!("{}.dead", world.queue("payments"));
    world.broker.delete_queue(&dead).await.unwrap();
    world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    // Confirmed by the broker, but taken by no queue: only `mandatory` tells.
    world.wait_for_line(&worker, "the originals stay unacknowledged").await;
    world.apply_topology().await;
    assert_eq!(dead_letter(&world, "payments").await.1, "handler_rejected");
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn copies_of_a_failing_message_in_one_batch_use_up_one_attempt() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1\nretry = { delays = [\"1h\"], max_attempts = 3 }");
    world.apply_topology().await;
    // The first message keeps the only lane busy, so that the others make one batch.
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    let worker = world.start("worker");
    world.publish("payments", message("acme", "first"), r#"{"do": "wait"}"#).await;
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 4711
        and database = (select oid from pg_database where datname = current_database())";
    world.wait_for(waiting, 1).await;
    for _ in 0..5 {
        world.publish("payments", message("acme", "k"), r#"{"do": "fail"}"#).await;
    }
    world.wait_for_ready(&world.queue("payments"), 0).await;
    sqlx::query("select pg_advisory_unlock(4711)").execute(&mut gate).await.unwrap();
    world.wait_for_ready(&format!("{}.retry.1h", world.queue("payments")), 5).await;
    world.stop(worker).await;
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys where key = 'k'").await, 1);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
}

#[tokio::test]
async fn a_record_of_earlier_dead_letterings_does_not_make_a_retry_vanish() {
    use lapin::types::{FieldArray, FieldTable};
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    // As after a message expired in this queue and somebody moved it back: the broker would take its return from the retry
    // queue for a cycle, and drop it.
    let mut death = FieldTable::default();
    death.insert("queue".into(), AMQPValue::LongString(world.queue("payments").into()));
    death.insert("reason".into(), AMQPValue::LongString("expired".into()));
    death.insert("exchange".into(), AMQPValue::LongString("".into()));
    death.insert("count".into(), AMQPValue::LongLongInt(1));
    death.insert("time".into(), AMQPValue::Timestamp(1_700_000_000));
    let keys = vec![AMQPValue::LongString(world.queue("payments").into())];
    death.insert("routing-keys".into(), AMQPValue::FieldArray(FieldArray::from(keys)));
    let properties = message("acme", "k");
    let mut headers = properties.headers().clone().unwrap();
    headers.insert(
        "x-death".into(),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)])),
    );
    world.publish("payments", properties.with_headers(headers), r#"{"do": "fail_once"}"#).await;
    world.wait_for("select count(*) from app.effects where attempt = 2", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_retry_whose_way_back_is_gone_ends_in_the_dead_letter_queue() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"200ms\"], max_attempts = 3 }");
    world.apply_topology().await;
    let queue = world.queue("payments");
    // As after somebody declared the queue anew.
    let unbound = world.broker.channel().queue_unbind(
        queue.as_str().into(),
        format!("{queue}.return").as_str().into(),
        "".into(),
        lapin::types::FieldTable::default(),
    );
    unbound.await.unwrap();
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "fail_once"}"#).await;
    let letters = world.broker.take_exactly(&format!("{queue}.dead"), 1).await.unwrap();
    world.stop(worker).await;
    assert_eq!(letters[0].properties.message_id().as_ref().unwrap().as_str(), "k");
}

#[tokio::test]
async fn headers_that_fill_a_frame_do_not_keep_a_message_from_being_dead_lettered() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let properties = message("acme", "k");
    let mut headers = properties.headers().clone().unwrap();
    // With our own headers it would not fit into a frame of 131,072 bytes any more.
    headers.insert("huge".into(), AMQPValue::LongString("x".repeat(130_700).into()));
    headers.insert("small".into(), AMQPValue::LongString("kept".into()));
    world.publish("payments", properties.with_headers(headers), r#"{"do": "reject"}"#).await;
    world.publish("payments", message("acme", "other"), r#"{"do": "reject"}"#).await;
    let letters = world.broker.take_exactly(&format!("{}.dead", world.queue("payments")), 2).await.unwrap();
    world.stop(worker).await;
    let letter =
        letters.iter().find(|l| l.properties.message_id().as_ref().unwrap().as_str() == "k").unwrap();
    let headers = letter.properties.headers().as_ref().unwrap();
    assert_eq!(text(headers, "x-oncely-headers-left-out").as_deref(), Some("huge"));
    assert_eq!(text(headers, "small").as_deref(), Some("kept"));
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_publishers_header_with_a_name_like_ours_does_not_keep_a_message_from_being_dead_lettered() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let mut headers = message("acme", "k").headers().clone().unwrap();
    headers.insert("x-oncely-junk".into(), AMQPValue::LongString("x".repeat(130_700).into()));
    // No key: refused before anything runs.
    world.publish("payments", BasicProperties::default().with_headers(headers), "{}").await;
    let letters = world.broker.take_exactly(&format!("{}.dead", world.queue("payments")), 1).await.unwrap();
    let headers = letters[0].properties.headers().as_ref().unwrap();
    assert_eq!(text(headers, "x-oncely-headers-left-out").as_deref(), Some("x-oncely-junk"));
    assert_eq!(text(headers, "x-oncely-reason").as_deref(), Some("key_missing"));
    world.publish("payments", message("acme", "next"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'next'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_key_that_was_given_up_runs_again_when_it_is_made_runnable() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [], max_attempts = 1 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "fail_once"}"#).await;
    let (letter, _) = dead_letter(&world, "payments").await;
    // The statement of the README, but for the attempts: this handler wants a second one.
    sqlx::query(
        "update oncely.idempotency_keys
         set status = 'IN_PROGRESS', completed_at = null, reason = null
         where tenant = 'acme' and consumer = 'payments' and key = 'k' and status = 'FAILED'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.publish_bytes("payments", letter.properties, &letter.data).await;
    world.wait_for("select count(*) from app.effects where attempt = 2", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn quorum_queues_retry_and_dead_letter_like_classic_ones() {
    let mut world = World::new().await;
    // One lane: the good message runs after the two that fail, and is a witness for both.
    world.consumer("payments", "queue_type = \"quorum\"\nlanes = 1");
    world.apply_topology().await;
    world.apply_topology().await;
    let worker = world.start("worker");
    for (key, what) in [("once", "fail_once"), ("never", "fail"), ("rejected", "reject"), ("good", "ok")] {
        world.publish("payments", message("acme", key), &format!(r#"{{"do": "{what}"}}"#)).await;
    }
    world.wait_for("select count(*) from app.effects", 2).await;
    let letters = world.broker.take_exactly(&format!("{}.dead", world.queue("payments")), 2).await.unwrap();
    world.stop(worker).await;
    let mut reasons: Vec<String> = letters
        .iter()
        .map(|l| text(l.properties.headers().as_ref().unwrap(), "x-oncely-reason").unwrap())
        .collect();
    reasons.sort();
    assert_eq!(reasons, ["attempts_exhausted", "handler_rejected"]);
    assert_eq!(world.count("select count(*) from app.effects where key = 'once' and attempt = 2").await, 1);
}

#[tokio::test]
async fn what_a_handler_defers_runs_in_the_settings_of_its_session() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1");
    sqlx::raw_sql(
        "create table app.seen (mode text not null);
         create function app.look() returns trigger language plpgsql as $$
         begin insert into app.seen values (current_setting('plan_cache_mode')); return null; end $$;
         create constraint trigger looks after insert on app.effects deferrable initially deferred
             for each row execute function app.look()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.apply_topology().await;
    // One batch, whose failure is recorded before COMMIT runs what its neighbour has deferred.
    for (key, body) in [("good", "{}"), ("bad", r#"{"do": "reject"}"#), ("better", "{}")] {
        world.publish("payments", message("acme", key), body).await;
    }
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.audit", 3).await;
    assert_eq!(
        world.text("select string_agg(distinct mode, ' ') from app.seen").await.as_deref(),
        Some("auto")
    );
    world.stop(worker).await;
}

/// The record of a final failure is broken off, and before it is tried again a copy of the message fails in passing: that attempt is
/// the copy's, and says nothing of the verdict.
#[tokio::test]
async fn a_final_verdict_is_recorded_although_a_copy_has_failed_meanwhile() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1");
    sqlx::raw_sql(
        "create function app.refuse_late() returns trigger language plpgsql as $$
         begin perform oncely.reject('no', 'late'); return null; end $$;
         create constraint trigger refuses after insert on app.effects deferrable initially deferred
             for each row execute function app.refuse_late();
         create sequence app.times;
         grant usage on sequence app.times to public;
         -- The first one of its kind waits, and is broken off.
         create function app.break_off() returns trigger language plpgsql as $$
         begin
             if new.outcome = 'dead_lettered' and nextval('app.times') = 1 then
                 perform pg_advisory_xact_lock(4711);
                 raise exception 'broken off' using errcode = 'disk_full';
             end if;
             return new;
         end $$;
         create trigger breaks_off before insert on oncely.audit for each row execute function app.break_off()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(WAITING, 1).await;
    // Behind the key, which the record has written: it is in as soon as that is rolled back.
    let mut copy = world.database.connect().await.unwrap();
    let failed = tokio::spawn(async move {
        let row = "insert into oncely.idempotency_keys (tenant, consumer, key, status, created_at, attempts, fingerprint)
            values ('acme', 'payments', 'k', 'IN_PROGRESS', now(), 1, null)";
        sqlx::query(row).execute(&mut copy).await.map(drop)
    });
    let behind = "select count(*) from pg_locks where not granted and locktype = 'transactionid'";
    world.wait_for(behind, 1).await;
    gate.open().await;
    failed.await.unwrap().unwrap();
    let (_, reason) = dead_letter(&world, "payments").await;
    world.stop(worker).await;
    assert_eq!(reason, "handler_rejected");
    let rows = "select count(*) from oncely.audit where outcome = 'dead_lettered' and attempt = 2";
    assert_eq!(world.count(rows).await, 1);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 1);
    let status = "select status::text from oncely.idempotency_keys";
    assert_eq!(world.text(status).await.as_deref(), Some("FAILED"));
}
