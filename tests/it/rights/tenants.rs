//! Tenants and those who look: what a login sees that may read one tenant's rows, and what it never sees.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Row as _};

use super::walk::{Catalogue, Found, Secrets, close};
use super::{code_of, run};
use crate::support::{Login, World};

/// Rows of a tenant {t} in every table that holds some: two of each, one with the key "k", one with the canary {x} for a key. {x} stands in
/// every column that can hold a text, {p} in those that hold a message, {n} ends their ids.
const ROWS: &str = "
    insert into oncely.idempotency_keys (created_at, completed_at, attempts, status, tenant, consumer, key, fingerprint, response, reason,
        error_code, last_error, steps)
    select now(), now(), 1, 'FAILED', '{t}', n.consumer, n.key, convert_to(rpad('{x}', 16, '.'), 'UTF8'), '{\"is\": \"{p}\"}', '{x}', '{x}', '{x}',
        '{\"{x}\": {\"result\": \"{p}\"}}'
    from (values ('payments', 'k'), ('{x}', '{x}')) as n (consumer, key);
    insert into oncely.idempotency_keys (created_at, not_before, run_ends_at, attempts, status, tenant, consumer, key, owner, fencing_token)
    values (now(), now(), now(), 0, 'IN_PROGRESS', '{t}', '{x}', 'held', '{x}', 1);
    insert into oncely.idempotency_keys (created_at, completed_at, attempts, status, tenant, consumer, key, http_status, http_headers, http_body)
    values (now(), now(), 1, 'COMPLETED', '{t}', '{x}', 'answered', 201, '[[\"location\", \"{p}\"]]', '{p}');
    insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, error_code, detail, worker, trace_id, login)
    select '{t}', now(), 1, n.consumer, n.key, '{x}', 'completed', '{x}', '{x}', '{x}', '{x}', '{x}', '{x}'
    from (values ('payments', 'k'), ('{x}', '{x}')) as n (consumer, key);
    insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id,
        state, generation, times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, encrypted_by, body_size, updated_at)
    select '{t}', n.id::uuid, n.consumer, n.key, now(), '{x}', '{x}', '{x}', 1, '{x}', '{x}', '{x}', 'waiting', 1, 1, '{x}', '{x}', '{x}',
        convert_to(rpad('{x}', 16, '.'), 'UTF8'), '{\"is\": \"{x}\"}', '{\"is\": \"{p}\"}', '{p}', '{x}', 5, now()
    from (values ('payments', 'k', '00000000-0000-8000-8000-00000000000{n}'), ('{x}', '{x}', gen_random_uuid()::text)) as n (consumer, key, id);
    insert into oncely.ordering_keys (tenant, ordering_key, last_number, used_at) values ('{t}', '{x}', 2, now());
    insert into oncely.events (tenant, id, created_at, available_at, ordering_number, state, exchange, routing_key, ordering_key, message_id,
        content_type, type, correlation_id, reply_to, app_id, headers, payload, reason, last_error)
    select '{t}', gen_random_uuid(), now(), now(), number, 'parked', '{x}', '{x}', '{x}', '{x}', '{x}', '{x}', '{x}', '{x}', '{x}',
        '{\"is\": \"{p}\"}', '{p}', '{x}', '{x}'
    from generate_series(1, 2) as number;
    insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, tags, consumer, key, fingerprint)
    values ('{t}', gen_random_uuid(), 'identity', now(), now(), null, '{x}', '{x}', convert_to(rpad('{x}', 16, '.'), 'UTF8')),
        ('{t}', gen_random_uuid(), 'mirror', now(), now(), convert_to(rpad('{x}', 16, '.'), 'UTF8'), '{x}', null, null);
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    select '{t}', gen_random_uuid(), now(), '{x}', '{x}', '{\"is\": \"{x}\"}', 1, '{x}' from generate_series(1, 2);
    insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
    values ('{t}', 'consume', '{x}', '{x}', now(), '{x}'), ('{t}', 'emit', '{x}', '{x}', now(), '{x}');
    insert into oncely.tenant_limits (tenant, letters, letter_bytes, changed_at, changed_by) values ('{t}', 1, 1, now(), '{x}');
    insert into oncely.letter_usage (tenant, letters, bytes, left_out, counted_at) values ('{t}', 1, 1, 1, now());
    insert into oncely.letter_growth (tenant, letters, bytes) select '{t}', 1, 1 from generate_series(1, 2);
    insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, reason, login, started_at, last_seen_at, consumers)
    values (gen_random_uuid(), 'worker', 'w', '1', 'h', 1, 'd', 'unready', '{x}', 'l', now(), now(),
        '[{\"consumer\": \"payments\", \"failed\": {\"tenant\": \"{t}\", \"key\": \"{x}\", \"text\": \"{x}\"}}]');
    insert into oncely.controls (consumer, paused_at, paused_by, reason) values ('{x}', now(), 'me', '{x}');
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values ('', gen_random_uuid(), now(), 'me', 'requeue', '{\"tenant\": \"{t}\", \"key\": \"{x}\"}', 1, '{x}')";

