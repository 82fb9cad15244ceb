//! `oncely mirror`: what Redis lacks is noticed, and said again.

use redis::AsyncCommands as _;
use serde_json::{Value, json};
use testbed::Redis;

use crate::command_line::stdout;
use crate::support::{Login, World, message};

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn world(redis: &Redis) -> World {
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "");
    world.configure("[audit]\nduplicates = true\n[relay]\npoll = \"20ms\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

async fn run(world: &World, arguments: &[&str]) -> (i32, Value) {
    let output = world.oncely(&[&["mirror"], arguments, &["--json"]].concat()).await;
    let object =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&output)));
    (output.status.code().unwrap(), object)
}

fn of(counted: &Value) -> Vec<u64> {
    let one = &counted["consumers"][0];
    ["looked_for", "missing", "foreign"].map(|name| one[name].as_u64().unwrap()).to_vec()
}

const QUEUE: &str = "select count(*) from oncely.mirror_queue";

#[tokio::test]
async fn what_a_redis_lost_is_missing_until_it_is_said_again() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis).await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let queue = world.queue("payments");
    let messages = (0..60).map(|n| (queue.clone(), message("acme", &format!("k{n}")), b"{}".to_vec()));
    world.broker.publish_all("", messages.collect()).await.unwrap();
    world.wait_for("select count(*) from app.effects", 60).await;
    world.wait_for(QUEUE, 0).await;
    let (code, found) = run(&world, &["verify", "--sample", "2000"]).await;
    let looked_for = of(&found)[0];
    assert_eq!(
        (code, &found["schema"], of(&found)),
        (0, &json!("oncely.mirror/1"), vec![looked_for, 0, 0]),
        "{found}"
    );
    assert_eq!(looked_for, 60, "{found}");

    // Somebody writes into one of the places, and makes another of them something else.
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let buckets: Vec<String> = connection.keys("oncely:2:*").await.unwrap();
    let fields: Vec<Vec<u8>> = connection.hkeys(&buckets[0]).await.unwrap();
    for field in &fields {
        let () = connection.hset(&buckets[0], field, b"whatever").await.unwrap();
    }
    let () = connection.del(&buckets[1]).await.unwrap();
    let () = connection.set(&buckets[1], "a text").await.unwrap();
    let (code, found) = run(&world, &["verify", "--sample", "2000"]).await;
    assert_eq!((code, of(&found)[1]), (1, 0), "{found}");
    assert!(of(&found)[2] >= 2, "{found}");

    let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    let (code, found) = run(&world, &["verify", "--sample", "2000"]).await;
    assert_eq!((code, of(&found)), (1, vec![looked_for, looked_for, 0]), "{found}");

    let (code, done) = run(&world, &["rebuild", "--note", "it was flushed"]).await;
    assert_eq!(
        (code, &done["queued"], &done["finished"], &done["next"]),
        (0, &json!(60), &json!(true), &Value::Null)
    );
    world.wait_for(QUEUE, 0).await;
    let (code, found) = run(&world, &["verify", "--sample", "2000"]).await;
    assert_eq!((code, of(&found)), (0, vec![looked_for, 0, 0]), "{found}");
    // Once more is harmless, and Redis answers for duplicates again.
    assert_eq!(run(&world, &["rebuild"]).await.1["queued"], 60);
    world.wait_for(QUEUE, 0).await;
    world.publish("payments", message("acme", "k7"), "{}").await;
    world
        .wait_for("select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror'", 1)
        .await;
    let recorded = "select string_agg(concat(verb, ' ', count, ' ', reason), ', ' order by occurred_at) from oncely.operator_actions";
    assert_eq!(
        world.text(recorded).await.as_deref(),
        Some(
            "begin rebuild_mirror 0 it was flushed, rebuild_mirror 60 it was flushed, begin rebuild_mirror 0 , rebuild_mirror 60 "
        )
    );
    let (code, stats) = run(&world, &["stats"]).await;
    assert_eq!(
        (code, &stats["reachable"], &stats["records"], &stats["ttl"]),
        (0, &json!(true), &json!(0), &json!(3_600.0))
    );
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 60);
}

