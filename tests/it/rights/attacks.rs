//! Each role tries what its rights don't say: refused by code, or without effect.

use sqlx::Connection as _;

use super::{code_of, run, state};
use crate::support::{Login, World};

/// What there is to read, to change and to forge.
const PREY: &str = "
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, response, reason)
    values ('acme', 'payments', 'done', 'COMPLETED', 1, now(), now(), oncely.stored_fingerprint(sha256('{}')), '{\"card\": 4711}', null),
        ('acme', 'payments', 'open', 'IN_PROGRESS', 1, now(), null, oncely.stored_fingerprint(sha256('{}')), null, null),
        ('acme', 'payments', 'gone', 'FAILED', 6, now(), now(), oncely.stored_fingerprint(sha256('{}')), null, 'poison'),
        ('acme', 'invoices', 'done', 'COMPLETED', 1, now(), now(), oncely.stored_fingerprint(sha256('{}')), '{\"own\": 1}', null);
    insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, key)
    values ('acme', gen_random_uuid(), 'identity', now(), now() + interval '5 days', 'payments', 'done');
    insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
    values ('acme', now(), 1, 'payments', 'done', 'q', 'completed', 'w');
    insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
        failure_group, exchange, routing_key, fingerprint, properties, headers, body, body_size, updated_at)
    values ('acme', '00000000-0000-8000-8000-000000000001', 'payments', 'gone', now(), 'poison', 6, 'q', 'w', 'waiting', 1, 1, 'g', '', 'q',
        sha256('{}'), '{}', '{}', 'secret', 6, now());
    select oncely.emit('orders', 'r', 'secret', tenant => 'acme', ordering_key => 'o')";

async fn prey() -> World {
    let mut world = World::new().await;
    run(&mut world, PREY).await;
    world
}

/// Tries each of these as a login of the role: refused with the code, or, where that is empty, done without effect.
async fn try_all(world: &mut World, login: &Login, attacks: &[(&str, &str)]) {
    let before = state(world).await;
    let mut sql = login.connect().await;
    for (statement, expected) in attacks {
        let found = code_of(&mut sql, statement).await.unwrap_or_default();
        assert_eq!(found, *expected, "{}: {statement}", login.name);
        let after = state(world).await;
        assert_eq!(after, before, "{} has changed something: {statement}", login.name);
    }
    sql.close().await.unwrap();
}

/// Not for any of the roles but those that are left out.
const ANYBODYS: &[(&str, &str)] = &[
    ("insert into oncely.rights select 'acme', 'emit', '', session_user, now(), 'me'", "42501"),
    ("select oncely.check_right('emit', '', 'acme')", "42501"),
    ("select oncely.drop_audit_partitions(now() + interval '1 year')", "42501"),
    ("delete from oncely.audit", "42501"),
    ("delete from oncely.idempotency_keys", "42501"),
    ("delete from oncely.dead_letters", "42501"),
    ("delete from oncely.events", "42501"),
    ("delete from oncely.mirror_queue", "42501"),
    ("delete from oncely.ordering_keys", "42501"),
    ("select; lock table oncely.idempotency_keys in share row exclusive mode", "42501"),
    ("select; lock table oncely.dead_letters in exclusive mode", "42501"),
    ("select; lock table oncely.events in access exclusive mode", "42501"),
    ("update oncely.audit set worker = 'somebody else'", "42501"),
    ("insert into oncely.events select * from oncely.events", "42501"),
    ("set role oncely_operator", "42501"),
    ("set session authorization postgres", "42501"),
    ("update oncely.secrets set secret = ''", "42501"),
    ("select secret from oncely.secrets", "42501"),
];

