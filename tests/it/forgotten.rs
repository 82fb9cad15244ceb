//! Which keys may go, by age or with their tenant, and what must not outlive them.

use serde_json::json;
use testbed::Redis;

use crate::support::{World, message};
use crate::tenants::{GONE, erase, run};

/// How many statements wait for a lock.
const WAITING: &str =
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";

#[tokio::test]
async fn what_is_forgotten_with_a_tenant_runs_again_whatever_was_on_its_way_to_the_mirror() {
    let redis = Redis::start().await.unwrap();
    for on_its_way in ["waiting", "taken by a relay", "said again by a rebuild"] {
        let mut world = World::new().await;
        world.with_redis(&redis.url(), "");
        world.configure("[relay]\npoll = \"20ms\"");
        world.consumer("payments", "");
        world.apply_topology().await;
        let publish = async |world: &World| {
            for number in 0..5 {
                world.publish("payments", message(GONE, &format!("k{number}")), "{}").await;
            }
        };
        let worker = world.start("worker");
        publish(&world).await;
        world.wait_for("select count(*) from app.effects", 5).await;
        world.stop(worker).await;
        // Of batches that another tenant's message began.
        run(&mut world, "update oncely.mirror_queue set tenant = 'acme'").await;
        let mut relay = world.database.connect().await.unwrap();
        let in_hand = match on_its_way {
            "waiting" => None,
            "taken by a relay" => Some("select from oncely.mirror_queue for update skip locked".to_owned()),
            _ => Some(
                "select oncely.mirror_again('payments', 'epoch', 100, clock_timestamp(), null, null)"
                    .to_owned(),
            ),
        };
        if let Some(statement) = &in_hand {
            let statement = format!("begin; {statement}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut relay).await.unwrap();
        }
        let erasing = async {
            let erased = erase(&world, &["--forget-keys", "--yes"]).await;
            assert_eq!((erased.0, &erased.1["complete"]), (0, &json!(true)), "{on_its_way}: {erased:?}");
        };
        let looks = tokio::sync::Mutex::new(world.database.connect().await.unwrap());
        let releasing = async {
            if in_hand.is_some() {
                testbed::eventually("the erasure waits", || async {
                    let waiting: i64 =
                        sqlx::query_scalar(WAITING).fetch_one(&mut *looks.lock().await).await?;
                    if waiting > 0 { Ok(()) } else { Err(anyhow::anyhow!("nothing waits")) }
                })
                .await
                .expect(on_its_way);
                sqlx::raw_sql("commit").execute(&mut relay).await.unwrap();
            }
        };
        tokio::join!(erasing, releasing);
        // What is left for the relay now comes to Redis.
        let process = world.start("relay");
        world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
        let worker = world.start_as("worker", "second");
        publish(&world).await;
        world.wait_for("select count(*) from app.effects", 10).await;
        world.stop(worker).await;
        world.stop(process).await;
    }
}

#[tokio::test]
async fn keys_are_not_forgotten_where_the_mirror_is_not_configured() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    run(&mut world, "select oncely.register_mirror_ttl('1 day')").await;
    let (code, _, notes) = erase(&world, &["--forget-keys", "--yes"]).await;
    assert!(code == 1 && notes.contains("this configuration has none"), "{code}: {notes}");
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0, "nothing was changed");
}

