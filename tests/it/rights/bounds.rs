//! Values that PostgreSQL holds and a program does not: they don't get in, and where they are all the same they end nothing.

use lapin::types::FieldTable;
use testbed::Redis;

use super::run;
use crate::support::{Login, World};

#[tokio::test]
async fn every_time_of_every_table_has_bounds() {
    let mut world = World::new().await;
    let unbounded = "select string_agg(c.relname || '.' || a.attname, ' ')
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid = 'timestamptz'::regtype
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and c.relname <> '_sqlx_migrations'
          and not exists (
              select from pg_constraint as k
              where k.conrelid = c.oid and k.contype = 'c' and a.attnum = any (k.conkey)
                and pg_get_constraintdef(k.oid) like '%1970-01-01%' and pg_get_constraintdef(k.oid) like '%9999-12-31%'
          )";
    assert_eq!(world.text(unbounded).await, None);
    // A week's partition that is made later has them, too.
    run(
        &mut world,
        "select oncely.make_audit_partitions(now() + interval '200 days', now() + interval '201 days')",
    )
    .await;
    for time in ["infinity", "-infinity", "270000-01-01", "4000-01-01 BC"] {
        let insert = format!(
            "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker) values ('a', '{time}', 1, 'c', 'k', 'q', 'completed', 'w')"
        );
        assert_eq!(super::code_of(&mut world.sql, &insert).await.as_deref(), Some("23514"), "{time}");
    }
}

/// As rows of before the constraints, or of a superuser who knows better.
const PLANTED: &str = "
    do $$
    declare
        wall record;
    begin
        for wall in
            select k.conrelid::regclass as place, k.conname from pg_constraint as k join pg_class as c on c.oid = k.conrelid
            where c.relnamespace = 'oncely'::regnamespace and k.contype = 'c' and not c.relispartition
        loop
            execute format('alter table %s drop constraint %I', wall.place, wall.conname);
        end loop;
    end $$;
    insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, key, fingerprint)
    select 'acme', gen_random_uuid(), 'identity', at, ends, 'payments', key, print
    from (values
        (timestamptz '270000-01-01', timestamptz 'infinity', 'k', sha256('')),
        ('-infinity', '-infinity', 'k', sha256('')),
        (now(), '290000-01-01', repeat('k', 300), sha256('')),
        (now(), now(), '', null),
        (now(), 'infinity', null, 'x'::bytea)
    ) as v (at, ends, key, print);
    insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, message_id, headers, payload, state, ordering_key, ordering_number)
    select 'acme', gen_random_uuid(), at, due, exchange, key, id, headers, 'x', state, ordering_key, case when ordering_key is not null then 1 end
    from (values
        (timestamptz '-infinity', timestamptz '-infinity', '', 'QUEUE', 'early', null::jsonb, 'pending', null),
        ('infinity', now(), '', 'QUEUE', 'late', null, 'pending', null),
        ('270000-01-01', now(), '', 'QUEUE', 'later', null, 'pending', 'in order'),
        (now(), now(), '', 'QUEUE', 'number', '{\"n\": 1e400}', 'pending', null),
        (now(), now(), '', 'QUEUE', 'number in order', '{\"n\": 1e400}', 'pending', 'stuck'),
        (now(), now(), '', 'QUEUE', 'deep', (repeat('{\"F\":', 200) || '1' || repeat('}', 200))::jsonb, 'pending', null),
        (now(), now(), '', 'QUEUE', 'list', '[1]', 'pending', null),
        (now(), now(), '', 'QUEUE', 'header', jsonb_build_object(repeat('h', 300), 1), 'pending', null),
        (now(), now(), '', repeat('r', 300), 'key', null, 'pending', null),
        (now(), now(), repeat('e', 300), 'QUEUE', 'exchange', null, 'pending', null),
        (now(), now(), '', 'QUEUE', repeat('i', 300), null, 'pending', null),
        ('infinity', '-infinity', '', 'QUEUE', 'parked', null, 'parked', null),
        (now(), 'infinity', '', 'QUEUE', 'never', null, 'pending', null)
    ) as v (at, due, exchange, key, id, headers, state, ordering_key);
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at, response, reason)
    values ('acme', 'payments', 'k', 'COMPLETED', -1, '-infinity', 'infinity', '270000-01-01', '1e400', null),
        ('acme', 'payments', 'k2', 'FAILED', 2147483647, 'infinity', '-infinity', null, null, 'poison'),
        ('acme', 'payments', 'k3', 'IN_PROGRESS', 1, '-infinity', null, '-infinity', null, null);
    insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
    select 'acme', at, -1, 'payments', 'k', 'q', 'completed', 'w' from (values (timestamptz 'infinity'), ('-infinity'), ('270000-01-01')) as v (at);
    insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
        failure_group, exchange, routing_key, fingerprint, properties, headers, body, body_size, updated_at, swept_at)
    select 'acme', gen_random_uuid(), 'payments', 'k2', at, 'poison', -1, 'q', 'w', state, -1, -1, 'g', '', 'q', '', '{\"n\": 1e400}', '{\"n\": 1e400}', '', -1, at, at
    from (values (timestamptz 'infinity'), ('-infinity'), ('270000-01-01')) as v (at), unnest(array['waiting', 'discarded']) as state";

