//! Events at a relay.

use lapin::types::FieldTable;

use super::{Chance, LIMIT, until};
use crate::support::World;

#[tokio::test]
async fn no_event_ends_a_relay_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // Past emit, as before there was a limit that its subject can't raise.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload,
             ordering_key, ordering_number)
         select 'acme', gen_random_uuid(), now(), now() - interval '1 hour', '', '{queue}',
             convert_to(repeat('x', bytes), 'UTF8'), k || bytes, case when k is not null then 1 end
         from unnest(array[null, null, null, 'a', 'b', 'c']) as k, unnest(array[30000000, 125000000]) as bytes;
         select oncely.emit('', '{queue}', repeat('x', 16777216), tenant => 'acme') from generate_series(1, 8);
         select oncely.emit('', '{queue}', repeat('x', 16777216), tenant => 'acme', ordering_key => 'k')
         from generate_series(1, 3);
         select oncely.emit('', '{queue}', 'h', tenant => 'acme',
             headers => (select jsonb_object_agg(n::text, null) from generate_series(1, 4096) as n))
         from generate_series(1, 300);
         select oncely.emit('', '{queue}', 'y', tenant => 'beta')",
    )))
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.events where state = 'pending'", 0).await;
    assert_eq!(
        world
            .text("select string_agg(distinct state || ' ' || reason, ',') || count(*) from oncely.events")
            .await,
        Some("parked too_large12".to_owned())
    );
    world.wait_for_ready(&queue, 312).await;
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}

#[tokio::test]
async fn no_returned_event_ends_a_relay_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // No queue has this name: the broker sends each event back whole.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "select oncely.emit('', 'no queue', repeat('x', 16777216), tenant => 'acme',
             ordering_key => case when n % 2 = 0 then 'k' || n end)
         from generate_series(1, 12) as n;
         select oncely.emit('', '{queue}', 'y', tenant => 'beta')",
    )))
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    let failed = "select count(*) from oncely.events where tenant = 'acme' and last_error is not null";
    until(&mut world, &mut relay, failed, 12).await;
    world.wait_for_ready(&queue, 1).await;
    assert!(relay.is_running(), "{}", relay.output());
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}

#[tokio::test]
async fn an_event_has_no_headers_that_are_larger_as_text_than_a_relay_reads() {
    let mut world = World::new().await;
    let written = sqlx::query(
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, headers)
         values ('acme', gen_random_uuid(), now(), now(), '', 'q', '', (
             select jsonb_object_agg(n::text, '1e131071'::jsonb) from generate_series(1, 1000) as n
         ))",
    )
    .execute(&mut world.sql)
    .await;
    let error = written.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().constraint(), Some("events_headers_size"), "{error}");
}

#[tokio::test]
async fn no_event_whatever_it_holds_ends_a_relay_in_256_mib() {
    let mut chance = Chance::new();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.configure("[relay]\npoll = \"20ms\"");
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    for number in 0..80 {
        // Past emit: more than it takes, too.
        let size = if number % 10 == 0 { chance.below(40 << 20) } else { chance.size(1 << 20) };
        let (names, length) = (chance.size(8_000), chance.size(50));
        let is_nested = chance.below(4) == 0;
        sqlx::query(
            "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, headers,
                 ordering_key, ordering_number)
             select 'acme', gen_random_uuid(), now(), now() - interval '1 hour', '', $1, convert_to(repeat('x', $2), 'UTF8'),
                 (select jsonb_object_agg(n::text, case when $5 then jsonb_build_array(n, null) else to_jsonb(repeat('y', $4)) end)
                     from generate_series(1, $3) as n),
                 case when $6 then 'k' || $7 end, case when $6 then 1 end",
        )
        .bind(&queue)
        .bind(i32::try_from(size).unwrap())
        .bind(i32::try_from(names).unwrap())
        .bind(i32::try_from(length).unwrap())
        .bind(is_nested)
        .bind(chance.below(2) == 0)
        .bind(number)
        .execute(&mut world.sql)
        .await
        .unwrap();
    }
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("select oncely.emit('', '{queue}', 'y', tenant => 'beta')")))
        .execute(&mut world.sql)
        .await
        .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.events where state = 'pending'", 0).await;
    let parked = world.count("select count(*) from oncely.events where tenant = 'acme'").await;
    assert_eq!(world.count("select count(*) from oncely.events where tenant = 'beta'").await, 0);
    world.wait_for_ready(&queue, 81 - u32::try_from(parked).unwrap()).await;
    world.stop(relay).await;
    world.broker.delete_queue(&queue).await.unwrap();
}
