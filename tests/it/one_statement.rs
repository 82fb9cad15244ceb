//! Small batches of fresh keys for a SQL function: a transaction of one statement.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use testbed::Process;
use testbed::proxy::OneShot;

use crate::support::{World, message};

const COMPLETED: &str = "select count(*) from oncely.audit where outcome = 'completed'";

async fn quiet(settings: &str) -> World {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", settings);
    world.apply_topology().await;
    world
}

const EACH: &str = "handler = { function = \"app.quiet\" }\nlanes = 1";
const BATCH: &str = "handler = { function = \"app.quiet_batch\", batch = true }\nlanes = 1";

/// A worker that has done one message.
async fn worker_at_work(world: &mut World, more: &[(&'static str, String)]) -> Process {
    let worker = world.start_with("worker", "worker", more);
    world.publish("payments", message("acme", "first"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    worker
}

/// Each key has one effect, one row of the trail that says so, and is completed.
async fn books_are_right(world: &mut World, messages: i64) {
    let wrong = "select count(*) from oncely.idempotency_keys as i
        where status <> 'COMPLETED'
           or (select count(*) from app.effects as e where e.key = i.key) <> 1
           or (select count(*) from oncely.audit as a where a.key = i.key and a.outcome = 'completed') <> 1";
    assert_eq!(world.count(wrong).await, 0);
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, messages);
    assert_eq!(world.count("select count(*) from app.effects").await, messages);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_worker_dies_around_a_transaction_of_one_statement() {
    for settings in [EACH, BATCH] {
        let mut world = quiet(settings).await;
        for (round, step) in
            ["worker.commit_fresh.before", "worker.commit_fresh.after"].into_iter().enumerate()
        {
            let at = [("FAILPOINT", step.to_owned())];
            let mut worker = world.start_with("worker", "dying", &at);
            world.publish("payments", message("acme", step), "{}").await;
            let status = worker.wait_for_end(Duration::from_secs(30)).await.unwrap();
            assert_eq!(status.signal(), Some(6), "{step}: {status}: {}", worker.output());
            let worker = world.start_as("worker", "surviving");
            world.wait_for(COMPLETED, i64::try_from(round + 1).unwrap()).await;
            // What was committed comes again.
            let known = "select count(*) from oncely.audit where outcome = 'duplicate'";
            world.wait_for(known, i64::try_from(round).unwrap()).await;
            world.wait_for_ready(&world.queue("payments"), 0).await;
            world.stop(worker).await;
        }
        books_are_right(&mut world, 2).await;
    }
}

/// A lost reply, a connection that breaks before, and a killed worker, by turns, each time when batches go this way again.
#[tokio::test]
async fn what_breaks_around_transactions_of_one_statement_neither_loses_nor_doubles() {
    const FAULTS: u32 = 12;
    let mut world = quiet(EACH).await;
    let (proxy, environment) = world.proxied_postgres().await;
    let mut worker = worker_at_work(&mut world, &environment).await;
    let mut sent = 1;
    for fault in 0..FAULTS {
        match fault % 3 {
            0 => proxy.arm(Some(OneShot::LoseCommitReply)),
            1 => proxy.arm(Some(OneShot::CutBeforeCommit)),
            _ => {
                world.kill(&mut worker);
                worker = world.start_with("worker", "worker", &environment);
            }
        }
        // One after another: after a key that was known a lane expects more of them for 64 batches.
        for _ in 0..100 {
            world.publish("payments", message("acme", &format!("k{sent}")), "{}").await;
            sent += 1;
        }
        world.wait_for("select count(*) from oncely.idempotency_keys", sent).await;
    }
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(u64::from(FAULTS) * 2 / 3, proxy.struck(), "every fault has struck");
    books_are_right(&mut world, sent).await;
}

#[tokio::test]
async fn a_commit_of_one_statement_whose_reply_is_lost_is_found_done() {
    let mut world = quiet(BATCH).await;
    let (proxy, environment) = world.proxied_postgres().await;
    let worker = worker_at_work(&mut world, &environment).await;
    proxy.arm(Some(OneShot::LoseCommitReply));
    world.publish("payments", message("acme", "k"), "{}").await;
    let found =
        "select count(*) from oncely.audit where key = 'k' and outcome = 'duplicate' and reason = 'postgres'";
    world.wait_for(found, 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(proxy.struck(), 1);
    books_are_right(&mut world, 2).await;
}

/// PostgreSQL reports the row and "SELECT 1", and then that it could not commit.
#[tokio::test]
async fn what_fails_at_the_commit_of_one_statement_is_not_acknowledged() {
    let mut world = quiet(&format!("{EACH}\nretry = {{ delays = [\"20ms\"], max_attempts = 2 }}")).await;
    sqlx::query("insert into app.numbers values ('7')").execute(&mut world.sql).await.unwrap();
    let worker = worker_at_work(&mut world, &[]).await;
    world.publish("payments", message("acme", "late"), r#"{"do": "number", "number": "7"}"#).await;
    let dead = "select count(*) from oncely.audit where key = 'late' and outcome = 'dead_lettered'";
    world.wait_for(dead, 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'late'").await, 0);
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 1);
}

#[tokio::test]
async fn what_a_handler_answers_is_stored_in_the_same_statement() {
    for settings in [EACH, BATCH] {
        let mut world = quiet(settings).await;
        // Any other way would end the process.
        let worker = worker_at_work(&mut world, &[("FAILPOINT", "worker.begin.before".to_owned())]).await;
        world.publish("payments", message("acme", "asks"), r#"{"do": "answer"}"#).await;
        world.publish("payments", message("acme", "last"), "{}").await;
        world.wait_for(COMPLETED, 3).await;
        world.wait_for_ready(&world.queue("payments"), 0).await;
        world.stop(worker).await;
        books_are_right(&mut world, 3).await;
        let kept = "select response ->> 'done' from oncely.idempotency_keys where key = 'asks'";
        assert_eq!(world.text(kept).await.as_deref(), Some("asks"));
        assert_eq!(
            world.count("select count(*) from oncely.idempotency_keys where response is not null").await,
            1
        );
    }
}

/// The limit counts {"done": "asks"} as PostgreSQL writes it.
#[tokio::test]
async fn a_response_at_the_limit_is_stored_and_one_over_it_is_refused() {
    for (limit, stored) in [(16, 1), (15, 0)] {
        let mut world = quiet(&format!("{EACH}\nresponse_limit = {limit}")).await;
        let worker = worker_at_work(&mut world, &[]).await;
        world.publish("payments", message("acme", "asks"), r#"{"do": "answer"}"#).await;
        let decided = "select count(*) from oncely.audit where key = 'asks' and outcome in ('completed', 'dead_lettered')";
        world.wait_for(decided, 1).await;
        world.stop(worker).await;
        let kept = "select count(*) from oncely.idempotency_keys where response is not null";
        assert_eq!(world.count(kept).await, stored, "{limit}");
        let dead = "select count(*) from oncely.audit where key = 'asks' and reason = 'handler_rejected'";
        assert_eq!(world.count(dead).await, 1 - stored, "{limit}");
    }
}

#[tokio::test]
async fn a_message_that_a_batch_handler_forgets_is_not_lost() {
    let mut world = quiet(&format!("{BATCH}\nretry = {{ delays = [\"20ms\"], max_attempts = 2 }}")).await;
    let worker = worker_at_work(&mut world, &[]).await;
    world.publish("payments", message("acme", "bad"), r#"{"do": "forget"}"#).await;
    world
        .wait_for("select count(*) from oncely.audit where key = 'bad' and outcome = 'dead_lettered'", 1)
        .await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 1);
}

/// A prepared statement follows, whether it was prepared with the old function or not.
#[tokio::test]
async fn a_handler_can_be_replaced_while_it_is_in_use() {
    let mut world = quiet(BATCH).await;
    let worker = worker_at_work(&mut world, &[]).await;
    // Often enough for PostgreSQL to keep a plan.
    for number in 0..10 {
        world.publish("payments", message("acme", &format!("old{number}")), "{}").await;
        world.wait_for(COMPLETED, number + 2).await;
    }
    sqlx::raw_sql(
        "begin;
         drop function app.quiet_batch(oncely.message[]);
         create function app.quiet_batch(messages oncely.message[]) returns table (seq integer, response jsonb) language plpgsql as $$
         begin
             insert into app.effects (tenant, consumer, key, attempt) select m.tenant, 'new', m.key, m.attempt from unnest(messages) as m;
             return query select m.seq, null::jsonb from unnest(messages) as m;
         end
         $$;
         commit",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.publish("payments", message("acme", "new"), "{}").await;
    world.wait_for(COMPLETED, 12).await;
    world.stop(worker).await;
    assert_eq!(
        world.text("select consumer from app.effects where key = 'new'").await.as_deref(),
        Some("new")
    );
    books_are_right(&mut world, 12).await;
}

/// PostgreSQL takes such a handler apart where it is called, and its promise for true.
#[tokio::test]
async fn a_handler_that_is_wrongly_declared_stable_runs_once_all_the_same() {
    for (handler, batch) in [("app.calm", false), ("app.calm_batch", true)] {
        let mut world =
            quiet(&format!("handler = {{ function = \"{handler}\", batch = {batch} }}\nlanes = 1")).await;
        sqlx::raw_sql(
            "create function app.calm(message oncely.message) returns jsonb language plpgsql stable as $$
             begin
                 return (select app.handle(message));
             end
             $$;
             create function app.calm_batch(messages oncely.message[]) returns setof oncely.result language sql stable as
                 'select m.seq, app.calm(m) from unnest($1) as m'",
        )
        .execute(&mut world.sql)
        .await
        .unwrap();
        let worker = world.start("worker");
        world.publish("payments", message("acme", "fresh"), "{}").await;
        world.wait_for(COMPLETED, 1).await;
        world.publish("payments", message("acme", "fresh"), "{}").await;
        world.wait_for_ready(&world.queue("payments"), 0).await;
        // A key was known, so the next batch goes step by step.
        world.publish("payments", message("acme", "step by step"), "{}").await;
        world.wait_for(COMPLETED, 2).await;
        world.stop(worker).await;
        books_are_right(&mut world, 2).await;
    }
}
