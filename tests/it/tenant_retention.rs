//! A tenant's keys are remembered for as long as was said for it, and never for less than a copy or a mirror entry may live.

use redis::AsyncCommands as _;
use serde_json::{Value, json};
use testbed::Redis;

use crate::support::{World, message};

const KEYS: &str =
    "select coalesce(string_agg(concat(tenant, ' ', status, ' ', n), ', ' order by tenant, status), '')
    from (select tenant, status, count(*) as n from oncely.idempotency_keys group by tenant, status) as k";

async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned())).execute(&mut world.sql).await.unwrap();
}

async fn limit(world: &World, arguments: &[&str]) -> (Value, String) {
    let output = world.oncely(&[&["tenant", "limit", "--json"], arguments].concat()).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}");
    (serde_json::from_slice(&output.stdout).unwrap(), text)
}

async fn gc(world: &World, more: &[&str]) -> Value {
    let output = world.oncely(&[&["gc", "run", "--json"], more].concat()).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Keys of three tenants, of each state one for each of thirty days; the consumer's are remembered for ten days, and a copy may come for
/// an hour.
async fn three_tenants() -> World {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 7");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.register("payments", "10d").await;
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
         select tenant, 'payments', status || age, status::oncely.key_status, 1, now() - make_interval(days => age, mins => 1),
            case when status <> 'IN_PROGRESS' then now() - make_interval(days => age, mins => 1) end,
            case when status = 'FAILED' then 'poison' end
         from unnest(array['COMPLETED', 'FAILED', 'IN_PROGRESS']) as status
         cross join generate_series(1, 30) as age
         cross join unnest(array['brief', 'long', 'plain']) as tenant",
    )
    .await;
    world
}

#[tokio::test]
async fn each_tenants_keys_go_by_its_own_retention_in_bounded_batches() {
    let mut world = three_tenants().await;
    // Of one time, and more than a batch: they stay, and the walk passes by.
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'long', 'payments', 'seeded ' || n, 'COMPLETED', 1, t.at, t.at
         from generate_series(1, 50) as n cross join (select now() - interval '15 days' as at) as t",
    )
    .await;
    let (said, told) = limit(&world, &["long", "--retention", "20d", "--note", "contract"]).await;
    assert_eq!(said["retention"], json!(1_728_000.0), "{said}");
    assert_eq!(
        said["kept"],
        json!([{ "consumer": "payments", "retention": 1_728_000.0, "because": "tenant" }])
    );
    assert!(told.contains("keys of the tenant long are remembered for 20days"), "{told}");
    limit(&world, &["brief", "--retention", "2d"]).await;
    let planned = gc(&world, &["--dry-run"]).await;
    let kept = "brief IN_PROGRESS 1, brief COMPLETED 1, brief FAILED 1, long IN_PROGRESS 19, long COMPLETED 69, long FAILED 19, \
                plain IN_PROGRESS 9, plain COMPLETED 9, plain FAILED 9";
    let done = gc(&world, &[]).await;
    assert_eq!(world.text(KEYS).await.as_deref(), Some(kept));
    for status in ["completed", "failed", "in_progress"] {
        assert_eq!(done["consumers"][0][status], 21 + 11 + 29, "{done}");
        assert_eq!(planned["consumers"][0][status], 21 + 11 + 29, "{planned}");
    }
    assert_eq!(done["consumers"].as_array().unwrap().len(), 1);
    let action = "select concat_ws('|', tenant, verb, filter ->> 'to', reason) from oncely.operator_actions where tenant = 'long'";
    assert_eq!(world.text(action).await.as_deref(), Some("long|set retention|20 days|contract"));
    // What is said of letters leaves it as it is, and the other way round.
    limit(&world, &["long", "--letters", "5"]).await;
    let (said, _) = limit(&world, &["long", "--retention", "15d"]).await;
    assert_eq!(said["retention"], json!(1_296_000.0));
    let usage = world.oncely(&["tenant", "usage", "--json"]).await;
    let usage: Value = serde_json::from_slice(&usage.stdout).unwrap();
    let long = usage["tenants"].as_array().unwrap().iter().find(|row| row["tenant"] == "long").unwrap();
    assert_eq!((&long["most_letters"], &long["own_limit"]), (&json!(5), &json!(true)), "{usage}");
    let (said, _) = limit(&world, &["long", "--default"]).await;
    assert_eq!((&said["retention"], &said["kept"]), (&Value::Null, &json!([])), "{said}");
    gc(&world, &[]).await;
    let long = "select count(*) from oncely.idempotency_keys where tenant = 'long' and completed_at < now() - interval '10 days'";
    assert_eq!(world.count(long).await, 0, "as the consumer says again");
}