#[tokio::test]
async fn a_consumer_claims_fails_and_reads_nothing_but_what_was_granted() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    let attacks = [
        // Nothing was granted yet.
        ("select oncely.claim('acme', 'invoices', 'done', sha256('{}'))", "ONC16"),
        ("select oncely.fail('acme', 'invoices', 'new', null, 1, 'x', 'poison')", "ONC16"),
    ];
    try_all(&mut world, &login, &attacks).await;
    run(&mut world, &format!("select oncely.grant_right('{}', 'consume', 'invoices', 'acme')", login.name))
        .await;
    let long = "x".repeat(256);
    let huge = format!(
        "do $$ begin perform oncely.claim('acme', 'invoices', 'new', null); perform oncely.complete('acme', 'invoices', 'new', worker => '{long}'); end $$"
    );
    let attacks = [
        // Claimed and completed before the message comes, its worker finds it done.
        ("select oncely.claim('acme', 'payments', 'next', null)", "ONC16"),
        ("select oncely.claim('other', 'invoices', 'next', null)", "ONC16"),
        ("select oncely.claim('*', 'invoices', 'next', null)", "ONC16"),
        ("select oncely.claim('acme', 'payments', 'done', null)", "ONC16"),
        ("select oncely.claim('acme', 'payments', 'open', null, on_conflict => 'duplicate')", "ONC16"),
        ("select oncely.fail('acme', 'payments', 'open', null, 2, 'x', 'poison')", "ONC16"),
        ("select oncely.fail('acme', 'payments', 'next', null, 1, 'x', 'poison')", "ONC16"),
        ("select oncely.complete('acme', 'payments', 'open')", "ONC16"),
        ("select oncely.complete('acme', 'invoices', 'done')", "ONC12"),
        ("begin; savepoint s; select oncely.claim('acme', 'payments', 'next', null)", "ONC16"),
        ("rollback", ""),
        // Without the payload.
        (
            "do $$ begin if (select response from oncely.claim('acme', 'invoices', 'done', null)) is not null then raise 'read'; end if; end $$",
            "",
        ),
        (
            "do $$ begin if (select response from oncely.claim('acme', 'invoices', 'done', null, on_conflict => 'duplicate')) is not null then raise 'read'; end if; end $$",
            "",
        ),
        (
            "do $$ begin if (select outcome from oncely.claim('acme', 'invoices', 'done', null)) <> 'conflict' then raise 'taken'; end if; end $$",
            "",
        ),
        // What no reader could hold.
        ("select oncely.claim('acme', 'invoices', 'next', null, retention => '270000 years')", "ONC11"),
        (
            "select oncely.claim('acme', 'invoices', 'next', null, retention => '270000 years -98500000 days')",
            "ONC11",
        ),
        ("select oncely.claim('acme', 'invoices', 'next', null, retention => '0')", "ONC11"),
        ("select oncely.claim('acme', 'invoices', 'next', null, retention => '367 days')", "ONC11"),
        ("select oncely.fail('acme', 'invoices', 'next', null, 1, 'x', delay => '367 days')", "ONC11"),
        ("select oncely.claim('acme', 'invoices', 'next', ''::bytea)", "ONC11"),
        ("select oncely.claim('acme', 'invoices', 'next', sha512('') || 'x')", "ONC11"),
        (
            "select oncely.fail('acme', 'invoices', 'next', null, 1, 'x', retention => '270000 years')",
            "ONC11",
        ),
        ("select oncely.fail('acme', 'invoices', 'next', null, 1, 'x', delay => '270000 years')", "ONC11"),
        ("select oncely.fail('acme', 'invoices', 'next', null, 1, 'x', delay => '-1 s')", "ONC11"),
        (
            "select oncely.fail('acme', 'invoices', 'next', null, 2147483647, 'x', max_attempts => 2147483647)",
            "ONC11",
        ),
        ("select oncely.fail('acme', 'invoices', 'next', null, 1, 'x', error_code => 'anything')", "ONC11"),
        (huge.as_str(), "ONC11"),
        // By another way.
        ("select oncely.emit('orders', 'r', 'x', tenant => 'acme')", "42501"),
        ("select * from oncely.rights", "42501"),
        ("select response from oncely.idempotency_keys", "42501"),
        (
            "select oncely.free_keys(array['acme'], array['00000000-0000-8000-8000-000000000001'::uuid])",
            "42501",
        ),
        ("select oncely.settle_claim('acme', 'payments', 'gone', false)", "42501"),
        ("select oncely.grant_right(session_user, 'consume', 'payments', 'acme')", "42501"),
        (
            "select oncely.write_replies('payments', now(), array['acme'], array['done'], array[gen_random_uuid()], array['mine'], array['m'], array['c'], array['{}'::jsonb])",
            "42501",
        ),
        ("set role oncely_worker", "42501"),
    ];
    try_all(&mut world, &login, &attacks).await;
    try_all(&mut world, &login, ANYBODYS).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn an_infinite_interval_is_refused_where_postgresql_has_one() {
    let mut world = World::new().await;
    let version = world.count("select current_setting('server_version_num')::bigint").await;
    let expected = if version >= 170_000 { "ONC11" } else { "22007" };
    let call = "select oncely.claim('acme', 'invoices', 'k', null, retention => 'infinity')";
    assert_eq!(code_of(&mut world.sql, call).await.as_deref(), Some(expected));
}

