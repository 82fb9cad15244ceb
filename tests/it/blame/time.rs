//! Who uses up time answers for it, and keeps nobody else waiting for more than one pause.

use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message};

#[tokio::test]
async fn messages_that_use_up_their_time_keep_another_tenants_waiting_for_one_of_them() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "deadline = \"2s\"\nlanes = 1\nretry = { delays = [\"100ms\"], max_attempts = 9 }",
    );
    world.apply_topology().await;
    let mut gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    // All others are there when the lane has done this one, and make one batch, or two.
    world.publish("payments", message("initech", "first"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    let queue = world.queue("payments");
    let slow = (0..10).map(|n| ("acme", format!("slow{n}"), r#"{"do": "wait"}"#));
    let quick = (0..10).map(|n| ("globex", format!("quick{n}"), "{}"));
    let messages = slow
        .chain(quick)
        .map(|(tenant, key, body)| (queue.clone(), message(tenant, &key), body.as_bytes().to_vec()));
    world.broker.publish_all("", messages.collect()).await.unwrap();
    world.wait_for_ready(&queue, 0).await;
    gate.pass(&mut world).await;
    world.wait_for("select count(*) from app.effects where tenant = 'globex'", 10).await;
    let charged = world.count("select count(*) from oncely.audit where tenant = 'acme'").await;
    assert!(charged <= 5, "{charged} used up their time before the others");
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 21).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
}

/// What waits behind two of them would run only where they are known beyond the batch in which they were late.
#[tokio::test]
async fn two_tenants_that_use_up_their_time_do_not_starve_a_third() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "deadline = \"1s\"\nlanes = 1\nbatch = 40\nretry = { delays = [\"100ms\"], max_attempts = 3 }",
    );
    world.apply_topology().await;
    let queue = world.queue("payments");
    let gate = Gate::shut(&world).await;
    let messages = (0..120).map(|n| match n % 4 {
        0 => (queue.clone(), message("acme", &format!("a{n}")), br#"{"do": "wait"}"#.to_vec()),
        1 => (queue.clone(), message("globex", &format!("g{n}")), br#"{"do": "wait"}"#.to_vec()),
        _ => (queue.clone(), message("initech", &format!("i{n}")), b"{}".to_vec()),
    });
    world.broker.publish_all("", messages.collect()).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where tenant = 'initech'", 60).await;
    let charged = world.count("select count(*) from oncely.audit where outcome <> 'completed'").await;
    // Between two batches that arrive one of each runs.
    assert!(charged <= 16, "{charged} of the others used up their time before the third tenant was done");
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 120).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
}

/// PostgreSQL takes statement_timeout off before it commits: a deferred trigger would have no limit there.
#[tokio::test]
async fn what_a_handler_defers_to_its_commit_has_a_deadline_and_is_its_messages() {
    let mut world = World::new().await;
    world.configure("[postgres]\nstatement_timeout = \"2s\"\nlock_timeout = \"1s\"");
    world.consumer(
        "payments",
        "deadline = \"1s\"\nlanes = 1\nretry = { delays = [\"50ms\"], max_attempts = 2 }",
    );
    sqlx::raw_sql(
        "create function app.linger() returns trigger language plpgsql as $$
         begin
             if new.payload ->> 'defer' = 'once' then perform pg_sleep(600); end if;
             if new.payload ->> 'defer' = 'again' then
                 set constraints all deferred;
                 insert into app.again default values;
             end if;
             return null;
         end $$;
         create constraint trigger lingers after insert on app.effects deferrable initially deferred
             for each row execute function app.linger();
         -- Deferred by what was deferred.
         create table app.again (number integer);
         create function app.linger_again() returns trigger language plpgsql as $$
         begin
             perform pg_sleep(600);
             return null;
         end $$;
         create constraint trigger lingers after insert on app.again deferrable initially deferred
             for each row execute function app.linger_again()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..10).map(|n| {
        let body = match n {
            4 => r#"{"defer": "once"}"#,
            6 => r#"{"defer": "again"}"#,
            _ => "{}",
        };
        (queue.clone(), message("acme", &format!("k{n}")), body.as_bytes().to_vec())
    });
    world.broker.publish_all("", messages.collect()).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 8).await;
    world.wait_for_ready(&format!("{queue}.dead"), 2).await;
    world.stop(worker).await;
    let why = "select string_agg(key || ' ' || reason || ' ' || error_code, ', ' order by key) from oncely.dead_letters";
    assert_eq!(
        world.text(why).await.as_deref(),
        Some("k4 attempts_exhausted 57014, k6 attempts_exhausted 57014")
    );
}