/// Columns of tenants' tables that hold one of a few words.
const WORDS: [&str; 10] = [
    "audit.outcome",
    "dead_letters.omitted",
    "dead_letters.state",
    "events.state",
    "idempotency_keys.http_status",
    "idempotency_keys.status",
    "mirror_queue.kind",
    "rights.verb",
    "operator_actions.tenant",
    "dead_letters.whole",
];

/// Tables that are of all tenants together: no row of theirs is a tenant's, and whoever reads one tenant alone gets none of them, or of
/// consumers and the cell what names no tenant.
const SHARED: [&str; 12] = [
    "_sqlx_migrations",
    "audit_seals",
    "cell",
    "consumers",
    "controls",
    "locks",
    "maintenance",
    "processes",
    "relay_stats",
    "secrets",
    "stats",
    "turns",
];

fn rows_of(tenant: &str, text: &str, payload: &str, number: &str) -> String {
    ROWS.replace("{t}", tenant).replace("{x}", text).replace("{p}", payload).replace("{n}", number)
}

/// Two tenants: acme, whose texts are "aardvark" and messages "okapi", and globex, whose are "zebra" and "quagga".
async fn two_tenants() -> World {
    let mut world = World::new().await;
    world.register("payments", "7 days").await;
    run(&mut world, &rows_of("acme", "aardvark", "okapi", "a")).await;
    run(&mut world, &rows_of("globex", "zebra", "quagga", "b")).await;
    // Samples of values are taken, too.
    run(&mut world, "analyze; select 'zebra quagga'").await;
    world
}

/// Logins that walk, by what they are.
async fn login(world: &mut World, roles: &[&str]) -> Login {
    let login = Login::create(world, roles[0]).await;
    for role in &roles[1..] {
        run(world, &format!("grant {role} to {}", login.name)).await;
    }
    login
}

const OTHERS: Secrets<'static> = Secrets {
    in_rows: &["zebra", "quagga", "globex"],
    in_calls: &["zebra", "quagga"],
    of_tenants_alone: false,
};

async fn walk(world: &mut World, login: &Login, name: &str, secrets: &Secrets<'_>) -> Found {
    let catalogue = Catalogue::read(world).await;
    let mut sql = login.connect().await;
    let found = catalogue.walk(name, &mut sql, secrets).await;
    close(sql).await;
    found
}