#[tokio::test]
async fn an_emitter_reaches_the_exchanges_that_are_listed_for_its_tenant() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_emitter").await;
    try_all(&mut world, &login, &[("select oncely.emit('orders', 'r', 'x', tenant => 'acme')", "ONC16")])
        .await;
    run(&mut world, &format!("select oncely.grant_right('{}', 'emit', 'orders', 'acme')", login.name)).await;
    let forged = "row(1, 1, false, null, 'acme', 'c', 'k', null, '', null, null, '', '', 'q', null, null, null, null, null, null, null)::oncely.message";
    let by_cause = format!("select oncely.emit('orders', 'r', 'x', tenant => 'other', cause => {forged})");
    let default = format!(
        "select oncely.emit('', 'payments', 'x', '{{\"x-tenant-id\": \"acme\"}}', cause => {forged})"
    );
    let attacks = [
        // Any queue there is, by the relay's rights.
        ("select oncely.emit('', 'payments', 'x', '{\"x-tenant-id\": \"acme\"}', tenant => 'acme')", "ONC16"),
        (default.as_str(), "ONC16"),
        ("select oncely.emit('payments', 'r', 'x', tenant => 'acme')", "ONC16"),
        ("select oncely.emit('payments', 'r', '{}'::jsonb, tenant => 'acme')", "ONC16"),
        ("select oncely.emit('payments', 'r', ''::bytea, tenant => 'acme')", "ONC16"),
        ("select oncely.emit('orders', 'r', 'x', tenant => 'other')", "ONC16"),
        ("select oncely.emit('orders', 'r', 'x')", "ONC16"),
        (by_cause.as_str(), "ONC16"),
        ("select oncely.emit('orders', 'r', 'x', tenant => 'acme', delay => '270000 years')", "ONC05"),
        (
            "select oncely.emit('orders', 'r', 'x', tenant => 'acme', delay => '270000 years -98500000 days')",
            "ONC05",
        ),
        ("select oncely.emit('orders', 'r', 'x', tenant => 'acme', delay => '-1 s')", "ONC05"),
        ("select oncely.emit('orders', 'r', 'x', tenant => 'acme', delay => '367 days')", "ONC05"),
        (
            "select oncely.add_event('', 'payments', '', null, null, null, null, null, null, null, null, null, null, 'acme', null)",
            "42501",
        ),
        ("select oncely.claim('acme', 'payments', 'next', null)", "42501"),
        ("select * from oncely.rights", "42501"),
        // Its limits are not its to raise.
        ("select oncely.limit_events('acme', 1000000000, null, 'me', null)", "42501"),
        ("update oncely.cell set tenant_events = 1000000000", "42501"),
        ("select oncely.grant_right(session_user, 'emit', '', '*')", "42501"),
        ("set role oncely_worker", "42501"),
    ];
    try_all(&mut world, &login, &attacks).await;
    try_all(&mut world, &login, ANYBODYS).await;
    let mut sql = login.connect().await;
    assert_eq!(code_of(&mut sql, "select oncely.emit('orders', 'r', 'x', tenant => 'acme')").await, None);
    // A limit that every session may set does not hold a session: it only lowers the one that is not its to set.
    let most = "begin; set local oncely.max_event_bytes = 2000000000; select oncely.emit('orders', 'r', convert_to(repeat('x', 16777217), 'UTF8'), tenant => 'acme')";
    assert_eq!(code_of(&mut sql, most).await.as_deref(), Some("ONC04"));
    sql.close().await.unwrap();
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_key_is_kept_no_longer_than_a_year_or_its_consumers_retention() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    run(
        &mut world,
        &format!(
            "select oncely.grant_right('{0}', 'consume', 'long', 'acme'), oncely.grant_right('{0}', 'consume', 'new', 'acme'),
                 oncely.register_consumer('long', '500 days', '1 day', 'body', 'dead_letter', 'w')",
            login.name
        ),
    )
    .await;
    let mut sql = login.connect().await;
    for (consumer, retention, expected) in [
        ("new", "366 days", None),
        ("new", "366 days 1 second", Some("ONC11")),
        ("long", "500 days", None),
        ("long", "501 days", Some("ONC11")),
        // They compare as another time than they are when they are added.
        ("new", "200 years -71634 days", Some("ONC11")),
        ("new", "-199 years 71641 days", Some("ONC11")),
    ] {
        let claim = format!(
            "select oncely.claim('acme', '{consumer}', gen_random_uuid()::text, null, '{retention}')"
        );
        assert_eq!(code_of(&mut sql, &claim).await.as_deref(), expected, "{consumer} {retention}");
    }
    sql.close().await.unwrap();
    login.drop_now(&mut world).await;
}

