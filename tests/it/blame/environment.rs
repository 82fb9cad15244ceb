//! Errors of the environment's kind: the message's where its neighbours succeed, everybody's where all fail.

use std::time::Duration;

use sqlx::Executor as _;

use super::publish_many;
use crate::support::{World, message};

#[tokio::test]
async fn two_messages_of_a_broken_branch_keep_no_healthy_one_waiting() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    // Before anybody else is there: nothing says yet whose failure it is.
    publish_many(&world, "broken", "bad", 2, r#"{"do": "missing_table"}"#).await;
    world.wait_for("select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS'", 2).await;
    world.wait_for_line(&worker, "no message succeeds").await;
    assert!(worker.output().contains("42P01") && worker.output().contains("bad"), "{}", worker.output());
    publish_many(&world, "healthy", "good", 50, "{}").await;
    world.wait_within(Duration::from_secs(5), "select count(*) from app.effects", 50).await;
    // Those are the witnesses: now the failure is the two messages' own.
    let dead =
        "select count(*) from oncely.audit where outcome = 'dead_lettered' and reason = 'attempts_exhausted'
        and error_code = '42P01' and attempt = 3 and tenant = 'broken'";
    // One that arrived late needs one of its own.
    publish_many(&world, "healthy", "more", 1, "{}").await;
    world.wait_for(dead, 2).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_broken_branch_in_the_middle_of_a_batch_is_charged_at_once() {
    for form in ["handler = { function = \"app.handle_batch\", batch = true }", ""] {
        let mut world = World::new().await;
        world.consumer("payments", &format!("lanes = 1\n{form}"));
        world.apply_topology().await;
        publish_many(&world, "healthy", "a", 20, "{}").await;
        world.publish("payments", message("broken", "bad"), r#"{"do": "missing_table"}"#).await;
        publish_many(&world, "healthy", "b", 20, "{}").await;
        let worker = world.start("worker");
        world.wait_for("select count(*) from app.effects", 40).await;
        world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 1).await;
        assert_eq!(world.count("select count(*) from oncely.audit where tenant = 'broken'").await, 3);
        assert!(!worker.output().contains("no attempt is spent"), "{}", worker.output());
        world.stop(worker).await;
    }
}

#[tokio::test]
async fn a_table_that_all_miss_pauses_the_consumer_and_spends_no_attempt() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"50ms\"], max_attempts = 1 }");
    world.apply_topology().await;
    publish_many(&world, "acme", "k", 60, r#"{"do": "missing_table"}"#).await;
    let worker = world.start("worker");
    world.wait_for_lines(&worker, "no attempt is spent", 4).await;
    assert_eq!(world.count("select count(*) from oncely.audit").await, 0, "no attempt is spent");
    world.sql.execute("create table app.not_there (n integer)").await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 60).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn more_bad_messages_than_the_broker_sends_ahead_let_a_good_one_behind_them_through() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 10\nprefetch = 20");
    world.apply_topology().await;
    let worker = world.start("worker");
    publish_many(&world, "broken", "bad", 60, r#"{"do": "missing_table"}"#).await;
    publish_many(&world, "healthy", "good", 1, "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let dead = "select count(*) from oncely.audit where outcome = 'dead_lettered'";
    for number in 0..200 {
        if world.count(dead).await == 60 {
            break;
        }
        // Some traffic, for a bad one needs a witness after its failure.
        publish_many(&world, "healthy", &format!("more{number}-"), 1, "{}").await;
        world.wait_for("select count(*) from app.effects", number + 2).await;
    }
    world.wait_for(dead, 60).await;
    let early = "select count(*) from oncely.audit where outcome = 'dead_lettered' and attempt < 3";
    assert_eq!(world.count(early).await, 0, "waiting in a queue spends nothing");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_temporary_table_that_each_message_makes_spends_no_attempt() {
    let mut world = World::new().await;
    world
        .sql
        .execute(
            "create function app.with_table(message oncely.message) returns jsonb language plpgsql as $$
            begin
                create temp table scratch (n integer) on commit drop;
                insert into scratch values (1);
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.consumer("payments", "lanes = 1\nhandler = { function = \"app.with_table\" }");
    world.apply_topology().await;
    publish_many(&world, "acme", "k", 30, "{}").await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where attempt = 1", 30).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn a_server_that_one_branch_calls_and_that_is_away_stops_nobody_else() {
    let mut world = World::new().await;
    world
        .sql
        .execute(
            "create function app.calls_out(message oncely.message) returns jsonb language plpgsql as $$
            begin
                if message.tenant = 'broken' then
                    -- As dblink and postgres_fdw say that their server is away, while ours is not.
                    raise exception using errcode = '08001', message = 'could not connect';
                end if;
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.consumer("payments", "handler = { function = \"app.calls_out\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    publish_many(&world, "broken", "bad", 2, "{}").await;
    publish_many(&world, "healthy", "good", 50, "{}").await;
    world.wait_for("select count(*) from app.effects", 50).await;
    // One that failed late needs a witness of its own.
    let failed =
        "select count(*) from oncely.idempotency_keys where tenant = 'broken' and last_error is not null";
    world.wait_for(failed, 2).await;
    publish_many(&world, "healthy", "more", 1, "{}").await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_handler_that_finds_poison_in_all_stops_and_says_so() {
    let mut world = World::new().await;
    // With more lanes each gives up its share, one perhaps later than the other is counted.
    world.consumer("payments", "batch = 100\nlanes = 1");
    world.apply_topology().await;
    world
        .sql
        .execute("create table app.switch (broken boolean); insert into app.switch values (true)")
        .await
        .unwrap();
    world
        .sql
        .execute(
            "create function app.switched(message oncely.message) returns jsonb language plpgsql as $$
            begin
                if (select broken from app.switch) then perform 1 / 0; end if;
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.configure("");
    let text = std::fs::read_to_string(world.file()).unwrap().replace("app.handle", "app.switched");
    std::fs::write(world.file(), text).unwrap();
    publish_many(&world, "acme", "k", 300, "{}").await;
    let worker = world.start("worker");
    world.wait_for_lines(&worker, "no attempt is spent", 3).await;
    let dead = "select count(*) from oncely.audit where outcome = 'dead_lettered'";
    let given_up = world.count(dead).await;
    assert!((1..=20).contains(&given_up), "{given_up} of 300 were given up");
    world.sql.execute("update app.switch set broken = false").await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 300 - given_up).await;
    world.stop(worker).await;
    assert_eq!(world.count(dead).await, given_up);
}
