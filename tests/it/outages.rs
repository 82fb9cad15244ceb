//! Outages, stops and pauses cost nobody an attempt, whoever's they are.

use std::time::Duration;

use testbed::proxy::{Mode, OneShot};
use testbed::{Broker, Postgres, eventually, eventually_within};

use crate::support::gate::WAITING;
use crate::support::{World, message, servers};

#[tokio::test]
async fn a_consumer_that_waits_holds_no_locks_that_cost_another_its_attempts() {
    let mut world = World::new().await;
    world.configure("[postgres]\nlock_timeout = \"1s\"");
    sqlx::raw_sql(
        "create table app.account (id integer primary key, n integer not null);
         insert into app.account values (1, 0);
         create function app.first(m oncely.message) returns jsonb language plpgsql as $$
         begin
             update app.account set n = n + 1 where id = 1;
             execute 'insert into app.not_there values (1)';
             return null;
         end $$;
         create function app.second(m oncely.message) returns jsonb language plpgsql as $$
         begin
             update app.account set n = n + 1 where id = 1;
             return null;
         end $$;",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.first\" }");
    world.consumer("ledger", "handler = { function = \"app.second\" }");
    world.apply_topology().await;
    // It has its lock when the environment turns out to be broken.
    for key in ["a", "b", "c"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    let worker = world.start("worker");
    // By then its pauses are longer than the other one's patience.
    eventually_within(Duration::from_secs(60), "it waits", || async {
        let times = worker.output().matches("no attempt is spent").count();
        if times >= 7 { Ok(()) } else { Err(times) }
    })
    .await
    .unwrap();
    world.publish("ledger", message("acme", "other"), "{}").await;
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where key = 'other' and status <> 'IN_PROGRESS'",
            1,
        )
        .await;
    let audit = "select string_agg(outcome || ' ' || attempt, ', ' order by occurred_at) from oncely.audit where key = 'other'";
    assert_eq!(world.text(audit).await.as_deref(), Some("completed 1"));
}

#[tokio::test]
async fn a_stop_that_runs_out_of_time_leaves_no_mark() {
    let mut world = World::new().await;
    world.configure("[worker]\nshutdown = \"1s\"");
    world.consumer("payments", "retry = { delays = [\"50ms\"], max_attempts = 3, max_crashes = 2 }");
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    for round in 0..4 {
        let mut worker = world.start_as("worker", &format!("worker-{round}"));
        world.wait_for(WAITING, 1).await;
        let status = worker.terminate(Duration::from_secs(20)).await.unwrap();
        assert_eq!(status.code(), Some(70), "{}", worker.output());
        // It has ended its session, too.
        world.wait_for(WAITING, 0).await;
        assert_eq!(
            world.count("select coalesce(max(crash_attempts), 0)::bigint from oncely.idempotency_keys").await,
            0
        );
    }
    drop(gate);
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 0);
}

#[tokio::test]
async fn marks_whose_reply_is_lost_are_taken_back() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"50ms\"], max_attempts = 3, max_crashes = 2 }");
    world.apply_topology().await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), "{}").await;
    Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
    let (proxy, environment) = world.proxied_postgres().await;
    // The first COMMIT of a redelivered message is its mark's. All in a row: else the message would take effect in between.
    let lost = 5;
    proxy.arm_times(OneShot::LoseCommitReply, lost);
    let worker = world.start_with("worker", "lossy", &environment);
    eventually("the replies are lost", || async {
        if proxy.struck() >= lost as u64 { Ok(()) } else { Err(worker.output()) }
    })
    .await
    .unwrap();
    world.stop(worker).await;
    // The last word on it may have been that it took effect: what a key that is done was counted for says nothing any more.
    let marks = "select coalesce(max(crash_attempts), 0)::bigint from oncely.idempotency_keys where status = 'IN_PROGRESS'";
    world.wait_for(marks, 0).await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 0);
}