#[tokio::test]
async fn every_table_is_filled_with_canaries() {
    let mut world = two_tenants().await;
    let columns = "select c.relname || '.' || a.attname, c.relname::text, a.attname::text
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and a.atttypid not in ('int4'::regtype, 'int8'::regtype, 'uuid'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'bool'::regtype)";
    let columns = sqlx::query(columns).fetch_all(&mut world.sql).await.unwrap();
    let mut seen = BTreeMap::<String, u32>::new();
    for row in columns {
        let [full, table, column] = [0, 1, 2].map(|place| row.get::<String, _>(place));
        *seen.entry(table.clone()).or_default() += 1;
        if SHARED.contains(&table.as_str()) || WORDS.contains(&full.as_str()) || column == "tenant" {
            continue;
        }
        let of_tenants = world
            .count(&format!(
                "select count(*) from pg_attribute where attrelid = 'oncely.{table}'::regclass and attname = 'tenant'"
            ))
            .await;
        assert_eq!(of_tenants, 1, "{table} has no tenant: is it of all of them? Then say so in SHARED");
        let (text, hex) = (
            format!(
                "select count(*) from oncely.\"{table}\" where tenant = 'globex' and \"{column}\"::text ~ 'zebra|quagga'"
            ),
            format!(
                "select count(*) from oncely.\"{table}\" where tenant = 'globex' and \"{column}\"::text ~ '{}|{}'",
                hexadecimal("zebra"),
                hexadecimal("quagga")
            ),
        );
        assert!(
            world.count(&text).await + world.count(&hex).await > 0,
            "{full} holds no canary: put one into ROWS"
        );
    }
    assert!(seen.len() >= 16, "{seen:?}");
}

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn whoever_may_read_one_tenant_is_shown_nothing_of_another_by_any_table_view_or_function() {
    let mut world = two_tenants().await;
    let mut tried = BTreeMap::new();
    for (name, roles, secrets) in [
        ("tenant auditor", &["oncely_tenant_auditor"][..], OTHERS),
        ("emitter", &["oncely_emitter"], OTHERS),
        ("consumer", &["oncely_consumer"], OTHERS),
        // Tables show the rows of both roles, functions those of the narrower one.
        (
            "auditor of a tenant and of all",
            &["oncely_tenant_auditor", "oncely_auditor"],
            Secrets { in_rows: &["quagga", "okapi"], of_tenants_alone: true, ..OTHERS },
        ),
        // These see all tenants; an auditor sees no message.
        (
            "auditor",
            &["oncely_auditor"],
            Secrets { in_rows: &["quagga", "okapi"], in_calls: &["quagga", "okapi"], ..OTHERS },
        ),
        ("worker", &["oncely_worker"], Secrets { in_rows: &[], in_calls: &[], ..OTHERS }),
        ("relay", &["oncely_relay"], Secrets { in_rows: &[], in_calls: &[], ..OTHERS }),
        ("operator", &["oncely_operator"], Secrets { in_rows: &[], in_calls: &[], ..OTHERS }),
    ] {
        let login = login(&mut world, roles).await;
        if roles.contains(&"oncely_tenant_auditor") {
            run(&mut world, &format!("select oncely.grant_right('{}', 'read', '', 'acme')", login.name))
                .await;
        }
        let found = walk(&mut world, &login, name, &secrets).await;
        assert_eq!(found.leaks, Vec::<String>::new(), "{name}");
        // That something is seen at all shows that the walk looks.
        let sees = |word: &str| found.shown.contains(word);
        let reads_some = roles.iter().any(|role| !["oncely_emitter", "oncely_consumer"].contains(role));
        assert_eq!(sees("aardvark"), reads_some, "{name}");
        assert_eq!(
            sees("zebra"),
            reads_some && (roles[0] != "oncely_tenant_auditor" || roles.len() > 1),
            "{name}"
        );
        if name == "tenant auditor" {
            assert!(!sees("okapi"), "an auditor sees no message, not of its own tenant either");
        }
        for (verb, count) in &found.tried {
            let done = found.done.get(verb).copied().unwrap_or_default();
            eprintln!("{name:<32} {verb:<8} {count:>5} tried, {done:>5} done");
            *tried.entry(*verb).or_insert(0) += count;
            if roles == ["oncely_tenant_auditor"] && ["INSERT", "UPDATE", "DELETE"].contains(verb) {
                assert_eq!(done, 0, "{name} {verb}");
            }
        }
        login.drop_now(&mut world).await;
    }
    eprintln!(
        "combinations of login, object and verb tried: {tried:?}, {} in all",
        tried.values().sum::<u64>()
    );
    assert!(tried.values().sum::<u64>() > 5_000, "{tried:?}");
}