/// Longer than ten days as PostgreSQL compares intervals, and in the past where it is subtracted; and the other way round.
const CROOKED: [&str; 4] = [
    "-1000 years 363650 days",
    "5000000 years -1799996350 days",
    "1000 years -356000 days",
    "11 months -329 days",
];

#[tokio::test]
async fn no_interval_is_another_time_when_it_is_added_than_when_it_is_compared() {
    let mut world = World::new().await;
    run(
        &mut world,
        "select oncely.register_consumer('payments', '10 days', '1 day', 'body', 'dead_letter', 'w');
         select oncely.set_tenant_retention('acme', '20 days', 'me', 'a test');
         insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select tenant, 'payments', 'k', 'COMPLETED', 1, now(), now() from (values ('acme'), ('other')) as v (tenant)",
    )
    .await;
    let (worker, relay, operator) = (
        Login::create(&mut world, "oncely_worker").await,
        Login::create(&mut world, "oncely_relay").await,
        Login::create(&mut world, "oncely_operator").await,
    );
    for time in CROOKED {
        for (login, call) in [
            (
                &worker,
                format!(
                    "oncely.register_consumer('payments', '{time}', '1 day', 'body', 'dead_letter', 'w')"
                ),
            ),
            (
                &worker,
                format!("oncely.register_consumer('more', '10 days', '{time}', 'body', 'dead_letter', 'w')"),
            ),
            (&relay, format!("oncely.register_mirror_ttl('{time}')")),
            (&operator, format!("oncely.set_retention('payments', '{time}', null, 'me', 'why')")),
            (&operator, format!("oncely.set_tenant_retention('acme', '{time}', 'me', 'why')")),
        ] {
            let mut sql = login.connect().await;
            // A call may be refused, or store its time in seconds.
            let _ = code_of(&mut sql, &format!("select {call}")).await;
            sql.close().await.unwrap();
        }
    }
    let crooked = "select count(*) from (
            select retention from oncely.consumers union all select redelivery_horizon from oncely.consumers
            union all select retention from oncely.tenant_limits union all select mirror_ttl from oncely.cell
        ) as i
        where extract(epoch from now() + retention - now()) <> extract(epoch from retention)";
    assert_eq!(world.count(crooked).await, 0);
    // A day has 25 hours where the session is, and a lease or a run of one day 24.
    run(&mut world, "set timezone = 'Europe/Berlin'").await;
    for (time, seconds) in [("24 hours", 86_400), ("1 day", 86_400), ("30 days", 30 * 86_400)] {
        let ends = format!(
            "select extract(epoch from begins + oncely.checked_time('a time', '{time}', '0', '30 days') - begins)::bigint
             from (values (timestamptz '2026-10-24 12:00')) as v (begins)"
        );
        assert_eq!(world.count(&ends).await, seconds, "{time}");
    }
    run(&mut world, "reset timezone").await;
    for login in [&relay, &operator] {
        let mut sql = login.connect().await;
        let deletes = "select oncely.delete_keys(array(select ctid from oncely.idempotency_keys))";
        assert_eq!(code_of(&mut sql, deletes).await, None);
        sql.close().await.unwrap();
    }
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 2);
    // No stored retention makes a collection fail.
    run(
        &mut world,
        "select oncely.forgotten_before(now(), i::interval, '{[2026-01-01,2026-02-01)}')
         from unnest(array['-1000 years', '-1 second', '100000 years', '178000000 years']) as i",
    )
    .await;
    for login in [worker, relay, operator] {
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn clients_whose_tenant_has_too_many_events_are_refused_and_nobody_else_is() {
    let mut world = World::new().await;
    world.configure("");
    let (client, worker) =
        (Login::create(&mut world, "oncely_emitter").await, Login::create(&mut world, "oncely_worker").await);
    run(&mut world, &format!("select oncely.grant_right('{}', 'emit', 'orders', '*')", client.name)).await;
    let limit = async |world: &World, arguments: &[&str]| {
        let output = world.oncely(&[&["tenant", "limit", "acme"], arguments].concat()).await;
        assert!(output.status.success(), "{output:?}");
    };
    limit(&world, &["--events", "2", "--note", "a test"]).await;
    let (acme, other) = (
        "select oncely.emit('orders', 'r', 'x', tenant => 'acme')",
        "select oncely.emit('orders', 'r', 'x', tenant => 'other')",
    );
    let count = "select oncely.count_letters(100000, 1 << 30)";
    let mut sql = client.connect().await;
    let mut of_worker = worker.connect().await;
    for _ in 0..2 {
        assert_eq!(code_of(&mut sql, acme).await, None);
        run(&mut world, count).await;
    }
    assert_eq!(code_of(&mut sql, acme).await.as_deref(), Some("ONC22"));
    assert_eq!(code_of(&mut sql, other).await, None, "another tenant's room is its own");
    assert_eq!(code_of(&mut of_worker, acme).await, None, "a handler's events are its effects");
    assert_eq!(code_of(&mut world.sql, acme).await, None, "the owner's are the operator's");
    // By bytes: of what waits, not of what comes.
    limit(&world, &["--events", "100", "--event-bytes", "4"]).await;
    assert_eq!(code_of(&mut sql, acme).await, None);
    run(&mut world, count).await;
    assert_eq!(code_of(&mut sql, acme).await.as_deref(), Some("ONC22"));
    let output = world.oncely(&["tenant", "usage", "--json"]).await;
    let usage: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = usage["tenants"].as_array().unwrap().iter().find(|row| row["tenant"] == "acme").unwrap();
    let numbers =
        ["events", "event_bytes", "most_events", "most_event_bytes"].map(|name| row[name].as_i64().unwrap());
    assert_eq!(numbers, [5, 5, 100, 4], "{usage}");
    // What is published makes room.
    run(&mut world, &format!("delete from oncely.events where tenant = 'acme'; {count}")).await;
    assert_eq!(code_of(&mut sql, acme).await, None);
    limit(&world, &["--default"]).await;
    assert_eq!(world.count("select count(*) from oncely.tenant_limits").await, 0);
    // The default is the owner's.
    run(&mut world, &format!("update oncely.cell set tenant_events = 1; {count}")).await;
    assert_eq!(code_of(&mut sql, acme).await.as_deref(), Some("ONC22"));
    sql.close().await.unwrap();
    of_worker.close().await.unwrap();
    for login in [client, worker] {
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn a_worker_changes_no_key_that_is_done_and_writes_no_event_past_emit() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let attacks = [
        // Done is not open again: not by an update, nor in a transaction that has claimed something else.
        ("update oncely.idempotency_keys set status = 'IN_PROGRESS', completed_at = null where status <> 'IN_PROGRESS'", ""),
        ("update oncely.idempotency_keys set response = '{}' where key = 'done'", ""),
        (
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at) values ('acme', 'payments', 'done', 'IN_PROGRESS', 1, now())
             on conflict (tenant, consumer, key) do update set status = 'IN_PROGRESS', completed_at = null",
            "42501",
        ),
        ("update oncely.idempotency_keys set key = 'mine' where key = 'open'", "42501"),
        ("update oncely.idempotency_keys set tenant = 'mine' where key = 'open'", "42501"),
        ("update oncely.idempotency_keys set created_at = now()", "42501"),
        ("update oncely.idempotency_keys set attempts = 2147483647 where key = 'open'", "23514"),
        ("update oncely.idempotency_keys set not_before = '270000-01-01' where key = 'open'", "23514"),
        ("delete from oncely.idempotency_keys", "42501"),
        ("alter table oncely.idempotency_keys disable row level security", "42501"),
        ("update oncely.dead_letters set key = 'mine'", "42501"),
        ("update oncely.dead_letters set tenant = 'mine'", "42501"),
        ("update oncely.dead_letters set updated_at = 'infinity'", "23514"),
        ("insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload) values ('acme', gen_random_uuid(), 'infinity', now(), '', 'q', '')", "42501"),
        ("insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags) values ('acme', gen_random_uuid(), 'mirror', '-infinity', now(), 'payments', decode(repeat('00', 16), 'hex'))", "23514"),
        ("insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker, login) values ('acme', now(), 1, 'c', 'k', 'q', 'completed', 'w', 'somebody')", "42501"),
        ("insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker) values ('acme', 'infinity', 1, 'c', 'k', 'q', 'completed', 'w')", "23514"),
        ("select oncely.free_keys(array['acme'], array['00000000-0000-8000-8000-000000000001'::uuid])", "42501"),
        ("select oncely.settle_claim('acme', 'payments', 'gone', false)", "42501"),
        ("select oncely.grant_right('postgres', 'emit', '', '*')", "42501"),
        ("select oncely.claim('acme', 'payments', 'next', null)", "42501"),
    ];
    try_all(&mut world, &login, &attacks).await;
    try_all(&mut world, &login, ANYBODYS).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_relay_rewrites_no_row_and_reads_no_response() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_relay").await;
    let attacks = [
        ("update oncely.idempotency_keys set tenant = 'mine'", "42501"),
        ("update oncely.idempotency_keys set key = 'mine'", "42501"),
        ("update oncely.idempotency_keys set status = 'IN_PROGRESS', completed_at = null", "42501"),
        // The one column that lets it lock rows.
        ("update oncely.idempotency_keys set not_before = now()", "42501"),
        ("select response from oncely.idempotency_keys", "42501"),
        ("select * from oncely.idempotency_keys", "42501"),
        (
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at) values ('a', 'c', 'k', 'IN_PROGRESS', 1, now())",
            "42501",
        ),
        ("update oncely.mirror_queue set tenant = 'mine'", "42501"),
        ("update oncely.mirror_queue set key = 'mine'", "42501"),
        ("update oncely.mirror_queue set expires_at = 'infinity'", "23514"),
        ("update oncely.ordering_keys set last_number = 0", "42501"),
        // None of it is due to go, whatever is asked for.
        ("select oncely.delete_keys(array(select ctid from oncely.idempotency_keys))", ""),
        ("select oncely.collect_dead_letters('infinity', 1000)", ""),
        ("select oncely.collect_ordering_keys('infinity', '', '', 1000)", ""),
        ("update oncely.events set payload = '', exchange = '', tenant = 'mine'", "42501"),
        ("update oncely.events set available_at = 'infinity'", "23514"),
        ("update oncely.dead_letters set state = 'waiting'", "42501"),
        ("select body from oncely.dead_letters", "42501"),
        ("select oncely.emit('', 'q', 'x')", "42501"),
        ("select oncely.claim('acme', 'payments', 'next', null)", "42501"),
        (
            "select oncely.free_keys(array['acme'], array['00000000-0000-8000-8000-000000000001'::uuid])",
            "42501",
        ),
        ("select oncely.grant_right('postgres', 'emit', '', '*')", "42501"),
    ];
    try_all(&mut world, &login, &attacks).await;
    let others: Vec<_> = ANYBODYS.iter().copied().filter(|(call, _)| !call.contains("drop_audit")).collect();
    try_all(&mut world, &login, &others).await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn who_collects_letters_takes_none_that_waits_or_was_closed_a_moment_ago() {
    let mut world = prey().await;
    run(
        &mut world,
        "insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
            failure_group, exchange, routing_key, body_size, updated_at, swept_at)
         select 'acme', gen_random_uuid(), 'payments', key, now() - age, 'poison', 1, 'q', 'w', state, 1, 1, 'g', '', 'q', 1, now() - age, swept
         from (values
             ('old and waiting', interval '400 days', 'waiting', null::timestamptz),
             ('old and never swept', '400 days', 'discarded', null),
             ('young', '29 days', 'discarded', now()),
             ('old', '31 days', 'requeued', now())
         ) as v (key, age, state, swept);
         select oncely.observe_clock()",
    )
    .await;
    for role in ["oncely_relay", "oncely_operator"] {
        let login = Login::create(&mut world, role).await;
        let mut sql = login.connect().await;
        let collect = "select oncely.collect_dead_letters(now() + interval '100 years', 1000)";
        assert_eq!(code_of(&mut sql, collect).await, None);
        sql.close().await.unwrap();
        login.drop_now(&mut world).await;
        let left = "select string_agg(key, ', ' order by key) from oncely.dead_letters";
        assert_eq!(
            world.text(left).await.as_deref(),
            Some("gone, old and never swept, old and waiting, young"),
            "{role}"
        );
    }
}