#[tokio::test]
async fn nobody_makes_partitions_for_thousands_of_years() {
    let mut world = World::new().await;
    for call in [
        "oncely.make_audit_partition('9000-01-01')",
        "oncely.make_audit_partition('infinity')",
        "oncely.make_audit_partition(null)",
        "oncely.make_audit_partitions('-infinity', now())",
        "oncely.make_audit_partitions('1000-01-01', now())",
        "oncely.make_audit_partitions(now(), null)",
    ] {
        let text = format!("select {call}");
        assert_eq!(super::code_of(&mut world.sql, &text).await.as_deref(), Some("ONC11"), "{call}");
    }
}

#[tokio::test]
async fn who_collects_deletes_no_key_that_is_still_remembered() {
    let mut world = World::new().await;
    run(
        &mut world,
        // Nothing is past its end by a clock that nobody has looked at.
        "select oncely.observe_clock();
         select oncely.register_consumer('payments', '10 days', '1 day', 'body', 'dead_letter', 'w');
         insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at, reason)
         select 'acme', consumer, key, status::oncely.key_status, 1, now() - age, case when status <> 'IN_PROGRESS' then now() - age end, ends,
             case when status = 'FAILED' then 'poison' end
         from (values
             ('payments', 'young', 'COMPLETED', interval '9 days', null::timestamptz),
             ('payments', 'young and failed', 'FAILED', '9 days', null),
             ('payments', 'young and at work', 'IN_PROGRESS', '9 days', null),
             ('payments', 'said so', 'COMPLETED', '11 days', now() + interval '1 hour'),
             ('unknown', 'old', 'COMPLETED', '900 days', null),
             ('payments', 'old', 'COMPLETED', '11 days', null),
             ('payments', 'old and failed', 'FAILED', '11 days', null),
             ('payments', 'old and left', 'IN_PROGRESS', '11 days', null),
             ('unknown', 'ended', 'COMPLETED', '1 hour', now() - interval '1 minute'),
             ('payments', 'waits', 'IN_PROGRESS', '11 days', null),
             ('payments', 'leased lately', 'IN_PROGRESS', '11 days', null),
             ('payments', 'parked', 'FAILED', '11 days', null)
         ) as v (consumer, key, status, age, ends);
         update oncely.idempotency_keys set not_before = now() + interval '5 days' where key = 'waits';
         update oncely.idempotency_keys set reason = 'parked' where key = 'parked';
         update oncely.idempotency_keys set fencing_token = extract(epoch from now()) * 1000000,
             steps = '{\"charge\": {\"state\": \"started\"}}' where key = 'leased lately'",
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
        let left = "select string_agg(key, ', ' order by key) from oncely.idempotency_keys";
        assert_eq!(
            world.text(left).await.as_deref(),
            Some("leased lately, old, parked, said so, waits, young, young and at work, young and failed"),
            "{role}"
        );
        run(&mut world, "rollback").await;
    }
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 12);
}

#[tokio::test]
async fn a_collection_ends_where_it_may_not_delete_what_it_finds() {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 2");
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    // More of one time than a batch has, protected by another rule than the collection knows.
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', n::text, 'COMPLETED', 1, now() - interval '40 days', now() - interval '40 days'
         from generate_series(1, 5) as n;
         create or replace function oncely.delete_keys(
             places tid[], status oncely.key_status default null, unit text default ''
         ) returns bigint
         language sql security definer
         as $$
             with gone as (delete from oncely.idempotency_keys where ctid = any (places) and key = '5' returning 1)
             select count(*) from gone
         $$",
    )
    .await;
    let operator = Login::create(&mut world, "oncely_operator").await;
    let environment = [("DATABASE_URL", operator.url.as_str())];
    let output = world.oncely_with(&["gc", "run", "--json"], &environment).await;
    assert!(output.status.success(), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = world.count("select count(*) from oncely.idempotency_keys").await;
    assert_eq!(said["consumers"][0]["completed"], 5 - left, "no more than what is gone: {said}");
    assert!(left >= 4, "{said}");
    operator.drop_now(&mut world).await;
}

#[tokio::test]
async fn rows_that_no_program_can_hold_end_none_and_keep_nobody() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "");
    world.configure("[relay]\npoll = \"20ms\"\n[events]\nretry = { delays = [\"50ms\"], max_attempts = 2 }");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    run(&mut world, &PLANTED.replace("QUEUE", &queue)).await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    // What can be published is, by its time or not; the rest is set aside with a reason, and holds up nobody else.
    let aside = "select count(*) from oncely.events where state = 'parked' and reason = 'unreadable'";
    world.wait_for(aside, 8).await;
    world.wait_for("select count(*) from oncely.events", 10).await;
    let ordered =
        format!("select oncely.emit('', '{queue}', 'good', tenant => 'acme', ordering_key => 'good')");
    run(&mut world, &ordered).await;
    world.wait_for("select count(*) from oncely.events", 10).await;
    world.wait_for_ready(&queue, 4).await;

    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["audit", "list"],
        &["audit", "list", "--json"],
        &["explain", "k"],
        &["explain", "k2", "--tenant", "acme"],
        &["explain", "k3", "--tenant", "acme", "--json"],
        &["outbox", "list"],
        &["outbox", "list", "--json"],
        &["outbox", "retry", "--all", "--dry-run"],
        &["failed", "groups"],
        &["failed", "list"],
        &["failed", "list", "--json"],
        &["failed", "discard", "--all", "--dry-run"],
        &["gc", "run", "--dry-run"],
        &["gc", "run"],
    ] {
        let output = world.oncely(arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked") && output.status.code() < Some(70), "{arguments:?}: {said}");
    }
    assert!(!relay.output().contains("panicked"), "{}", relay.output());
    world.stop(relay).await;
}