#[tokio::test]
async fn whoever_collects_may_delete_what_is_past_its_tenants_retention_and_nothing_else() {
    let mut world = three_tenants().await;
    run(
        &mut world,
        "select oncely.observe_clock();
         select oncely.set_tenant_retention('long', '20 days', 'root', null), oncely.set_tenant_retention('brief', '2 days', 'root', null)",
    )
    .await;
    for role in ["oncely_relay", "oncely_operator"] {
        run(
            &mut world,
            &format!(
                "begin; set local role {role}; select oncely.delete_keys(array(select ctid from oncely.idempotency_keys)); reset role"
            ),
        )
        .await;
        let kept = "brief IN_PROGRESS 1, brief COMPLETED 1, brief FAILED 1, long IN_PROGRESS 19, long COMPLETED 19, long FAILED 19, \
                    plain IN_PROGRESS 9, plain COMPLETED 9, plain FAILED 9";
        assert_eq!(world.text(KEYS).await.as_deref(), Some(kept), "{role}");
        run(&mut world, "rollback").await;
    }
}

#[tokio::test]
async fn a_retention_shorter_than_copies_or_entries_live_is_told_and_not_taken_for_done() {
    let mut world = three_tenants().await;
    run(&mut world, "update oncely.consumers set redelivery_horizon = '3 days'").await;
    let (said, told) = limit(&world, &["brief", "--retention", "2d"]).await;
    assert_eq!(
        said["kept"],
        json!([{ "consumer": "payments", "retention": 259_200.0, "because": "redelivery_horizon" }])
    );
    assert!(
        told.contains("of payments they are kept for 3days: a copy may still come for so long"),
        "{told}"
    );
    gc(&world, &[]).await;
    let oldest = "select max((extract(epoch from now() - coalesce(completed_at, created_at)) / 86400)::integer)::bigint
        from oncely.idempotency_keys where tenant = 'brief'";
    assert_eq!(world.count(oldest).await, 2);
    // A mirror entry may live for longer than that: from its registration on.
    run(&mut world, "select oncely.register_mirror_ttl('5 days')").await;
    let usage = world.oncely(&["tenant", "usage"]).await;
    let usage = String::from_utf8_lossy(&usage.stdout).into_owned();
    assert!(usage.contains("2days (payments: 5days)"), "{usage}");
    for wrong in ["0s", "3651d", "soon"] {
        let refused = world.oncely(&["tenant", "limit", "brief", "--retention", wrong]).await;
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {refused:?}");
    }
    let refused = world.oncely(&["tenant", "limit", "", "--retention", "3d"]).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(world.count("select count(*) from oncely.tenant_limits").await, 1);
}

#[tokio::test]
async fn what_was_said_before_counts_until_mirror_entries_of_then_are_over() {
    let mut world = three_tenants().await;
    run(
        &mut world,
        "select oncely.register_mirror_ttl('1 day');
         select oncely.set_tenant_retention('long', '20 days', 'root', null)",
    )
    .await;
    let younger =
        "select count(*) from oncely.idempotency_keys where tenant = 'long' and status = 'COMPLETED'";
    // Shorter by far, then as the consumer says: neither lets a key go before its entry.
    for now in [&["long", "--retention", "2d"][..], &["long", "--retention", "default"]] {
        let (said, told) = limit(&world, now).await;
        assert_eq!(
            said["kept"],
            json!([{ "consumer": "payments", "retention": 1_728_000.0, "because": "former" }])
        );
        assert!(told.contains("until the mirror entries of before are over"), "{told}");
        gc(&world, &[]).await;
        assert_eq!(world.count(younger).await, 19);
    }
    assert_eq!(
        world
            .count(
                "select count(*) from oncely.tenant_limits
                where former_until between now() + interval '24 hours 59 minutes' and now() + interval '25 hours'"
            )
            .await,
        1
    );
    run(&mut world, "update oncely.tenant_limits set former_until = now()").await;
    gc(&world, &[]).await;
    assert_eq!(world.count(younger).await, 9);
    // Longer than it was: nothing to wait for.
    run(&mut world, "select oncely.set_tenant_retention('brief', '2 days', 'root', null); update oncely.tenant_limits set former_until = now()").await;
    limit(&world, &["brief", "--retention", "3d"]).await;
    assert_eq!(world.count("select count(*) from oncely.tenant_limits where former_until > now()").await, 0);
}