#[tokio::test]
async fn events_go_by_the_relay_that_sent_them_or_with_a_record() {
    let mut world = prey().await;
    run(&mut world, "update oncely.events set state = 'parked', reason = 'unroutable'").await;
    let relay = Login::create(&mut world, "oncely_relay").await;
    let mut sql = relay.connect().await;
    let all = "(select array_agg(tenant) from oncely.events), (select array_agg(id) from oncely.events)";
    assert_eq!(code_of(&mut sql, &format!("select oncely.delete_events({all})")).await, None);
    assert_eq!(
        world.count("select count(*) from oncely.events").await,
        1,
        "what is parked waits for a person"
    );
    sql.close().await.unwrap();
    relay.drop_now(&mut world).await;
    let operator = Login::create(&mut world, "oncely_operator").await;
    let mut sql = operator.connect().await;
    for verb in ["retry_events", "discard_events"] {
        let change = format!(
            "select oncely.change_events('{verb}', now(), {all}, null, '{{\"all\": true}}', 'why', 'me')"
        );
        assert_eq!(code_of(&mut sql, &change).await, None, "{verb}");
        let record = format!(
            "select concat(tenant, ' ', split_part(actor, ' ', 1), ' ', count, ' ', filter, ' ', reason) from oncely.operator_actions where verb = '{verb}'"
        );
        let expected = format!("acme {} 1 {{\"all\": true}} why", operator.name);
        assert_eq!(world.text(&record).await, Some(expected), "{verb}");
    }
    assert_eq!(world.count("select count(*) from oncely.events").await, 0);
    sql.close().await.unwrap();
    operator.drop_now(&mut world).await;
}

