//! Redis: what the relay writes, and that nothing wrong in it can do harm.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use testbed::Redis;

use crate::support::{World, message};

async fn connect(redis: &Redis) -> MultiplexedConnection {
    redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// A world with a Redis of its own, a consumer, and duplicates listed with who knew them.
async fn world(redis: &Redis, settings: &str) -> World {
    let mut world = World::new().await;
    world.with_redis(&redis.url(), settings);
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

const MIRROR_QUEUE: &str = "select count(*) from oncely.mirror_queue";

fn duplicates(source: &str) -> String {
    format!("select count(*) from oncely.audit where outcome = 'duplicate' and reason = '{source}'")
}

#[tokio::test]
async fn what_took_effect_is_mirrored_and_answers_for_duplicates() {
    for mode in ["trust", "verify", "auto"] {
        let redis = Redis::start().await.unwrap();
        let mut world = world(&redis, &format!("precheck = \"{mode}\"")).await;
        let (worker, relay) = (world.start("worker"), world.start("relay"));
        world.publish("payments", message("acme", "k"), "{}").await;
        world.wait_for("select count(*) from app.effects", 1).await;
        world.wait_for(MIRROR_QUEUE, 0).await;
        world.publish("payments", message("acme", "k"), "{}").await;
        world.wait_for(&duplicates("mirror"), 1).await;
        world.stop(worker).await;
        world.stop(relay).await;
        assert_eq!(world.count("select count(*) from app.effects").await, 1, "{mode}");
    }
}

/// The first question is about a sample; what it says of the sample decides about the rest.
#[tokio::test]
async fn a_batch_that_is_known_is_answered_for_by_redis_alone_and_one_that_is_fresh_runs() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"").await;
    let queue = world.queue("payments");
    let messages = |from: i32, to: i32| {
        (from..to)
            .map(|n| (queue.clone(), message("acme", &format!("k{n}")), b"{}".to_vec()))
            .collect::<Vec<_>>()
    };
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.broker.publish_all("", messages(0, 200)).await.unwrap();
    world.wait_for("select count(*) from app.effects", 200).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(worker).await;
    world.broker.publish_all("", messages(0, 200)).await.unwrap();
    let worker = world.start("worker");
    let known = "select count(*) from oncely.audit where outcome = 'duplicate'";
    world.wait_for(known, 200).await;
    // Where a machine has stood still, PostgreSQL has answered for some.
    let mut again = 200;
    while world.count(&duplicates("mirror")).await < 200 {
        assert!(again < 2_000, "Redis does not answer for whole batches");
        world.broker.publish_all("", messages(0, 200)).await.unwrap();
        again += 200;
        world.wait_for(known, again).await;
    }
    world.broker.publish_all("", messages(0, 400)).await.unwrap();
    world.wait_for("select count(*) from app.effects", 400).await;
    world.wait_for(known, again + 200).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(distinct key) from app.effects").await, 400);
}

#[tokio::test]
async fn entries_live_no_longer_than_their_ttl_and_are_small() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "ttl = \"10m\"\nbuckets = 16").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let queue = world.queue("payments");
    let messages =
        (0..1_000).map(|n| (queue.clone(), message("acme", &format!("k{n}")), b"{}".to_vec())).collect();
    world.broker.publish_all("", messages).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1_000).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(worker).await;
    world.stop(relay).await;
    let mut connection = connect(&redis).await;
    let buckets: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let (mut entries, mut bytes) = (0, 0);
    for bucket in &buckets {
        entries += redis::cmd("HLEN").arg(bucket).query_async::<u64>(&mut connection).await.unwrap();
        bytes +=
            redis::cmd("MEMORY").arg("USAGE").arg(bucket).query_async::<u64>(&mut connection).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(bucket).query_async(&mut connection).await.unwrap();
        assert!((1..=600_000).contains(&ttl), "{bucket}: {ttl}");
    }
    assert_eq!(entries, 1_000);
    assert!(bytes / entries <= 40, "{} bytes an entry", bytes / entries);
}