/// A record that came late, of keys of which some may soon be gone.
#[tokio::test]
async fn no_mirror_entry_outlives_the_key_of_a_tenant_that_is_forgotten_sooner() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "ttl = \"2h\"");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    world.register("payments", "10d").await;
    let late = "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
        values ('plain', gen_random_uuid(), 'mirror', now() - interval '150 minutes', now() + interval '9 days', 'payments', decode(repeat('ab', 16), 'hex'))";
    let mut redis_sql =
        redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    run(&mut world, &format!("select oncely.set_tenant_retention('brief', '3 hours', 'root', null); {late}"))
        .await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    let entries: Vec<String> = redis_sql.keys("oncely:2:*").await.unwrap();
    assert_eq!(entries, Vec::<String>::new(), "its batch may hold keys of brief's");
    // One that is said again is that of one tenant: it has its end, and others have theirs.
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select tenant, 'payments', 'k', 'COMPLETED', 1, now() - interval '150 minutes', now() - interval '150 minutes'
         from unnest(array['brief', 'plain']) as tenant;
         select oncely.mirror_again('payments', '-infinity', 100, 'infinity', null, null)",
    )
    .await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    let count = "select count(*) from oncely.tenant_limits";
    assert_eq!(world.count(count).await, 1);
    let entries: Vec<String> = redis_sql.keys("oncely:2:*").await.unwrap();
    assert_eq!(entries.len(), 1, "of plain's");
    world.stop(relay).await;
}

#[tokio::test]
async fn a_claim_keeps_a_key_for_as_long_as_it_says_and_longer_where_its_tenant_does() {
    let mut world = World::new().await;
    run(
        &mut world,
        "select oncely.set_tenant_retention('long', '20 days', 'root', null), oncely.set_tenant_retention('brief', '2 days', 'root', null);
         select oncely.claim(t, 'orders', 'claimed', sha256('{}')), oncely.complete(t, 'orders', 'claimed')
         from unnest(array['long', 'brief', 'plain']) as t;
         select oncely.claim_lease(t, 'orders', 'leased', sha256('{}'), 'w') from unnest(array['long', 'brief', 'plain']) as t;
         select oncely.fail(t, 'orders', 'failed', sha256('{}'), 1, 'no') from unnest(array['long', 'brief', 'plain']) as t",
    )
    .await;
    let days = "select string_agg(concat(key, ' ', tenant, ' ', (extract(epoch from expires_at - now()) / 86400)::integer), ', ' order by key, tenant)
        from oncely.idempotency_keys";
    assert_eq!(
        world.text(days).await.as_deref(),
        Some(
            "claimed brief 7, claimed long 20, claimed plain 7, failed brief 7, failed long 20, failed plain 7, leased brief 7, leased long 20, leased plain 7"
        )
    );
}