#[tokio::test]
async fn an_operator_opens_no_key_but_by_the_functions_and_leaves_its_name() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_operator").await;
    let attacks = [
        ("update oncely.idempotency_keys set status = 'IN_PROGRESS', completed_at = null", "42501"),
        ("update oncely.idempotency_keys set status = 'COMPLETED'", "42501"),
        ("update oncely.idempotency_keys set not_before = now()", "42501"),
        ("update oncely.idempotency_keys set tenant = 'mine'", "42501"),
        ("update oncely.dead_letters set key = 'done'", "42501"),
        ("update oncely.dead_letters set tenant = 'mine'", "42501"),
        ("update oncely.mirror_queue set tenant = 'mine'", "42501"),
        // What is done stays done.
        ("select oncely.settle_claim('acme', 'payments', 'done', false)", ""),
        ("select oncely.settle_claim('acme', 'payments', 'gone', null)", "ONC11"),
        ("select oncely.grant_right('nobody of that name', 'emit', '', '*')", "42704"),
        ("select oncely.grant_right(session_user, 'consume', '', '*')", "ONC11"),
        ("select oncely.grant_right(session_user, 'consume', 'invoices', '')", "ONC11"),
        ("select oncely.grant_right(session_user, 'consume', 'invoices', null)", "ONC11"),
        ("select oncely.grant_right(session_user, 'own', 'invoices', '*')", "ONC11"),
        ("update oncely.rights set login = session_user", "42501"),
        ("delete from oncely.operator_actions", "42501"),
        ("update oncely.events set state = 'parked'", "42501"),
        ("select oncely.delete_events(array['acme'], array[gen_random_uuid()])", "42501"),
        ("select oncely.change_events('drop_events', now(), '{}', '{}', null, '{}', null, 'me')", "ONC11"),
        ("select oncely.claim('acme', 'payments', 'next', null)", "42501"),
        ("select oncely.emit('', 'q', 'x')", "42501"),
        ("set role oncely_worker", "42501"),
        // A letter is decided about with a record.
        ("update oncely.dead_letters set state = 'discarded'", "42501"),
        ("update oncely.dead_letters set updated_at = '1970-01-01'", "42501"),
        ("select oncely.decide_letters('empty', '{}', '{}', '{}', '{}', null, 'me')", "ONC11"),
    ];
    try_all(&mut world, &login, &attacks).await;
    let freed = "select oncely.free_keys(array(select tenant from oncely.dead_letters), array(select id from oncely.dead_letters))";
    let mut sql = login.connect().await;
    assert_eq!(sqlx::query_scalar::<_, i64>(freed).fetch_one(&mut sql).await.unwrap(), 0, "none is requeued");
    sql.close().await.unwrap();
    let others: Vec<_> = ANYBODYS
        .iter()
        .copied()
        .filter(|(call, _)| !call.contains("drop_audit") && !call.contains("oncely_operator"))
        .collect();
    try_all(&mut world, &login, &others).await;
    // What was given up, for whatever reason, may run again when a person says so.
    let mut sql = login.connect().await;
    assert_eq!(
        code_of(&mut sql, "select oncely.settle_claim('acme', 'payments', 'gone', false)").await,
        None
    );
    let opened = "select status || ' ' || (select split_part(actor, ' ', 1) from oncely.operator_actions)
        from oncely.idempotency_keys where key = 'gone'";
    assert_eq!(world.text(opened).await, Some(format!("IN_PROGRESS {}", login.name)));
    sql.close().await.unwrap();
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn an_auditor_reads_what_was_decided_and_no_message_and_no_response() {
    let mut world = prey().await;
    let login = Login::create(&mut world, "oncely_auditor").await;
    let attacks = [
        ("select response from oncely.idempotency_keys", "42501"),
        ("select * from oncely.idempotency_keys", "42501"),
        ("select body from oncely.dead_letters", "42501"),
        ("select payload from oncely.events", "42501"),
        ("select * from oncely.signing_keys()", "42501"),
        ("select * from oncely.mirror_keys()", "42501"),
        ("update oncely.idempotency_keys set not_before = now()", "42501"),
        ("select tenant from oncely.idempotency_keys for update", "42501"),
        ("select oncely.claim('acme', 'payments', 'next', null)", "42501"),
        ("select oncely.emit('', 'q', 'x')", "42501"),
        ("select oncely.grant_right('postgres', 'emit', '', '*')", "42501"),
        (
            "select tenant, consumer, key, status, reason, last_error, fingerprint from oncely.idempotency_keys",
            "",
        ),
        ("select worker, login from oncely.audit", ""),
        ("select * from oncely.rights", ""),
    ];
    try_all(&mut world, &login, &attacks).await;
    try_all(&mut world, &login, ANYBODYS).await;
    login.drop_now(&mut world).await;
}