#[tokio::test]
async fn a_rebuild_takes_what_is_young_page_by_page_and_goes_on_where_it_was_broken_off() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis).await;
    world.register("payments", "7 days").await;
    // Of the last hour 2,500, many of one time; and some that are older, given up, or over.
    let fill = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason, expires_at)
        select 'acme', 'payments', 'k' || n, (case when n > 2900 then 'FAILED' else 'COMPLETED' end)::oncely.key_status, 1, now() - interval '1 day',
            now() - case when n between 2501 and 2700 then interval '2 hours' else (n / 800) * interval '1 minute' end, 'x',
            case when n between 2701 and 2900 then now() - interval '1 second' end
        from generate_series(1, 3000) as n";
    sqlx::raw_sql(fill).execute(&mut world.sql).await.unwrap();
    let (code, done) = run(&world, &["rebuild", "--rate", "1000000"]).await;
    assert_eq!((code, &done["queued"]), (0, &json!(2_500)), "{done}");
    let distinct = "select count(distinct key) from oncely.mirror_queue where kind = 'identity' and tenant = 'acme' and consumer = 'payments'
        and expires_at > now() + interval '6 days' and created_at > now() - interval '1 minute'";
    assert_eq!(world.count(distinct).await, 2_500);
    // From a place on.
    sqlx::raw_sql("truncate oncely.mirror_queue").execute(&mut world.sql).await.unwrap();
    let place = "select json_build_array('payments', completed_at, tenant, key)::text from oncely.idempotency_keys where key = 'k1000'";
    let place = world.text(place).await.unwrap();
    let (code, done) = run(&world, &["rebuild", "--after", &place]).await;
    assert_eq!(code, 0, "{done}");
    let after = "select count(*) from oncely.idempotency_keys as i, oncely.idempotency_keys as p
        where p.key = 'k1000' and (i.completed_at, i.tenant, i.key) < (p.completed_at, p.tenant, p.key) and i.status = 'COMPLETED'
            and i.expires_at is null and i.completed_at > now() - interval '1 hour'";
    assert_eq!(done["queued"], world.count(after).await);
    let wrong = world.oncely(&["mirror", "rebuild", "--after", "k7"]).await;
    assert_eq!(wrong.status.code(), Some(2), "{}", told(&wrong));
}

#[tokio::test]
async fn each_verb_says_which_role_it_needs_and_that_there_is_no_mirror() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis).await;
    world.register("payments", "7 days").await;
    for (role, verb, code) in [
        ("oncely_operator", "stats", 0),
        ("oncely_operator", "verify", 0),
        ("oncely_operator", "rebuild", 0),
        ("oncely_auditor", "stats", 0),
        ("oncely_auditor", "verify", 4),
        ("oncely_auditor", "rebuild", 4),
    ] {
        let login = Login::create(&mut world, role).await;
        let environment = login.environment();
        let [(name, url)] = &environment;
        let output = world.oncely_with(&["mirror", verb], &[(name, url)]).await;
        assert_eq!(output.status.code(), Some(code), "{role} {verb}: {}{}", stdout(&output), told(&output));
        assert_eq!(
            told(&output).contains("role oncely_operator"),
            code == 4,
            "{role} {verb}: {}",
            told(&output)
        );
        login.drop_now(&mut world).await;
    }
    let mut without = World::new().await;
    without.consumer("payments", "");
    for verb in ["stats", "verify", "rebuild"] {
        let output = without.oncely(&["mirror", verb]).await;
        assert_eq!(output.status.code(), Some(1), "{verb}");
        assert!(told(&output).contains("there is no mirror"), "{verb}: {}", told(&output));
    }
}

#[tokio::test]
async fn a_rebuild_passes_by_a_consumer_that_never_started_and_is_recorded_when_it_begins() {
    let redis = Redis::start().await.unwrap();
    let mut world = world(&redis).await;
    world.consumer("archive", "");
    world.register("payments", "7 days").await;
    let fill = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        select 'acme', 'payments', 'k' || n, 'COMPLETED', 1, now(), now() from generate_series(1, 10) as n";
    sqlx::raw_sql(fill).execute(&mut world.sql).await.unwrap();
    let (code, done) = run(&world, &["rebuild"]).await;
    assert_eq!((code, &done["queued"], &done["skipped"]), (0, &json!(10), &json!(["archive"])), "{done}");
    let recorded =
        "select string_agg(concat(verb, ' ', count), ', ' order by occurred_at) from oncely.operator_actions";
    assert_eq!(world.text(recorded).await.as_deref(), Some("begin rebuild_mirror 0, rebuild_mirror 10"));
    // It is broken off: what it did, and where it stopped, is told.
    let break_off = "truncate oncely.operator_actions, oncely.mirror_queue;
        create function app.no_more() returns trigger language plpgsql as $$ begin
            if (select count(*) from oncely.mirror_queue) > 4 then raise exception 'full'; end if; return null; end $$;
        create trigger no_more after insert on oncely.mirror_queue execute function app.no_more()";
    sqlx::raw_sql(break_off).execute(&mut world.sql).await.unwrap();
    let output = world.oncely(&["mirror", "rebuild", "--rate", "2"]).await;
    assert_ne!(output.status.code(), Some(0), "{}", told(&output));
    assert!(told(&output).contains("--after '[\"payments\""), "{}", told(&output));
    assert_eq!(world.text(recorded).await.as_deref(), Some("begin rebuild_mirror 0, rebuild_mirror 4"));
}