#[tokio::test]
async fn a_login_without_a_right_to_read_is_shown_no_row_at_all() {
    let mut world = two_tenants().await;
    let login = login(&mut world, &["oncely_tenant_auditor"]).await;
    let all = Secrets {
        in_rows: &["zebra", "globex", "aardvark", "acme"],
        in_calls: &["zebra", "aardvark"],
        of_tenants_alone: false,
    };
    let found = walk(&mut world, &login, "nobody's auditor", &all).await;
    assert_eq!(found.leaks, Vec::<String>::new());
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn the_walk_finds_whatever_is_left_open() {
    for (what, opened) in [
        (
            "audit",
            "create policy later on oncely.audit using (true); grant select on oncely.audit to oncely_tenant_auditor",
        ),
        (
            "idempotency_keys",
            "alter policy rows_of_all on oncely.idempotency_keys to public;
             grant select (tenant, key) on oncely.idempotency_keys to oncely_tenant_auditor",
        ),
        (
            "events",
            "alter table oncely.events disable row level security; grant select on oncely.events to oncely_tenant_auditor",
        ),
        (
            "processed_keys",
            "alter view oncely.processed_keys set (security_invoker = false);
             grant select on oncely.processed_keys to oncely_tenant_auditor",
        ),
        // A function that lists rows and does not ask whose.
        (
            "list_events",
            "create or replace function oncely.visible_tenants() returns text[] language sql stable security definer
                 as 'select null::text[]'",
        ),
        (
            "later",
            "create table oncely.later (tenant text, body bytea);
             insert into oncely.later values ('globex', 'zebra'); grant select on oncely.later to oncely_tenant_auditor",
        ),
        (
            "later_count",
            "create function oncely.later_count(tenant text) returns text language sql security definer
                 as $$ select max(detail) from oncely.dead_letters as d where d.tenant = later_count.tenant $$",
        ),
        ("processes", "grant select (consumers) on oncely.processes to oncely_tenant_auditor"),
        // Whoever widens the list opens all that is listed.
        (
            "list_letters",
            "create or replace function oncely.visible_tenants() returns text[] language sql stable security definer
                 as $$ select array_agg(d.tenant) || array['acme'] from oncely.dead_letters as d where d.reason = 'zebra' $$",
        ),
    ] {
        let mut world = two_tenants().await;
        let login = login(&mut world, &["oncely_tenant_auditor"]).await;
        run(&mut world, &format!("select oncely.grant_right('{}', 'read', '', 'acme')", login.name)).await;
        run(&mut world, opened).await;
        let found = walk(&mut world, &login, "tenant auditor", &OTHERS).await;
        assert!(found.leaks.iter().any(|leak| leak.contains(what)), "{what} is open, and {:?}", found.leaks);
        login.drop_now(&mut world).await;
    }
}

/// Estimates come from samples of all rows, whatever policies hide.
#[tokio::test]
async fn no_plan_of_a_tenants_auditor_depends_on_the_rows_of_another() {
    let mut world = two_tenants().await;
    let support = login(&mut world, &["oncely_tenant_auditor"]).await;
    let auditor = login(&mut world, &["oncely_auditor"]).await;
    run(&mut world, &format!("select oncely.grant_right('{}', 'read', '', 'acme')", support.name)).await;
    let catalogue = Catalogue::read(&mut world).await;
    let (mut sql, mut of_all) = (support.connect().await, auditor.connect().await);
    let (before, seen_before) = (catalogue.plans(&mut sql).await, catalogue.plans(&mut of_all).await);
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
         select 'globex', 'payments', 'zebra' || n, 'FAILED', 1, now(), now(), 'zebra' from generate_series(1, 10000) as n;
         insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, worker)
         select 'globex', now(), 1, 'payments', 'zebra', 'zebra', 'completed', 'zebra', 'w' from generate_series(1, 10000);
         insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload)
         select 'globex', gen_random_uuid(), now(), now(), 'zebra', 'zebra', '' from generate_series(1, 10000);
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
             failure_group, exchange, routing_key, body_size, updated_at)
         select 'globex', gen_random_uuid(), 'payments', 'zebra' || n, now(), 'zebra', 1, 'zebra', 'w', 'waiting', 1, 1, 'g', '', 'q', 1, now()
         from generate_series(1, 10000) as n;
         insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
         select 'globex', 'read', '', 'somebody' || n, now(), 'zebra' from generate_series(1, 10000) as n;
         insert into oncely.ordering_keys (tenant, ordering_key, last_number, used_at)
         select 'globex', 'zebra' || n, 1, now() from generate_series(1, 10000) as n;
         insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count)
         select 'globex', gen_random_uuid(), now(), 'zebra', 'zebra', '{}', 1 from generate_series(1, 10000);
         analyze",
    )
    .await;
    let (after, seen_after) = (catalogue.plans(&mut sql).await, catalogue.plans(&mut of_all).await);
    for (statement, plan) in &after {
        assert_eq!(before.get(statement), Some(plan), "{statement}");
    }
    assert_eq!(before.len(), after.len());
    for listed in ["list_audit", "list_keys", "find_key", "list_letters", "list_letter_groups", "list_events"]
    {
        assert!(after.keys().any(|statement| statement.contains(listed)), "{listed} can be asked");
    }
    assert!(
        !after.keys().any(|statement| statement.contains("\"audit\"") || statement.contains("\"rights\"")),
        "tables can't"
    );
    // That others' plans do shows that this looks at what moves.
    let moved =
        seen_after.iter().filter(|(statement, plan)| seen_before.get(*statement) != Some(plan)).count();
    assert!(moved > 50, "{moved}");
    // Nor has it the plans inside printed: client_min_messages = log would show them.
    let open = world
        .text(
            "select string_agg(p.oid::regprocedure::text, ', ') from pg_proc as p
             where p.pronamespace = 'oncely'::regnamespace and p.prosecdef
               and has_function_privilege('oncely_tenant_auditor', p.oid, 'execute')
               and not coalesce('debug_print_plan=off' = any (p.proconfig), false)",
        )
        .await;
    assert_eq!(open, None, "add: set debug_print_plan = off");
    close(sql).await;
    close(of_all).await;
    for login in [support, auditor] {
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn a_right_to_read_is_of_one_tenant_and_its_members_have_it() {
    let mut world = two_tenants().await;
    let (team, stranger) = (
        login(&mut world, &["oncely_tenant_auditor"]).await,
        login(&mut world, &["oncely_tenant_auditor"]).await,
    );
    let member = Login::create(&mut world, &team.name).await;
    for (tenant, object) in [("*", ""), ("acme", "payments")] {
        let grant = format!("select oncely.grant_right('{}', 'read', '{object}', '{tenant}')", team.name);
        assert_eq!(code_of(&mut world.sql, &grant).await.as_deref(), Some("ONC11"), "{tenant} {object}");
    }
    run(&mut world, &format!("select oncely.grant_right('{}', 'read', '', 'globex')", team.name)).await;
    let tenants = "select string_agg(distinct tenant, ' ') from oncely.list_audit()";
    for (who, statement, expected) in [
        (&member, "select 1", Some("globex")),
        (&stranger, "select 1", None),
        // Whatever it makes of itself, it is the same session's user.
        (&member, "set role oncely_tenant_auditor", Some("globex")),
    ] {
        let mut sql = who.connect().await;
        sqlx::raw_sql(statement).execute(&mut sql).await.unwrap();
        let seen: Option<String> = sqlx::query(tenants).fetch_one(&mut sql).await.unwrap().get(0);
        assert_eq!(seen.as_deref(), expected, "{statement}");
        // Nor does it let itself be seen more.
        let more = format!("select oncely.grant_right('{}', 'read', '', 'acme')", who.name);
        assert_eq!(code_of(&mut sql, &more).await.as_deref(), Some("42501"));
        close(sql).await;
    }
    run(&mut world, &format!("select oncely.revoke_rights('{}')", team.name)).await;
    let mut sql = member.connect().await;
    let seen: Option<String> = sqlx::query(tenants).fetch_one(&mut sql).await.unwrap().get(0);
    assert_eq!(seen, None, "it was taken back");
    close(sql).await;
    for login in [member, stranger, team] {
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn what_lists_rows_lists_those_of_the_tenant_for_whoever_may_read_it() {
    let mut world = two_tenants().await;
    world.configure("");
    let operator = login(&mut world, &["oncely_operator"]).await;
    let support = Login::create(&mut world, "oncely_tenant_auditor").await;
    let oncely = async |world: &World, login: &Login, arguments: &[&str]| {
        let [(name, url)] = login.environment();
        let output = world.oncely_with(arguments, &[(name, &url)]).await;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap(), said)
    };
    let (code, said) = oncely(&world, &operator, &["grant", &support.name, "--read", "--tenant", "*"]).await;
    assert_eq!(code, 2, "{said}");
    let (code, said) =
        oncely(&world, &operator, &["grant", &support.name, "--read", "--tenant", "acme"]).await;
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("yet"), "it has the role: {said}");
    for arguments in [
        &["audit", "list"][..],
        &["keys", "list", "--tenant", "acme"],
        &["keys", "list", "--consumer", "payments", "--status", "failed"],
        &["failed", "list"],
        &["failed", "groups"],
        &["outbox", "list", "--state", "any"],
        &["explain", "k", "--json"],
        &["tenant", "export", "acme"],
    ] {
        let (code, said) = oncely(&world, &support, arguments).await;
        assert!(said.contains("aardvark") && !said.contains("permission"), "{arguments:?}: {said}");
        assert!(
            !said.contains("zebra") && !said.contains("globex") && !said.contains("okapi"),
            "{arguments:?}: {said}"
        );
        assert!([0, 1].contains(&code), "{arguments:?}: {said}");
    }
    for arguments in [&["keys", "list", "--tenant", "globex"][..], &["tenant", "export", "globex"]] {
        let (code, said) = oncely(&world, &support, arguments).await;
        assert!(code == 1 && !said.contains("zebra"), "{arguments:?}: {said}");
    }
    let (code, said) = oncely(&world, &operator, &["grant", &support.name, "--revoke", "--read"]).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = oncely(&world, &support, &["audit", "list"]).await;
    assert!(code == 1 && !said.contains("aardvark"), "{said}");
    for login in [operator, support] {
        login.drop_now(&mut world).await;
    }
}

/// Every statement that a process or a person's program has in a file is planned as if there were no policies on its tables.
#[tokio::test]
async fn policies_change_no_plan_of_a_worker_a_relay_an_operator_or_an_auditor() {
    let mut world = two_tenants().await;
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
         select 'acme', 'payments', 'n' || n, (array['COMPLETED', 'FAILED'])[1 + n % 2]::oncely.key_status, 1, now(), now(), 'x'
         from generate_series(1, 3000) as n;
         insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now() - n * interval '1 second', 1, 'payments', 'n' || n, 'q', 'completed', 'w' from generate_series(1, 3000) as n;
         insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload)
         select 'acme', gen_random_uuid(), now(), now(), 'e', 'r', '' from generate_series(1, 3000) as n;
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation, times,
             failure_group, exchange, routing_key, body_size, updated_at)
         select 'acme', gen_random_uuid(), 'payments', 'n' || n, now(), 'poison', 1, 'q', 'w', 'waiting', 1, 1, 'g', '', 'q', 1, now()
         from generate_series(1, 3000) as n;
         analyze",
    )
    .await;
    // Autovacuum in the middle would change a plan, too.
    run(
        &mut world,
        "vacuum (analyze) oncely.idempotency_keys, oncely.audit, oncely.events, oncely.dead_letters",
    )
    .await;
    let toggled = "select c.relname::text from pg_class as c where c.relnamespace = 'oncely'::regnamespace and c.relrowsecurity
        and c.relname <> 'idempotency_keys'";
    let tables: Vec<String> =
        sqlx::query(toggled).fetch_all(&mut world.sql).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(tables.len() >= 7, "{tables:?}");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/postgres/src");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    let mut compared = BTreeMap::<&str, u32>::new();
    for role in ["oncely_worker", "oncely_relay", "oncely_operator", "oncely_auditor"] {
        let mut plans = Vec::new();
        for is_on in [true, false] {
            let verb = if is_on { "enable" } else { "disable" };
            for table in &tables {
                run(&mut world, &format!("alter table oncely.{table} {verb} row level security")).await;
            }
            run(&mut world, &format!("set role {role}; set plan_cache_mode = force_generic_plan")).await;
            let mut of_role = Vec::new();
            for file in &files {
                of_role.push(plan(&mut world, &std::fs::read_to_string(file).unwrap()).await);
            }
            run(&mut world, "reset role").await;
            plans.push(of_role);
        }
        for ((file, with), without) in files.iter().zip(&plans[0]).zip(&plans[1]) {
            assert_eq!(with, without, "{role}: {}", file.display());
            *compared.entry(role).or_default() += u32::from(with.is_ok());
        }
    }
    eprintln!("plans compared: {compared:?}");
    assert!(compared.values().all(|count| *count >= 8), "{compared:?}");
}

