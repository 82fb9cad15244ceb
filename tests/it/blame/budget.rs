//! The time to wait and the attempts belong to the key, however many copies there are.

use lapin::options::{BasicGetOptions, BasicNackOptions};
use sqlx::{Connection as _, Executor as _};

use crate::support::gate::WAITING;
use crate::support::{World, message};

#[tokio::test]
async fn copies_of_a_failing_message_spend_one_attempt_between_them() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"1h\"], max_attempts = 3 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    let waiting = format!("{}.retry.1h", world.queue("payments"));
    for copies in 1..=6 {
        world.publish("payments", message("acme", "k"), r#"{"do": "fail"}"#).await;
        world.wait_for_ready(&waiting, copies).await;
    }
    world.stop(worker).await;
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit").await, 1);
}

#[tokio::test]
async fn copies_follow_the_ladder_of_their_key_and_take_effect_once() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"500ms\", \"1s\"], max_attempts = 3 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    for _ in 0..6 {
        world.publish("payments", message("acme", "k"), r#"{"do": "fail_once"}"#).await;
    }
    world.wait_for("select count(*) from app.effects where attempt = 2", 1).await;
    world.wait_for_ready(&format!("{}.retry.500ms", world.queue("payments")), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 1);
    let gap = "select count(*) from oncely.audit as a join oncely.audit as b on b.attempt = a.attempt + 1
        where b.occurred_at - a.occurred_at < interval '400 milliseconds'";
    assert_eq!(world.count(gap).await, 0, "no copy came before its time");
}

/// Puts the messages of a consumer's queue back once, so that they are delivered again.
async fn deliver_once_in_vain(world: &World, consumer: &str, count: usize) {
    let queue = world.queue(consumer);
    let channel = world.broker.channel();
    let mut last = 0;
    for _ in 0..count {
        let got =
            channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap().unwrap();
        last = got.delivery_tag;
    }
    channel.basic_nack(last, BasicNackOptions { multiple: true, requeue: true }).await.unwrap();
    world.wait_for_ready(&queue, u32::try_from(count).unwrap()).await;
}

#[tokio::test]
async fn a_redelivered_message_whose_key_is_held_keeps_no_other_waiting() {
    let mut world = World::new().await;
    world.configure("[postgres]\nstatement_timeout = \"5m\"\nlock_timeout = \"4m\"");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let mut client = world.database.connect().await.unwrap();
    let mut holds = client.begin().await.unwrap();
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
         values ('acme', 'payments', 'held', 'IN_PROGRESS', 0, now())",
    )
    .execute(&mut *holds)
    .await
    .unwrap();
    world.publish("payments", message("acme", "held"), "{}").await;
    super::publish_many(&world, "other", "free", 20, "{}").await;
    deliver_once_in_vain(&world, "payments", 21).await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 20).await;
    holds.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 21).await;
    world.stop(worker).await;
}

/// What has left for the end of its queue comes as a new copy, and may be what killed a process all the same.
#[tokio::test]
async fn a_new_copy_of_a_message_that_was_at_work_when_a_process_died_is_counted_before_it_runs() {
    let mut world = World::new().await;
    world.consumer("payments", "replies = true");
    world.apply_topology().await;
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, crash_attempts, created_at)
         values ('acme', 'payments', 'killer', 'IN_PROGRESS', 0, 1, now())",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    // Goes step by step, for its reply: the process ends behind the claim.
    let one = message("acme", "killer").with_reply_to("nobody".into());
    world.publish("payments", one, "{}").await;
    let deadly = [("FAILPOINT", "worker.handle.before=key:kill".to_owned())];
    let mut worker = world.start_with("worker", "worker", &deadly);
    worker.wait_for_end(std::time::Duration::from_secs(30)).await.unwrap();
    assert_eq!(world.count("select crash_attempts::bigint from oncely.idempotency_keys").await, 2);
}