#[tokio::test]
async fn what_a_copy_may_still_ask_for_is_neither_collected_nor_erased() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.register("payments", "7 days").await;
    let keys = |tenant: &str| {
        format!(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason,
                 not_before, fencing_token, steps)
             select '{tenant}', 'payments', k.key, k.status::oncely.key_status, 1, now() - interval '9 days',
                 case when k.status <> 'IN_PROGRESS' then now() - interval '9 days' end, k.reason, k.not_before,
                 case when k.claimed is not null
                     then extract(epoch from now() - make_interval(days => k.claimed)) * 1000000 end,
                 case when k.claimed is not null then '{{\"charge\": {{\"state\": \"done\"}}}}'::jsonb end
             from (values
                 ('done', 'COMPLETED', null, null, null),
                 ('given up', 'FAILED', 'poison', null, null),
                 ('left', 'IN_PROGRESS', null, null, 9),
                 ('tried', 'IN_PROGRESS', null, null, 1),
                 ('waits', 'IN_PROGRESS', null, now() + interval '1 hour', 9),
                 ('requeued', 'IN_PROGRESS', null, null, 9),
                 ('in a letter', 'FAILED', 'poison', null, 9),
                 ('discarded', 'FAILED', 'poison', null, 9),
                 ('being requeued', 'FAILED', 'poison', null, null),
                 ('parked', 'FAILED', 'parked', null, null),
                 ('parked between runs', 'FAILED', 'parked', null, 9)
             ) as k (key, status, reason, not_before, claimed);
             insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker,
                 state, generation, times, failure_group, exchange, routing_key, body_size, updated_at)
             select '{tenant}', gen_random_uuid(), 'payments', l.key, now() - interval '9 days', 'poison', 1, 'q', 'w', l.state, 1, 1,
                 'g', '', '', 0, now() - interval '9 days'
             from (values ('requeued', 'requeued'), ('in a letter', 'waiting'), ('discarded', 'discarded'),
                 ('being requeued', 'requeueing'), ('parked between runs', 'waiting')) as l (key, state)"
        )
    };
    for tenant in [GONE, "acme"] {
        run(&mut world, &keys(tenant)).await;
    }
    let left = "select string_agg(key, ', ' order by key) from oncely.idempotency_keys where tenant = ";
    let kept = "being requeued, in a letter, parked, parked between runs, requeued, tried, waits";
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.text(&format!("{left}'acme'")).await.as_deref(), Some(kept));
    // An erasure closes the letters: what runs may still ask for stays, and it says so beforehand.
    run(
        &mut world,
        &format!("delete from oncely.idempotency_keys where tenant = '{GONE}' and key = 'parked'"),
    )
    .await;
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!((code, &said["found"]["young_keys"]), (4, &json!(2)), "{said} {notes}");
    run(
        &mut world,
        &format!("delete from oncely.idempotency_keys where tenant = '{GONE}' and key in ('tried', 'waits')"),
    )
    .await;
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!((code, &said["receipt"]["keys"]), (0, &json!(4)), "{said} {notes}");
}

#[tokio::test]
async fn a_key_is_remembered_from_the_last_word_on_it() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7 days").await;
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, fencing_token, owner,
             not_before, run_ends_at, steps)
         select 'acme', 'payments', k.key, 'IN_PROGRESS', 0, now() - interval '9 days', 1, 'run', now() + interval '1 hour',
             now() + interval '1 day', '{\"mail\": {\"state\": \"done\"}, \"charge\": {\"state\": \"started\", \"round\": 0, \"token\": 1}}'
         from (values ('failed'), ('released'), ('revoked'), ('settled'), ('requeued'), ('nothing')) as k (key);
         select oncely.fail_lease('acme', 'payments', 'failed', 1, 'boom');
         select oncely.release_lease('acme', 'payments', 'released', 1);
         select oncely.revoke_lease('acme', 'payments', 'revoked');
         update oncely.idempotency_keys set owner = null, run_ends_at = null, not_before = now() - interval '8 days'
         where key in ('settled', 'requeued', 'nothing');
         update oncely.idempotency_keys set status = 'FAILED', completed_at = now() - interval '8 days', reason = 'outcome_unknown'
         where key in ('settled', 'requeued');
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker,
             state, generation, times, failure_group, exchange, routing_key, body_size, updated_at)
         values ('acme', gen_random_uuid(), 'payments', 'requeued', now() - interval '8 days', 'outcome_unknown', 1, 'q', 'w', 'requeueing',
             1, 1, 'g', '', '', 0, now() - interval '8 days');
         select oncely.free_keys(array_agg(d.tenant), array_agg(d.id), true) from oncely.dead_letters as d;
         delete from oncely.dead_letters;
         select oncely.settle_claim('acme', 'payments', 'settled', false)",
    )
    .await;
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{output:?}");
    let left = "select string_agg(key, ', ' order by key) from oncely.idempotency_keys";
    assert_eq!(world.text(left).await.as_deref(), Some("failed, released, requeued, revoked, settled"));
}