/// One batch of all of them would be out of time, and keep its lane for as long again, while the other lane has nothing.
#[tokio::test]
async fn a_slow_handler_gets_small_batches_that_are_in_time_and_one_that_is_fast_again_gets_large_ones() {
    let mut world = World::new().await;
    world.consumer("payments", "deadline = \"9s\"");
    sqlx::raw_sql(
        "create table app.pace (seconds float8 not null);
         insert into app.pace values (0.04);
         grant select on app.pace to public;
         create sequence app.runs;
         grant usage on sequence app.runs to public;
         create function app.linger() returns trigger language plpgsql as $$
         begin
             -- No rollback takes it back.
             perform nextval('app.runs');
             perform pg_sleep(seconds) from app.pace where seconds > 0;
             return new;
         end $$;
         create trigger lingers before insert on app.effects for each row execute function app.linger()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = |from: usize, to: usize| {
        let one = |n| (queue.clone(), message("acme", &format!("k{n}")), b"{}".to_vec());
        (from..to).map(one).collect::<Vec<_>>()
    };
    world.broker.publish_all("", messages(0, 300)).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 300).await;
    let batches =
        "select count(*) from (select occurred_at from oncely.audit group by occurred_at having count(*)";
    assert_eq!(world.count("select last_value from app.runs").await, 300, "no batch was out of time");
    // Each lane begins before anything is known of the handler's time.
    assert_eq!(world.count(&format!("{batches} > 64) as batch")).await, 0);
    assert!(world.count(&format!("{batches} > 40) as batch")).await <= 2);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);

    sqlx::query("update app.pace set seconds = 0").execute(&mut world.sql).await.unwrap();
    world.broker.publish_all("", messages(300, 4_300)).await.unwrap();
    world.wait_for("select count(*) from app.effects", 4_300).await;
    assert!(world.count(&format!("{batches} > 200) as batch")).await > 0, "they grow back");
    world.stop(worker).await;
}

/// Acknowledgements are held back behind an older message at work; where they are all that the broker waits for, they are sent.
#[tokio::test]
async fn a_slow_message_with_a_batch_of_its_own_leaves_the_other_lane_its_share_of_a_small_prefetch() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 2\nbatch = 7\nprefetch = 12\ndeadline = \"5m\"");
    world.apply_topology().await;
    let mut gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    // Both lanes are at work, so that what comes next is there before one of them takes it.
    for (waiting, key) in (1..).zip(["a", "b"]) {
        world.publish("payments", message("acme", key), r#"{"do": "wait"}"#).await;
        world.wait_for(WAITING, waiting).await;
    }
    let queue = world.queue("payments");
    let messages = (0..22).map(|n| {
        let body = if n == 0 { r#"{"do": "wait"}"# } else { "{}" };
        (queue.clone(), message("acme", &format!("k{n}")), body.as_bytes().to_vec())
    });
    world.broker.publish_all("", messages.collect()).await.unwrap();
    world.wait_for_ready(&queue, 12).await;
    gate.pass(&mut world).await;
    // One lane waits with seven; the other one does all the rest.
    world.wait_for("select count(*) from app.effects", 2 + 15).await;
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 24).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
}