/// What may not run yet kills nobody: it is not isolated, again and again, until its time comes.
#[tokio::test]
async fn a_new_copy_of_such_a_message_that_comes_early_waits_as_any_other() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"1h\"], max_attempts = 3 }");
    world.apply_topology().await;
    sqlx::query(
        "insert into oncely.idempotency_keys
             (tenant, consumer, key, status, attempts, crash_attempts, created_at, not_before)
         values ('acme', 'payments', 'early', 'IN_PROGRESS', 1, 1, now(), now() + interval '1 hour')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let worker = world.start("worker");
    world.publish("payments", message("acme", "early"), "{}").await;
    world.wait_for_ready(&format!("{}.retry.1h", world.queue("payments")), 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
}

#[tokio::test]
async fn a_copy_that_is_at_work_in_another_lane_is_no_death() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "lanes = 1\nprefetch = 1\nretry = { delays = [\"100ms\"], max_attempts = 3, max_crashes = 1 }",
    );
    world.configure("[audit]\nduplicates = true\n[postgres]\nlock_timeout = \"25s\"");
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    for _ in 0..2 {
        world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    }
    deliver_once_in_vain(&world, "payments", 2).await;
    let first = world.start_as("worker", "first");
    world.wait_for(WAITING, 1).await;
    let second = world.start_with("worker", "second", &[("RUST_LOG", "oncely=debug".to_owned())]);
    world.wait_for_line(&second, "another session runs a copy of this message").await;
    sqlx::query("select pg_advisory_unlock(4711)").execute(&mut gate).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    world.stop(first).await;
    world.stop(second).await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0, "both are acknowledged");
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_run_that_goes_on_in_a_new_session_is_no_death() {
    let mut world = World::new().await;
    let retry = "retry = { delays = [\"100ms\"], max_attempts = 3, max_crashes = 1 }";
    let settings = "lanes = 1\nprefetch = 1\nhandler = { function = \"app.stale_once\" }";
    world.consumer("payments", &format!("{settings}\n{retry}"));
    world.configure("[postgres]\nlock_timeout = \"25s\"");
    let stale_once = "
        create sequence app.runs;
        create function app.stale_once(message oncely.message) returns jsonb language plpgsql as $$
        begin
            -- As of a prepared statement that this session does not have.
            if nextval('app.runs') = 1 then raise exception 'stale' using errcode = '26000'; end if;
            return app.handle(message);
        end $$";
    world.sql.execute(stale_once).await.unwrap();
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    for _ in 0..2 {
        world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    }
    deliver_once_in_vain(&world, "payments", 2).await;
    let first = world.start_as("worker", "first");
    world.wait_for(WAITING, 1).await;
    assert_eq!(world.count("select last_value from app.runs").await, 2, "it runs again");
    let second = world.start_with("worker", "second", &[("RUST_LOG", "oncely=debug".to_owned())]);
    world.wait_for_line(&second, "another session runs a copy of this message").await;
    sqlx::query("select pg_advisory_unlock(4711)").execute(&mut gate).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(first).await;
    world.stop(second).await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn copies_that_fail_at_their_commits_at_the_same_time_are_counted_once() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1\nprefetch = 1\nretry = { delays = [\"1h\"], max_attempts = 3 }");
    // Whoever records a failure waits at a gate before it writes.
    let at_a_gate = "
        insert into app.numbers values ('7');
        create function app.at_the_gate() returns trigger language plpgsql as $$
        begin
            perform pg_catalog.pg_advisory_xact_lock_shared(4712);
            return new;
        end $$;
        create trigger gate before insert on oncely.idempotency_keys for each row
        when (new.last_error is not null) execute function app.at_the_gate()";
    sqlx::raw_sql(at_a_gate).execute(&mut world.sql).await.unwrap();
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4712)").execute(&mut gate).await.unwrap();
    let workers = [world.start_as("worker", "first"), world.start_as("worker", "second")];
    for _ in 0..2 {
        // It fails at COMMIT: a deferred constraint.
        world.publish("payments", message("acme", "k"), r#"{"do": "number", "number": "7"}"#).await;
    }
    world.wait_for(&WAITING.replace("4711", "4712"), 2).await;
    sqlx::query("select pg_advisory_unlock(4712)").execute(&mut gate).await.unwrap();
    world.wait_for_ready(&format!("{}.retry.1h", world.queue("payments")), 2).await;
    for worker in workers {
        world.stop(worker).await;
    }
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit").await, 1, "one attempt, one row");
}

#[tokio::test]
async fn a_suspect_that_runs_alone_stops_no_other_consumer() {
    let mut world = World::new().await;
    world.configure("[postgres]\nlock_timeout = \"25s\"");
    world.consumer("payments", "lanes = 1");
    world.consumer("orders", "");
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    world.publish("payments", message("acme", "suspect"), r#"{"do": "wait", "for": "25s"}"#).await;
    deliver_once_in_vain(&world, "payments", 1).await;
    // As after a process died in its run.
    world
        .sql
        .execute(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, crash_attempts, created_at)
             values ('acme', 'payments', 'suspect', 'IN_PROGRESS', 0, 1, now())",
        )
        .await
        .unwrap();
    let worker = world.start("worker");
    world.wait_for(WAITING, 1).await;
    world.publish("orders", message("acme", "other"), "{}").await;
    world.wait_for("select count(*) from app.effects where consumer = 'orders'", 1).await;
    assert_eq!(world.count(WAITING).await, 1, "the suspect is still at work");
    sqlx::query("select pg_advisory_unlock(4711)").execute(&mut gate).await.unwrap();
    world.wait_for("select count(*) from app.effects where consumer = 'payments'", 1).await;
    world.stop(worker).await;
}
