//! Rows that many messages update: batches of one consumer, in one process or in several, stand in each other's way.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _};

use crate::support::{Login, World, message};

/// 15 rows of stock, six in ten of which are sold out. Each call of the handler draws a number, also one that is rolled back.
const STOCK: &str = "create table app.stock (sku integer primary key, sold integer not null default 0);
    insert into app.stock select generate_series(0, 14);
    create sequence app.calls;
    create function app.sell(message oncely.message) returns jsonb language plpgsql as $$
    begin
        perform nextval('app.calls');
        update app.stock set sold = sold + 1 where sku = (message.payload ->> 'sku')::integer and sku % 5 < 2;
        if not found then
            perform oncely.refuse('out of stock');
        end if;
        insert into app.effects (tenant, consumer, key, attempt)
        values (message.tenant, message.consumer, message.key, message.attempt);
        return null;
    end $$;
    create table app.seen (position bigint generated always as identity, sku text collate \"C\");
    create function app.note(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
    begin
        insert into app.seen (sku) select m.payload ->> 'sku' from unnest(messages) as m;
        return query select m.seq, null::jsonb from unnest(messages) as m;
    end $$;";

const NOT_FIRST_TRIES: &str =
    "select count(*) from oncely.audit where outcome not in ('completed', 'refused') or attempt > 1";

/// A consumer of the stock with messages in its queue.
async fn shop(messages: usize, settings: &str) -> World {
    let mut world = World::new().await;
    world.sql.execute(STOCK).await.unwrap();
    let handler = match settings.contains("handler") {
        true => "",
        false => "handler = { function = \"app.sell\" }",
    };
    world.consumer("payments", &format!("{handler}\n{settings}"));
    world.apply_topology().await;
    world.broker.publish_all("", orders(&world, 0..messages)).await.unwrap();
    world
}

/// Messages with these numbers, each for one of 15 articles in a shuffled order.
fn orders(world: &World, numbers: std::ops::Range<usize>) -> Vec<(String, lapin::BasicProperties, Vec<u8>)> {
    let order = |number: usize| {
        let sku = (number.wrapping_mul(2_654_435_761) >> 7) % 15;
        (
            world.queue("payments"),
            message("acme", &format!("k{number}")),
            format!("{{\"sku\": {sku}}}").into(),
        )
    };
    numbers.map(order).collect()
}

#[tokio::test]
async fn batches_of_several_processes_lose_no_deadlock_and_spend_no_attempt() {
    let mut world = shop(2_000, "lanes = 4").await;
    let workers = [world.start("worker"), world.start("worker"), world.start("worker")];
    let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    world.wait_within(Duration::from_secs(120), done, 2_000).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    for worker in workers {
        world.stop(worker).await;
    }
    let sold = world.count("select sum(sold) from app.stock").await;
    assert_eq!(world.count("select count(*) from app.effects where attempt = 1").await, sold);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, sold);
    assert_eq!(world.count(NOT_FIRST_TRIES).await, 0);
    // A batch gives way long before PostgreSQL looks for a deadlock.
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(world.count(deadlocks).await, 0);
}

#[tokio::test]
async fn a_batch_whose_turn_does_not_come_goes_on_message_by_message() {
    let mut world = shop(0, "").await;
    let first = world.start("worker");
    world.publish("payments", message("acme", "first"), "{\"sku\": 0}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    // A process that stands still in its turn, and a row that another application holds.
    let mut client = world.database.connect().await.unwrap();
    let mut transaction = client.begin().await.unwrap();
    for held in [
        "select 1 from oncely.turns where consumer = 'payments' for update",
        "update app.stock set sold = sold where sku = 1",
    ] {
        transaction.execute(held).await.unwrap();
    }
    let orders = (0..40).map(|number| {
        let sku = [0, 1, 5, 6][number % 4];
        (
            world.queue("payments"),
            message("acme", &format!("k{number}")),
            format!("{{\"sku\": {sku}}}").into(),
        )
    });
    let orders = orders.collect();
    world.broker.publish_all("", orders).await.unwrap();
    let waits = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%take_turn%'";
    world.wait_for(waits, 1).await;
    world.wait_for("select count(*) from app.effects", 31).await;
    transaction.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 41).await;
    assert_eq!(world.count(NOT_FIRST_TRIES).await, 0);
    world.stop(first).await;
}

#[tokio::test]
async fn a_worker_with_its_role_alone_takes_turns() {
    let mut world = shop(0, "").await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let grants = format!(
        "grant usage on schema app to {0}; grant select, update on app.stock to {0}; grant insert on app.effects to {0};
         grant usage on sequence app.calls to {0}",
        login.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants)).execute(&mut world.sql).await.unwrap();
    let worker = world.start_with("worker", "worker", &login.environment());
    world.publish("payments", message("acme", "first"), "{\"sku\": 0}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let mut client = world.database.connect().await.unwrap();
    let mut transaction = client.begin().await.unwrap();
    for held in [
        "select 1 from oncely.turns where consumer = 'payments' for update",
        "update app.stock set sold = sold where sku = 1",
    ] {
        transaction.execute(held).await.unwrap();
    }
    let order = |number: usize| {
        let key = message("acme", &format!("k{number}"));
        (world.queue("payments"), key, format!("{{\"sku\": {}}}", number % 2).into())
    };
    let orders = (0..20).map(order).collect();
    world.broker.publish_all("", orders).await.unwrap();
    let waits = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%take_turn%'";
    world.wait_for(waits, 1).await;
    transaction.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 21).await;
    world.stop(worker).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn many_refusals_run_no_message_twice() {
    for settings in ["", "batch = 1"] {
        let mut world = shop(600, &format!("lanes = 1\n{settings}")).await;
        let worker = world.start("worker");
        let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
        world.wait_within(Duration::from_secs(120), done, 600).await;
        let first = world.count("select last_value from app.calls").await;
        world.broker.publish_all("", orders(&world, 600..1_200)).await.unwrap();
        world.wait_within(Duration::from_secs(120), done, 1_200).await;
        world.stop(worker).await;
        let calls = world.count("select last_value from app.calls").await - first;
        assert!(calls < 660, "{calls} calls of the handler for 600 messages ({settings:?})");
        assert_eq!(world.count(NOT_FIRST_TRIES).await, 0);
    }
}

#[tokio::test]
async fn a_part_of_a_batch_that_meets_a_lock_ends_the_batch() {
    for code in ["55P03", "40P01", "40001"] {
        let mut world = World::new().await;
        let handler = format!(
            "create function app.locked(message oncely.message) returns jsonb language plpgsql as $$
             begin raise exception using errcode = '{code}'; end $$"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(handler)).execute(&mut world.sql).await.unwrap();
        for parts in ["handle_parts", "handle_each"] {
            let call = format!(
                "select count(*) from oncely.{parts}('app.locked', false, false, array_fill(null::oncely.message, array[4]))"
            );
            let error = sqlx::raw_sql(sqlx::AssertSqlSafe(call)).execute(&mut world.sql).await.unwrap_err();
            assert_eq!(
                error.as_database_error().and_then(|error| error.code()).as_deref(),
                Some(code),
                "{parts}"
            );
        }
    }
}

#[tokio::test]
async fn a_batch_runs_in_the_order_of_what_its_messages_lock() {
    let mut world = shop(
        50,
        "lock_order = { json_pointer = \"/sku\" }\nlanes = 1\nhandler = { function = \"app.note\", batch = true }",
    )
    .await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.seen", 50).await;
    world.stop(worker).await;
    let back =
        "select count(*) from app.seen as one join app.seen as next on next.position = one.position + 1
        where next.sku < one.sku";
    // What is in the queue at the start comes in one batch or two.
    let back = world.count(back).await;
    assert!(back <= 1, "{back} messages came behind one that locks a later row");
}

#[tokio::test]
async fn a_consumer_whose_transactions_collide_is_shown_as_contended() {
    let mut world = shop(0, "lanes = 2").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "first"), "{\"sku\": 0}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let mut client = world.database.connect().await.unwrap();
    let mut transaction = client.begin().await.unwrap();
    transaction.execute("update app.stock set sold = sold where sku = 1").await.unwrap();
    let orders: Vec<_> = (0..10)
        .map(|number| {
            let sku = number % 2;
            (
                world.queue("payments"),
                message("acme", &format!("k{number}")),
                format!("{{\"sku\": {sku}}}").into(),
            )
        })
        .collect();
    world.broker.publish_all("", orders).await.unwrap();
    world
        .wait_for("select count(*) from oncely.processes where consumers @? '$[*].contended.since'", 1)
        .await;
    transaction.rollback().await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 11).await;
    world.stop(worker).await;
}