#[tokio::test]
async fn without_redis_everything_works_and_the_mirror_queue_waits_for_it() {
    let mut redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    redis.kill().unwrap();
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&duplicates("postgres"), 1).await;
    world.wait_for_line(&relay, "cannot write mirror records to Redis; retrying").await;
    // A relay that deletes before it writes would have lost the record by now.
    assert_eq!(world.count(MIRROR_QUEUE).await, 1, "what could not be written stays");
    redis.restart().await.unwrap();
    world.wait_for(MIRROR_QUEUE, 0).await;
    // The breaker lets the worker try again after a while; until then PostgreSQL answers.
    let published = std::cell::Cell::new(0_u32);
    testbed::eventually_within(Duration::from_secs(60), "a duplicate that Redis answers", || async {
        world.broker.publish("", &world.queue("payments"), message("acme", "k"), b"{}").await.unwrap();
        published.set(published.get() + 1);
        let mut connection = world.database.connect().await.unwrap();
        use sqlx::Row as _;
        let row =
            sqlx::query(sqlx::AssertSqlSafe(duplicates("mirror"))).fetch_one(&mut connection).await.unwrap();
        if row.get::<i64, _>(0) > 0 { Ok(()) } else { Err("none yet") }
    })
    .await
    .unwrap();
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn an_emptied_redis_costs_a_question_to_postgresql_and_nothing_else() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut connect(&redis).await).await.unwrap();
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&duplicates("postgres"), 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_bucket_of_a_wrong_type_is_a_miss_and_stops_neither_worker_nor_relay() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"\nbuckets = 1").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    let mut connection = connect(&redis).await;
    let buckets: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    for bucket in &buckets {
        redis::cmd("DEL").arg(bucket).query_async::<()>(&mut connection).await.unwrap();
        redis::cmd("LPUSH").arg(bucket).arg("junk").query_async::<()>(&mut connection).await.unwrap();
    }
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&duplicates("postgres"), 1).await;
    world.publish("payments", message("acme", "k2"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn after_a_change_of_epoch_old_entries_count_no_more() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(worker).await;
    // A restored backup: the commit is gone, Redis still says COMPLETED, and the operator gives the history a new id.
    for statement in [
        "delete from oncely.idempotency_keys",
        "delete from app.effects",
        "update oncely.cell set history_id = gen_random_uuid()",
    ] {
        sqlx::query(statement).execute(&mut world.sql).await.unwrap();
    }
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    // Believing the old entry would lose the effect for good.
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_verified_hit_without_its_row_runs() {
    hit_without_a_row("verify", "select 1").await;
}

#[tokio::test]
async fn auto_verifies_where_a_crash_may_lose_reported_commits() {
    hit_without_a_row("auto", "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$")
        .await;
}

async fn hit_without_a_row(mode: &str, before: &'static str) {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, &format!("precheck = {mode:?}")).await;
    sqlx::raw_sql(before).execute(&mut world.sql).await.unwrap();
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    // As after a failover or a crash that lost the commit, before anybody noticed.
    for statement in ["delete from oncely.idempotency_keys", "delete from app.effects"] {
        sqlx::query(statement).execute(&mut world.sql).await.unwrap();
    }
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn two_relays_share_the_mirror_queue() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "").await;
    world.configure("[relay]\nbatch = 1");
    let worker = world.start("worker");
    for number in 0..40 {
        world.publish("payments", message("acme", &format!("k{number}")), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 40).await;
    let relays = [world.start_as("relay", "one"), world.start_as("relay", "two")];
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(worker).await;
    for relay in relays {
        world.stop(relay).await;
    }
    let mut connection = connect(&redis).await;
    let buckets: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut entries = 0;
    for bucket in buckets {
        entries += redis::cmd("HLEN").arg(bucket).query_async::<u64>(&mut connection).await.unwrap();
    }
    assert_eq!(entries, 40);
}

#[tokio::test]
async fn a_record_whose_keys_are_about_to_be_collected_is_not_mirrored() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "").await;
    // An entry would outlive this key.
    sqlx::query(
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         values ('acme', gen_random_uuid(), 'mirror', now() - interval '7 days', now() + interval '1 second', 'payments', decode(repeat('ab', 16), 'hex'))",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let relay = world.start("relay");
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(relay).await;
    let mut connection = connect(&redis).await;
    assert_eq!(redis::cmd("DBSIZE").query_async::<i64>(&mut connection).await.unwrap(), 0);
}

#[tokio::test]
async fn worker_and_relay_run_with_the_grants_of_their_roles_alone() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "precheck = \"trust\"").await;
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let users = ["worker", "relay"].map(|role| format!("{role}_{suffix}"));
    for (user, role) in users.iter().zip(["oncely_worker", "oncely_relay"]) {
        let create = format!("create role {user} login password 'secret' in role {role}");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut world.sql).await.unwrap();
    }
    // What the handler needs is the application's to grant.
    let grants = format!("grant usage on schema app to {0}; grant insert on app.effects to {0}", users[0]);
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants)).execute(&mut world.sql).await.unwrap();
    let url = |user: &str| {
        let (_, rest) = world.database.url().split_once('@').unwrap();
        vec![("DATABASE_URL", format!("postgres://{user}:secret@{rest}"))]
    };
    let worker = world.start_with("worker", "worker", &url(&users[0]));
    let relay = world.start_with("relay", "relay", &url(&users[1]));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(&duplicates("mirror"), 1).await;
    world.stop(worker).await;
    world.wait_for_line(&relay, "mirror lane started").await;
    world.stop(relay).await;
    for user in users {
        let drop = format!("drop owned by {user}; drop role {user}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut world.sql).await.unwrap();
    }
}

#[tokio::test]
async fn a_relay_without_redis_drops_mirror_records_that_would_hold_back_the_collection() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis, "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count(MIRROR_QUEUE).await, 1);
    let text = std::fs::read_to_string(world.file()).unwrap();
    let without: String = text
        .lines()
        .filter(|line| !line.starts_with("url = \"redis"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(world.file(), without).unwrap();
    let relay = world.start("relay");
    world.wait_for(MIRROR_QUEUE, 0).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_redis_that_takes_nothing_keeps_no_record_for_longer_than_its_entry_would_live() {
    let mut world = World::new().await;
    world.with_redis("redis://127.0.0.1:1", "ttl = \"1h\"");
    world.configure("[relay]\npoll = \"20ms\"\nbatch = 2");
    let record = |age: &str| {
        format!(
            "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
             select 'a', gen_random_uuid(), 'mirror', now() - interval '{age}', now() + interval '30 days', 'payments',
                decode(repeat('ab', 16), 'hex')
             from generate_series(1, 3)"
        )
    };
    for age in ["2 hours", "10 minutes"] {
        sqlx::query(sqlx::AssertSqlSafe(record(age))).execute(&mut world.sql).await.unwrap();
    }
    let relay = world.start("relay");
    world.wait_for(MIRROR_QUEUE, 3).await;
    world.wait_for_lines(&relay, "cannot write mirror records", 4).await;
    assert_eq!(world.count(MIRROR_QUEUE).await, 3, "those may still become entries");
    world.stop(relay).await;
}
