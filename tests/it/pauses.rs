//! A consumer that somebody has paused.

use serde_json::Value;
use testbed::Postgres;

use crate::support::gate::{Gate, WAITING};
use crate::support::{Login, World, message, servers};

const PAUSE: &str = "select oncely.pause_consumer('payments', null, 'a deployment', 'ana')";
const RESUME: &str = "select oncely.resume_consumer('payments', 'done', 'ana')";
const EFFECTS: &str = "select count(*) from app.effects";
/// A worker that obeys says so with its heartbeat.
const OBEYED: &str =
    "select count(*) from oncely.processes where consumers -> 0 -> 'paused' ->> 'reason' = 'a deployment'";

async fn world() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 1\nlanes = 1\nprefetch = 10");
    world.consumer("invoices", "");
    world.apply_topology().await;
    world
}

/// A worker that has given everything back holds no subscription.
const GIVEN_BACK: &str =
    "select count(*) from oncely.processes where consumers -> 0 -> 'unacknowledged' = '{}'";

/// INFLIGHT of the consumer in `oncely consumers list`.
async fn inflight(world: &World) -> Option<u64> {
    let listed = world.oncely(&["consumers", "list", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let consumers = listed["consumers"].as_array().unwrap();
    consumers.iter().find(|row| row["consumer"] == "payments")?["inflight"].as_u64()
}

async fn say(world: &mut World, what: &'static str) {
    sqlx::query(what).execute(&mut world.sql).await.unwrap();
}

#[tokio::test]
async fn a_pause_lets_what_has_begun_end_and_returns_the_rest() {
    let mut world = world().await;
    let worker = world.start("worker");
    let gate = Gate::shut(&world).await;
    world.publish("payments", message("acme", "begun"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    for key in ["k1", "k2", "k3"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    assert!(inflight(&world).await > Some(0), "one is at work");
    gate.open().await;
    world.wait_for(EFFECTS, 1).await;
    world.wait_for_line(&worker, "paused: not subscribed").await;
    // All of them are back, and the one that was at work is acknowledged.
    world.wait_for_ready(&world.queue("payments"), 3).await;
    assert_eq!(world.count(EFFECTS).await, 1);
    world.wait_for(GIVEN_BACK, 1).await;
    assert_eq!(inflight(&world).await, Some(0));
    // Others go on.
    world.publish("invoices", message("acme", "i"), "{}").await;
    world.wait_for(EFFECTS, 2).await;
    say(&mut world, RESUME).await;
    world.wait_for(EFFECTS, 5).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.audit where outcome <> 'completed'").await,
        0,
        "nothing ran twice"
    );
}

#[tokio::test]
async fn a_pause_outlives_the_worker_and_ends_by_itself() {
    let mut world = world().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 2).await;
    world.stop(worker).await;
    say(&mut world, "select oncely.pause_consumer('payments', clock_timestamp() + interval '20 s', 'a deployment', 'ana')").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start("worker");
    world.wait_for(OBEYED, 1).await;
    assert_eq!(world.count(EFFECTS).await, 0, "not even for a moment");
    let status = world.oncely(&["status", "--json"]).await;
    let object: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(object["processes"][0]["consumers"][0]["paused"]["reason"], "a deployment");
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_worker_stops_in_peace_while_it_is_paused() {
    let mut world = world().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 2).await;
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    world.stop(worker).await;
    world.wait_for("select count(*) from oncely.processes", 0).await;
}

#[tokio::test]
async fn what_a_worker_did_is_written_in_spans_up_to_its_end() {
    let mut world = world().await;
    let worker = world.start("worker");
    for key in ["k1", "k2", "k2"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for(EFFECTS, 2).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    let done = "select concat(sum(delivered), ' ', sum(completed), ' ', sum(duplicates), ' ',
            sum((select sum(d) from unnest(durations) as d)))
        from oncely.stats where consumer = 'payments'";
    assert_eq!(world.text(done).await.as_deref(), Some("3 2 1 3"));
}

async fn keys(world: &mut World) -> String {
    let left = "select coalesce(string_agg(key, ' ' order by key), '') from oncely.idempotency_keys";
    world.text(left).await.unwrap()
}

async fn collect(world: &World) {
    let done = world.oncely(&["gc", "run"]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn the_memory_of_a_consumer_stands_still_while_it_is_paused() {
    let mut world = World::new().await;
    world.consumer("payments", "retention = \"7d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    world.register("payments", "7d").await;
    // Two seconds from now each of them is past its retention; `over` has been since before the pause.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys
            (tenant, consumer, key, status, attempts, created_at, completed_at, reason, expires_at)
         select 'acme', 'payments', k.key, k.status::oncely.key_status, 1, k.at,
            case when k.status <> 'IN_PROGRESS' then k.at end, case when k.status = 'FAILED' then 'poison' end,
            case when k.key = 'claimed' then k.at + interval '7 days' end
         from (
            select key, status, now() - interval '7 days' + offset_by as at
            from (values
                ('claimed', 'COMPLETED', interval '2 s'), ('completed', 'COMPLETED', '2 s'), ('failed', 'FAILED', '2 s'),
                ('retried', 'IN_PROGRESS', '2 s'), ('over', 'COMPLETED', '-1 h')
            ) as v (key, status, offset_by)
         ) as k;
         select oncely.pause_consumer('payments', null, 'a deployment', 'ana')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let past = "select count(*) from oncely.idempotency_keys where created_at < clock_timestamp() - interval '7 days'";
    world.wait_for(past, 5).await;
    let plan = world.oncely(&["gc", "run", "--dry-run", "--json"]).await;
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let planned = |of: &str| plan["consumers"][0][of].as_u64().unwrap();
    assert_eq!((planned("completed"), planned("failed"), planned("in_progress")), (1, 0, 0), "{plan}");
    collect(&world).await;
    assert_eq!(keys(&mut world).await, "claimed completed failed retried");
    // Copies came meanwhile. They are found as what they are, whether they come before a collection or after it.
    for key in ["claimed", "completed", "failed"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    say(&mut world, RESUME).await;
    collect(&world).await;
    assert_eq!(keys(&mut world).await, "claimed completed failed retried");
    let worker = world.start("worker");
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    world.stop(worker).await;
    assert_eq!(world.count(EFFECTS).await, 0);
    // Once it has worked for as long as they are remembered, they go. The pause is then of long ago.
    sqlx::raw_sql(
        "update oncely.consumers
         set paused = (select range_agg(tstzrange(lower(r) - interval '1 h', upper(r) - interval '1 h')) from unnest(paused) as r);
         update oncely.idempotency_keys
         set created_at = created_at - interval '1 h', completed_at = completed_at - interval '1 h', expires_at = expires_at - interval '1 h'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    collect(&world).await;
    assert_eq!(keys(&mut world).await, "");
}

#[tokio::test]
async fn pauses_that_follow_each_other_are_counted_one_by_one() {
    let mut world = World::new().await;
    // An hour's pause each night for a week, one that ends in the future, and one of long ago: all in the past of the last day.
    let before = "select extract(epoch from timestamptz '2030-01-08 00:00+00' - oncely.forgotten_before(
            '2030-01-08 00:00+00', interval '2 days', paused
        ))::bigint / 3600
        from (select tstzmultirange(
            tstzrange('2029-01-01 00:00+00', '2029-12-01 00:00+00'), tstzrange('2030-01-05 01:00+00', '2030-01-05 02:00+00'),
            tstzrange('2030-01-06 01:00+00', '2030-01-06 02:00+00'), tstzrange('2030-01-07 01:00+00', '2030-01-07 02:00+00'),
            tstzrange('2030-01-07 23:00+00', null)
        ) as paused) as p";
    // Two days of work: one hour is missing at the end, and two in between.
    assert_eq!(world.count(before).await, 48 + 3);
}

#[tokio::test]
async fn pauses_are_counted_as_if_all_of_them_were_looked_at() {
    let mut world = World::new().await;
    // Word by word what the memory is: from the newest pause to the oldest, those that end within it make it longer.
    sqlx::raw_sql(
        "create function pg_temp.simply(at timestamptz, retention interval, paused tstzmultirange) returns timestamptz
         language plpgsql as $$
         declare before timestamptz := at - retention; span record;
         begin
            for span in select lower(p) as began, least(upper(p), at) as ended from unnest(paused) as p where lower(p) < at order by 1 desc loop
                exit when span.ended <= before;
                before := before - (span.ended - span.began);
            end loop;
            return before;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let wrong = "
        select count(*)
        from generate_series(1, 500) as n
        cross join lateral (
            select range_agg(tstzrange(b, b + make_interval(secs => length))) as paused
            from (
                select timestamptz '2030-01-01 00:00+00' - make_interval(secs => (random() * 100000 - 1000)::int + 0 * n) as b,
                    1 + (random() * random() * random() * 20000)::int as length
                from generate_series(0, (n % 40)) as g
            ) as one
        ) as p
        cross join lateral (select make_interval(secs => 1 + (random() * 50000)::int + 0 * n) as retention) as r
        where oncely.forgotten_before('2030-01-01 00:00+00', retention, paused)
            is distinct from pg_temp.simply('2030-01-01 00:00+00', retention, paused)";
    sqlx::query("set time zone 'UTC'").execute(&mut world.sql).await.unwrap();
    assert_eq!(world.count(wrong).await, 0);
}

#[tokio::test]
async fn a_pause_of_long_ago_counts_for_a_claim_that_is_remembered_longer_than_its_consumers_keys() {
    let mut world = World::new().await;
    world.consumer("payments", "retention = \"7d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    world.register("payments", "7d").await;
    // Claimed for a year, with a pause of two months in it: remembered for fourteen. Then it is paused for a moment.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys
            (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at)
         values ('acme', 'payments', 'claimed', 'COMPLETED', 1, now() - interval '400 days', now() - interval '400 days',
            now() - interval '35 days');
         update oncely.consumers
         set paused = tstzmultirange(tstzrange(now() - interval '300 days', now() - interval '240 days'));
         select oncely.pause_consumer('payments', null, 'a deployment', 'ana');
         select oncely.resume_consumer('payments', 'done', 'ana')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    collect(&world).await;
    assert_eq!(keys(&mut world).await, "claimed");
    sqlx::query("update oncely.consumers set paused = '{}'").execute(&mut world.sql).await.unwrap();
    collect(&world).await;
    assert_eq!(keys(&mut world).await, "");
}

#[tokio::test]
async fn a_consumer_that_is_resumed_does_not_wait_for_what_was_at_work_before_the_pause() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 1\nlanes = 2\nprefetch = 10\ndeadline = \"3m\"");
    world.configure("[postgres]\nstatement_timeout = \"3m\"\nlock_timeout = \"2m\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    let gate = Gate::shut(&world).await;
    world.publish("payments", message("acme", "slow"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    for key in ["k1", "k2", "k3"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    say(&mut world, RESUME).await;
    world.wait_within(std::time::Duration::from_secs(30), EFFECTS, 3).await;
    gate.open().await;
    world.wait_for(EFFECTS, 4).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.audit").await,
        4,
        "the slow one was acknowledged on the channel of before"
    );
}

#[tokio::test]
async fn a_worker_that_may_not_read_pauses_waits_and_is_told_what_to_grant() {
    let mut world = world().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let grant = format!(
        "revoke select on oncely.controls from oncely_worker;
         grant usage on schema app to {0}; grant insert on app.effects to {0}",
        login.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start_with("worker", "worker", &login.environment());
    world.wait_for_line(&worker, "select on oncely.controls").await;
    assert_eq!(world.count(EFFECTS).await, 0);
    sqlx::raw_sql("grant select on oncely.controls to oncely_worker").execute(&mut world.sql).await.unwrap();
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn nothing_is_taken_before_pauses_were_read_and_the_process_is_seen_all_the_same() {
    let mut world = world().await;
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table oncely.controls in access exclusive mode")
        .execute(&mut other)
        .await
        .unwrap();
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start("worker");
    world
        .wait_for(
            "select count(*) from oncely.processes where state = 'unready' and reason like '%pauses%'",
            1,
        )
        .await;
    assert_eq!(world.count(EFFECTS).await, 0);
    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn each_kind_of_process_is_seen_with_the_rights_of_its_role_alone() {
    let mut world = world().await;
    for kind in ["worker", "relay"] {
        let login = Login::create(&mut world, &format!("oncely_{kind}")).await;
        if kind == "worker" {
            let grant = format!("grant usage on schema app to {}", login.name);
            sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
        }
        let process = world.start_with(kind, kind, &login.environment());
        world.wait_for(&format!("select count(*) from oncely.processes where kind = '{kind}'"), 1).await;
        world.stop(process).await;
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn a_pause_on_the_new_primary_is_obeyed_though_the_old_one_lives_on() {
    let mut old = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = old.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let worker = world.start_with("worker", "worker", &environment);
    world.publish("payments", message("acme", "k1"), "{}").await;
    world.wait_for(EFFECTS, 1).await;
    world.wait_for("select count(*) from oncely.processes", 1).await;
    let new = old.standby().await.unwrap();
    old.wait_for_standby().await.unwrap();
    new.promote().await.unwrap();
    let port = url::Url::parse(&new.url()).unwrap().port().unwrap();
    proxy.retarget(format!("127.0.0.1:{port}").parse().unwrap());
    // All but the heartbeat's: its connection holds.
    let ended = "select count(*) from (
            select pg_terminate_backend(pid) from pg_stat_activity
            where application_name like 'oncely worker %' and application_name not like '%heartbeat' offset 0
        ) as ended";
    assert!(world.count(ended).await > 0);
    let database = world.database.url().rsplit('/').next().unwrap().to_owned();
    let mut there = url::Url::parse(&new.url()).unwrap();
    there.set_path(&database);
    world.sql = <sqlx::PgConnection as sqlx::Connection>::connect(there.as_str()).await.unwrap();
    world.publish("payments", message("acme", "k2"), "{}").await;
    world.wait_for(EFFECTS, 2).await;
    say(&mut world, PAUSE).await;
    world.wait_for(OBEYED, 1).await;
    world.wait_for_line(&worker, "paused: not subscribed").await;
    world.stop(worker).await;
    old.kill().unwrap();
}