#[tokio::test]
async fn a_standby_that_is_away_spends_no_attempt_and_shortens_no_delay() {
    let postgres = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = postgres.url();
    let mut world = World::on(urls).await;
    world.configure("[postgres]\nstatement_timeout = \"1s\"\nlock_timeout = \"500ms\"");
    world.consumer("payments", "batch = 1\nlanes = 2\nretry = { delays = [\"1h\"], max_attempts = 2 }");
    world.apply_topology().await;
    sqlx::query("insert into app.numbers values ('7')").execute(&mut world.sql).await.unwrap();
    let worker = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    sqlx::query("alter system set synchronous_standby_names = 'nobody'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut world.sql).await.unwrap();
    world
        .wait_for("select (current_setting('synchronous_standby_names') = 'nobody')::integer::bigint", 1)
        .await;
    // One fails in its handler, one at its COMMIT. Whatever is written of them waits for a standby, and is visible since their sessions
    // were ended.
    world.publish("payments", message("acme", "handler"), r#"{"do": "fail"}"#).await;
    world.publish("payments", message("acme", "commit"), r#"{"do": "number", "number": "7"}"#).await;
    world.wait_for_lines(&worker, "no answer within", 4).await;
    assert_eq!(world.count("select count(*) from oncely.audit").await, 0, "nothing is charged");
    sqlx::query("alter system reset synchronous_standby_names").execute(&mut world.sql).await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut world.sql).await.unwrap();
    // It is their one failure, not the first of several.
    let failed = "select count(*) from oncely.audit where tenant = 'acme' and outcome = 'retried'";
    world.wait_beside_good_ones("payments", failed, 2).await;
    world.wait_for_ready(&format!("{}.retry.1h", world.queue("payments")), 2).await;
    world.stop(worker).await;
    let rows = "select string_agg(key || ' ' || status || ' ' || attempts, ', ' order by key) from oncely.idempotency_keys
        where tenant = 'acme'";
    assert_eq!(world.text(rows).await.as_deref(), Some("commit IN_PROGRESS 1, handler IN_PROGRESS 1"));
    let audit =
        "select string_agg(key || ' ' || outcome || ' ' || attempt, ', ' order by key) from oncely.audit
        where tenant = 'acme'";
    assert_eq!(world.text(audit).await.as_deref(), Some("commit retried 1, handler retried 1"));
}

#[tokio::test]
async fn a_function_that_ignores_its_cancellation_uses_up_its_attempts() {
    ignored("", "deadline = \"2s\"").await;
}

#[tokio::test]
async fn a_function_that_ignores_the_servers_own_limit_uses_up_its_attempts() {
    ignored("[postgres]\nstatement_timeout = \"2s\"\nlock_timeout = \"2s\"", "").await;
}

async fn ignored(limits: &str, deadline: &str) {
    let mut world = World::new().await;
    world.configure(limits);
    sqlx::raw_sql(
        "create function app.stubborn(m oncely.message) returns jsonb language plpgsql as $$
         begin
             while m.payload ->> 'do' = 'ignore' loop
                 begin
                     perform pg_sleep(60);
                 exception when query_canceled then null;
                 end;
             end loop;
             insert into app.effects (tenant, consumer, key) values (m.tenant, m.consumer, m.key);
             return null;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let settings = "handler = { function = \"app.stubborn\" }\nretry = { delays = [], max_attempts = 1 }";
    world.consumer("payments", &format!("{deadline}\n{settings}"));
    world.apply_topology().await;
    for (key, body) in [("a", "{}"), ("bad", r#"{"do": "ignore"}"#), ("b", "{}")] {
        world.publish("payments", message("acme", key), body).await;
    }
    let worker = world.start("worker");
    // It is run four times in all, each time for as long as a limit and the patience with those who ignore it.
    world.wait_within(Duration::from_secs(120), "select count(*) from app.effects", 2).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    world.stop(worker).await;
    let dead = "select key || ' ' || reason from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(world.text(dead).await.as_deref(), Some("bad attempts_exhausted"));
    let busy =
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    world.wait_for(busy, 0).await;
}

#[tokio::test]
async fn a_connection_that_is_lost_while_a_worker_starts_is_waited_for() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let (postgres, environment) = world.proxied_postgres().await;
    let (rabbitmq, through) = world.proxied_rabbitmq().await;
    // It has looked at PostgreSQL, and asks RabbitMQ.
    rabbitmq.set(Mode::BlackHole);
    let environment = [environment[0].clone(), ("AMQP_URL", through)];
    let worker = world.start_with("worker", "worker", &environment);
    eventually("it asks RabbitMQ", || async {
        if rabbitmq.accepted() > 0 { Ok(()) } else { Err(worker.output()) }
    })
    .await
    .unwrap();
    postgres.cut();
    rabbitmq.set(Mode::Pass);
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    assert!(worker.output().contains("waiting for servers"), "{}", worker.output());
    world.stop(worker).await;
}

#[tokio::test]
async fn a_lock_on_our_tables_while_a_worker_starts_is_waited_for() {
    let mut world = World::new().await;
    world.configure("[postgres]\nstatement_timeout = \"2s\"\nlock_timeout = \"1s\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    // As a migration or a VACUUM FULL would hold it.
    let mut gate = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table oncely.cell in access exclusive mode").execute(&mut gate).await.unwrap();
    let worker = world.start("worker");
    world.wait_for_line(&worker, "waiting for servers").await;
    sqlx::query("commit").execute(&mut gate).await.unwrap();
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}