/// A line of a plan, whatever the order in which its conditions are looked at.
fn in_order(line: String) -> String {
    match line.split_once("Filter: (") {
        None => line,
        Some((before, conditions)) => {
            let mut all: Vec<&str> =
                conditions.strip_suffix(')').unwrap_or(conditions).split(" AND ").collect();
            all.sort_unstable();
            format!("{before}Filter: ({})", all.join(" AND "))
        }
    }
}

/// The generic plan of a statement, or the code of what keeps the role from it.
async fn plan(world: &mut World, statement: &str) -> Result<String, String> {
    let prepare = format!("prepare planned as {}", statement.trim_end().trim_end_matches(';'));
    if let Some(code) = code_of(&mut world.sql, &prepare).await {
        return Err(code);
    }
    let count = world
        .count("select coalesce(cardinality(parameter_types), 0)::bigint from pg_prepared_statements where name = 'planned'")
        .await;
    let nulls = vec!["null"; usize::try_from(count).unwrap()].join(", ");
    let arguments = if count == 0 { String::new() } else { format!("({nulls})") };
    let explain = format!("explain (costs off) execute planned{arguments}");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut world.sql).await;
    run(world, "deallocate planned").await;
    match rows {
        Ok(rows) => Ok(rows.iter().map(|row| in_order(row.get(0))).collect::<Vec<_>>().join("\n")),
        Err(error) => {
            Err(error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned())
        }
    }
}
