//! What a client leaves behind: the mirror, the keys, the rights.

use serde_json::{Value, json};
use testbed::Redis;

use crate::support::{World, message};

use super::{code, effects, fail, once};

#[tokio::test]
async fn what_a_client_completed_is_mirrored_and_the_workers_precheck_believes_it() {
    for settings in ["precheck = \"trust\"", "precheck = \"trust\"\nkey = \"a key of sixteen bytes\""] {
        let redis = Redis::start().await.unwrap();
        let mut world = World::new().await;
        world.with_redis(&redis.url(), settings);
        world.configure("[audit]\nduplicates = true");
        world.consumer("payments", "");
        world.apply_topology().await;
        let mut sql = world.database.connect().await.unwrap();
        once(&mut sql, "k").await;
        let relay = world.start("relay");
        world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
        let worker = world.start("worker");
        world.publish("payments", message("acme", "k"), "{}").await;
        let by_mirror = "select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror'";
        world.wait_for(by_mirror, 1).await;
        // Another payload has another tag: PostgreSQL decides.
        world.publish("payments", message("acme", "k"), "[]").await;
        world.wait_for("select count(*) from oncely.dead_letters where reason = 'key_conflict'", 1).await;
        world.stop(worker).await;
        world.stop(relay).await;
        assert_eq!(effects(&mut world, "k").await, 1);
    }
}

#[tokio::test]
async fn every_statement_finds_its_row_by_the_primary_key() {
    let mut world = World::new().await;
    // The migrations' own, when they built the indexes.
    let whole = "select seq_scan from pg_stat_user_tables where relname = 'idempotency_keys'";
    sqlx::query("select pg_stat_force_next_flush()").execute(&mut world.sql).await.unwrap();
    let before = world.count(whole).await;
    // Of a table that was never analysed, with many rows of one consumer in all states: what a planner may get wrong.
    sqlx::raw_sql(
        "do $$
         begin
             for n in 1..300 loop
                 perform oncely.claim('acme', 'payments', 'k' || n, null), oncely.complete('acme', 'payments', 'k' || n);
                 perform oncely.fail('acme', 'payments', 'f' || n, null, 1, 'x');
                 perform oncely.fail('acme', 'payments', 'p' || n, null, 1, 'x', 'poison');
                 perform oncely.claim('acme', 'payments', 'f' || n, null);
                 perform oncely.fail('acme', 'payments', 'f' || n, null, 2, 'x');
             end loop;
         end $$;
         select pg_stat_force_next_flush()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let scans = "select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes
        where relname = 'idempotency_keys' and indexrelname <> 'idempotency_keys_pkey'";
    assert_eq!(world.count(scans).await, 0);
    let by_key = "select (idx_scan >= 1500)::int::bigint from pg_stat_user_indexes where indexrelname = 'idempotency_keys_pkey'";
    world.wait_for(by_key, 1).await;
    assert_eq!(world.count(whole).await, before);
}

#[tokio::test]
async fn keys_of_clients_live_as_long_as_their_claim_said_whatever_their_consumer() {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 3");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.register("payments", "10d").await;
    // Claimed 20 days ago with retentions around that, under a consumer of the configuration and under one of nobody's.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason, expires_at)
         select 'acme', consumer, status || n, status::oncely.key_status, 1, now() - interval '20 days',
            case when status <> 'IN_PROGRESS' then now() - interval '20 days' end, case when status = 'FAILED' then 'poison' end,
            now() + make_interval(days => n)
         from unnest(array['COMPLETED', 'FAILED', 'IN_PROGRESS']) as status
         cross join unnest(array['payments', 'orders']) as consumer
         cross join unnest(array[-5, -1, 1, 5]) as n;
         insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, key)
         values ('acme', gen_random_uuid(), 'identity', now() - interval '20 days', now() + interval '5 days', 'orders', 'COMPLETED5')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let collect = async |world: &World, arguments: &[&str]| -> Value {
        let output = world.oncely(arguments).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // Those whose mirror record may be pending wait for the relay.
    assert_eq!(collect(&world, &["gc", "run", "--dry-run", "--json"]).await["expired"], 8);
    assert_eq!(collect(&world, &["gc", "run", "--json"]).await["expired"], 8);
    sqlx::query("delete from oncely.mirror_queue").execute(&mut world.sql).await.unwrap();
    let report = collect(&world, &["gc", "run", "--json"]).await;
    assert_eq!((&report["expired"], &report["consumers"][0]["completed"]), (&json!(4), &json!(0)));
    let left = "select string_agg(distinct key, ' ' order by key) from oncely.idempotency_keys";
    assert_eq!(
        world.text(left).await.as_deref(),
        Some("COMPLETED1 COMPLETED5 FAILED1 FAILED5 IN_PROGRESS1 IN_PROGRESS5")
    );
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 12);
    // A worker that completes what a client failed at gives the key its own retention.
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "IN_PROGRESS1"), "{}").await;
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and expires_at is null",
            1,
        )
        .await;
    world.stop(worker).await;
}

#[tokio::test]
async fn an_application_with_the_consumers_role_can_consume_and_touch_nothing_else() {
    let mut world = World::new().await;
    sqlx::raw_sql("grant usage on schema app to oncely_consumer; grant insert on app.effects to oncely_consumer; set role oncely_consumer")
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(once(&mut world.sql, "k").await.outcome, "granted");
    let again = once(&mut world.sql, "k").await;
    assert_eq!((again.outcome.as_str(), again.response), ("duplicate", Some(json!({ "done": "k" }))));
    fail(&mut world.sql, "f", 1, None).await;
    for statement in [
        "select * from oncely.idempotency_keys",
        "insert into oncely.audit select * from oncely.audit",
        "delete from oncely.mirror_queue",
        "select secret from oncely.secrets",
        "select secret from oncely.signing_keys()",
        "select oncely.drop_audit_partitions(now())",
    ] {
        let refused = sqlx::query(statement).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(code(refused), "42501", "{statement}");
    }
    sqlx::raw_sql("reset role; drop owned by oncely_consumer").execute(&mut world.sql).await.unwrap();
}
