//! Numbers, and responses of handlers.

use super::{LIMIT, serves, until};
use crate::support::{World, message};

#[tokio::test]
async fn no_number_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(
        "create function app.cast(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             perform (message.payload ->> 'n')::integer;
             return null;
         end $$;
         create function app.echo(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             return message.payload;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer(
        "casts",
        "handler = { function = \"app.cast\" }\nretry = { delays = [], max_attempts = 1 }",
    );
    world.consumer("payments", "handler = { function = \"app.echo\" }\non_large_response = \"compress\"");
    world.apply_topology().await;
    // As PostgreSQL writes them out they have a hundred thousand digits each.
    let numbers = |count: usize| format!("{{\"n\":[0{}]}}", ",1e131071".repeat(count));
    for number in 0..400 {
        let key = format!("k{number}");
        world
            .publish("casts", message("acme", &key), &numbers(if number % 2 == 0 { 2_000 } else { 7 }))
            .await;
        world.publish("payments", message("acme", &key), &numbers(7)).await;
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    // Messages with more digits than a worker takes have no payload: their cast succeeds.
    let settled = "select (select count(*) from app.effects where tenant = 'acme')
        + (select count(*) from oncely.dead_letters where tenant = 'acme')";
    let given_up = "select count(*) from oncely.dead_letters where consumer = 'casts'";
    for number in 0.. {
        if world.count(given_up).await == 200 {
            break;
        }
        // One that succeeds, as a witness.
        world.publish("casts", message("beta", &format!("k{number}")), "{}").await;
        until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'beta'", number + 2)
            .await;
    }
    until(&mut world, &mut worker, settled, 800).await;
    let responses = "select count(*) from oncely.idempotency_keys
        where consumer = 'payments' and tenant = 'acme' and octet_length(response::text) > 900000";
    assert_eq!(world.count(responses).await, 400);
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_response_ends_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(
        "create function app.answer(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform app.handle(message);
             return to_jsonb(repeat('x', (message.payload ->> 'size')::integer));
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.answer\" }\non_large_response = \"compress\"");
    world.apply_topology().await;
    for number in 0..300 {
        // All of them are more than a worker has room for; some are so by themselves.
        let size = if number % 100 == 7 { 100_000_000 } else { 1_000_000 };
        world
            .publish("payments", message("acme", &format!("k{number}")), &format!("{{\"size\":{size}}}"))
            .await;
    }
    let mut worker = world.start("worker");
    until(&mut world, &mut worker, "select count(*) from app.effects", 297).await;
    let refused = "select count(*) from oncely.dead_letters where reason = 'handler_rejected'
        and detail like 'the response has 100000002 bytes as JSON; the limit is 4194304 %'";
    until(&mut world, &mut worker, refused, 3).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn responses_that_are_too_large_together_make_batches_smaller() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create sequence app.runs;
         grant usage on sequence app.runs to public;
         create function app.answer(message oncely.message) returns jsonb language plpgsql as $$
         begin
             -- Not rolled back.
             perform nextval('app.runs'), app.handle(message);
             return to_jsonb(repeat('x', 20000));
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.answer\" }");
    world.apply_topology().await;
    let messages = 3_000;
    let queue = world.queue("payments");
    let one = |number| (queue.clone(), message("acme", &format!("k{number}")), b"{}".to_vec());
    world.broker.publish_all("", (0..messages).map(one).collect()).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", messages).await;
    let runs = world.count("select last_value from app.runs").await;
    // Three each where every batch fails twice.
    assert!(runs < messages * 2, "{runs} runs of {messages} messages");
    world.stop(worker).await;
}