#[tokio::test]
async fn a_letter_and_a_seeded_key_are_remembered_as_their_tenant_says() {
    let mut world = three_tenants().await;
    run(&mut world, "delete from oncely.idempotency_keys; select oncely.set_tenant_retention('long', '20 days', 'root', null), oncely.set_tenant_retention('brief', '2 days', 'root', null)").await;
    // What of the trail is older than two weeks is dropped.
    run(
        &mut world,
        "insert into oncely.audit_seals (place, kind, from_time, until_time, row_count, digest, previous, hash, sealed_at)
         values (1, 'dropped', now() - interval '60 days', now() - interval '14 days 1 hour', 0, '', '', '', now());
         insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         values ('long', now() - interval '30 days', 1, 'payments', 'ran', 'q', 'completed', 'w');
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
             failure_group, exchange, routing_key, body_size, updated_at)
         select tenant, gen_random_uuid(), 'payments', key, now() - age, 'poison', 1, 'q', 'w', 'waiting', 1, 1, 'g', '', 'q', 2, now()
         from (values ('brief', 'k', interval '5 days'), ('plain', 'k', '14 days'), ('long', 'k', '14 days'), ('long', 'ran', '14 days'))
             as v (tenant, key, age)",
    )
    .await;
    let memories = "select string_agg(concat_ws(' ', d.tenant, d.key, m.memory), ', ' order by d.tenant, d.key)
        from oncely.dead_letters as d, lateral oncely.letter_memories(array[d.tenant], array[d.id], now()) as m";
    assert_eq!(
        world.text(memories).await.as_deref(),
        Some("brief k FORGOTTEN, long k NONE, long ran TOOK_EFFECT, plain k FORGOTTEN")
    );
    let seeds = "select concat_ws(' ', s.seeded, s.known, s.too_old) from oncely.seed_keys('payments', array['brief', 'long', 'plain'],
        array['s', 's', 's'], array_fill(now() - interval '15 days', array[3])) as s";
    assert_eq!(world.text(seeds).await.as_deref(), Some("1 0 2"), "long's is remembered");
    let story = world.oncely(&["explain", "s", "--tenant", "long", "--json"]).await;
    let story: Value = serde_json::from_slice(&story.stdout).unwrap();
    assert!(story.to_string().contains("protected_until"), "{story}");
}

#[tokio::test]
async fn messages_of_a_tenant_are_handled_and_recognised_for_as_long_as_was_said() {
    let mut world = World::new().await;
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("long", "k"), "{}").await;
    world.publish("payments", message("plain", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    limit(&world, &["long", "--retention", "20d"]).await;
    run(&mut world, "update oncely.idempotency_keys set created_at = created_at - interval '15 days', completed_at = completed_at - interval '15 days'").await;
    gc(&world, &[]).await;
    world.publish("payments", message("long", "k"), "{}").await;
    world.publish("payments", message("plain", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 3).await;
    world.stop(worker).await;
    assert_eq!(
        world.text("select string_agg(distinct tenant, ',') from oncely.idempotency_keys where completed_at > now() - interval '1 day'").await.as_deref(),
        Some("plain"),
        "what was remembered did not run"
    );
}

/// A copy on a rung may come back as late as the ladder is long, whatever `redelivery_horizon` says.
#[tokio::test]
async fn a_tenants_key_outlives_the_copies_that_wait_on_rungs() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer(
        "payments",
        "retention = \"10d\"\nredelivery_horizon = \"1h\"\nretry = { delays = [\"72h\"], max_attempts = 2 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("brief", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let (said, _) = limit(&world, &["brief", "--retention", "1h"]).await;
    assert_eq!(said["kept"][0]["because"], "redelivery_horizon", "{said}");
    assert!(said["kept"][0]["retention"].as_f64().unwrap() >= 72.0 * 3_600.0, "{said}");
    run(&mut world, "update oncely.idempotency_keys set created_at = created_at - interval '2 days', completed_at = completed_at - interval '2 days'").await;
    gc(&world, &[]).await;
    assert_eq!(world.text(KEYS).await.as_deref(), Some("brief COMPLETED 1"));
    world.publish("payments", message("brief", "k"), "{}").await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn no_consumer_is_registered_whose_keys_are_forgotten_before_its_copies_come() {
    let mut world = World::new().await;
    world.register("payments", "7 days").await;
    let before = world.text("select c::text from oncely.consumers as c").await;
    let short =
        "select oncely.register_consumer('payments', '8 days', '9 days', 'canonical_json', 'duplicate', 'w')";
    let error = sqlx::query(short).execute(&mut world.sql).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("ONC11"), "{error}");
    assert_eq!(world.text("select c::text from oncely.consumers as c").await, before);
}
