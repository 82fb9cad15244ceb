//! Records that processes write for others.

use testbed::Redis;

use super::{LIMIT, LONG, until};
use crate::support::World;

#[tokio::test]
async fn no_mirror_record_ends_a_relay_in_256_mib() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.with_redis(&redis.url(), "");
    world.configure("[relay]\nbatch = 5000");
    sqlx::raw_sql(
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         select 'acme', gen_random_uuid(), 'mirror', now(), now() + interval '1 day', 'payments',
             decode(repeat(md5(n::text), 4096), 'hex')
         from generate_series(1, 1000) as n",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut relay = world.start("relay");
    until(&mut world, &mut relay, "select count(*) from oncely.mirror_queue", 0).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn no_heartbeat_ends_a_command_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    world.consumer("payments", "");
    // The most that a login's heartbeats may hold.
    sqlx::raw_sql(
        "insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at,
             last_seen_at, consumers)
         select gen_random_uuid(), 'worker', 'w' || n, '1', 'h', n, '', 'ready', 'app', now(), now(),
             (select jsonb_agg('{\"\": 0}'::jsonb) from generate_series(1, 26000))
         from generate_series(1, 100) as n;
         insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at,
             last_seen_at, consumers)
         select gen_random_uuid(), 'worker', 'other', '1', 'h', 1, '', 'ready', 'other', now(), now(),
             '[{\"consumer\": \"payments\"}]'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut status = world.start_verb("oncely", &["status", "--json"], "status", &[]);
    status.wait_for_end(LONG).await.unwrap();
    let output = status.output();
    assert!(output.contains("\"other\""), "{output}");
}
