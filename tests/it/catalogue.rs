//! The rules of the schema that keep it able to grow beyond one machine, read from the catalogue and from the SQL files.

use std::collections::BTreeSet;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use sqlx::Row as _;

use crate::support::World;

async fn rows(world: &mut World, query: &'static str) -> Vec<String> {
    let rows = sqlx::query(query).fetch_all(&mut world.sql).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect()
}

#[tokio::test]
async fn every_unique_index_contains_the_tenant_and_every_primary_key_begins_with_it() {
    let mut world = World::new().await;
    let broken = rows(
        &mut world,
        "select c.relname || '.' || i.relname
         from pg_index as x
         join pg_class as i on i.oid = x.indexrelid
         join pg_class as c on c.oid = x.indrelid
         join pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'oncely'
         -- Of these each cell has its own copy, so they need no tenant.
         where x.indisunique and c.relname not in ('cell', '_sqlx_migrations', 'processes', 'consumers', 'maintenance', 'audit_seals',
             'stats', 'relay_stats', 'controls', 'secrets', 'turns', 'locks')
           and not exists (
               select from pg_attribute as a
               where a.attrelid = c.oid and a.attname = 'tenant'
                 and case when x.indisprimary then a.attnum = x.indkey[0] else a.attnum = any (x.indkey) end
           )",
    )
    .await;
    assert_eq!(broken, Vec::<String>::new());
    let without = rows(
        &mut world,
        "select c.relname::text from pg_class as c
         where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p')
           -- The trail is appended to and never addressed by row: an index for that would be its dearest part.
           and c.relname !~ '^audit($|_[0-9]|_default)'
           and not exists (select from pg_index as x where x.indrelid = c.oid and x.indisprimary)",
    )
    .await;
    assert_eq!(without, Vec::<String>::new(), "every table but the audit trail has a primary key");
}

#[tokio::test]
async fn there_is_no_sequence_trigger_foreign_key_exclusion_or_unlogged_table() {
    let mut world = World::new().await;
    for (what, query) in [
        ("sequence", "select relname::text from pg_class where relnamespace = 'oncely'::regnamespace and relkind = 'S'"),
        ("unlogged table", "select relname::text from pg_class where relnamespace = 'oncely'::regnamespace and relpersistence <> 'p'"),
        (
            "trigger",
            "select t.tgname::text from pg_trigger as t join pg_class as c on c.oid = t.tgrelid where c.relnamespace = 'oncely'::regnamespace",
        ),
        (
            "foreign key or exclusion",
            "select conname::text from pg_constraint where connamespace = 'oncely'::regnamespace and contype in ('f', 'x')",
        ),
        (
            "identity column",
            "select attname::text from pg_attribute as a join pg_class as c on c.oid = a.attrelid where c.relnamespace = 'oncely'::regnamespace and a.attidentity <> ''",
        ),
        (
            "time without zone",
            "select attname::text from pg_attribute as a join pg_class as c on c.oid = a.attrelid
             where c.relnamespace = 'oncely'::regnamespace and a.atttypid = 'timestamp'::regtype",
        ),
        (
            "varchar or char column, which trim",
            "select attname::text from pg_attribute as a join pg_class as c on c.oid = a.attrelid
             where c.relnamespace = 'oncely'::regnamespace and a.atttypid in ('varchar'::regtype, 'bpchar'::regtype)",
        ),
    ] {
        assert_eq!(rows(&mut world, query).await, Vec::<String>::new(), "{what}");
    }
}

#[tokio::test]
async fn identity_columns_compare_byte_for_byte() {
    let mut world = World::new().await;
    let broken = rows(
        &mut world,
        "select c.relname || '.' || a.attname
         from pg_attribute as a
         join pg_class as c on c.oid = a.attrelid
         join pg_collation as l on l.oid = a.attcollation
         where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p')
           and a.attname in ('tenant', 'consumer', 'key') and l.collname <> 'C'",
    )
    .await;
    assert_eq!(broken, Vec::<String>::new());
}

#[tokio::test]
async fn every_table_column_index_and_function_says_what_it_is_for() {
    let mut world = World::new().await;
    let silent = rows(
        &mut world,
        "select 'column ' || c.relname || '.' || a.attname
         from pg_attribute as a join pg_class as c on c.oid = a.attrelid
         where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
           and not c.relispartition and c.relname <> '_sqlx_migrations' and col_description(c.oid, a.attnum) is null
         union all
         select 'relation ' || c.relname from pg_class as c
         where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p', 'v', 'c') and c.relname <> '_sqlx_migrations'
           and obj_description(c.oid, 'pg_class') is null and (c.relkind <> 'c' or obj_description(c.reltype, 'pg_type') is null)
         union all
         select 'index ' || i.relname from pg_index as x join pg_class as i on i.oid = x.indexrelid join pg_class as c on c.oid = x.indrelid
         where c.relnamespace = 'oncely'::regnamespace and not x.indisprimary and not i.relispartition
           and obj_description(i.oid, 'pg_class') is null
         union all
         select 'function ' || p.proname from pg_proc as p
         where p.pronamespace = 'oncely'::regnamespace and obj_description(p.oid, 'pg_proc') is null",
    )
    .await;
    assert_eq!(silent, Vec::<String>::new());
}

/// Text of a SQL file without its comments, in lower case.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
        .to_lowercase()
}

#[test]
fn statements_take_times_as_parameters_and_use_ctid_only_in_the_collection() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut seen = 0;
    let folders = ["postgres/src", "handler/src"];
    for entry in folders.into_iter().flat_map(|folder| std::fs::read_dir(source.join(folder)).unwrap()) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = match path.extension().and_then(|e| e.to_str()) {
            Some("sql") => code(&path),
            // Short statements stand in the Rust files.
            Some("rs") => std::fs::read_to_string(&path).unwrap().to_lowercase(),
            _ => continue,
        };
        seen += 1;
        for volatile in ["random()", "transaction_timestamp", "statement_timestamp", " xmin", " xmax"] {
            assert!(!text.contains(volatile), "{name} uses {volatile}");
        }
        if name.ends_with(".sql") {
            for clock in ["now()", "current_timestamp", "clock_timestamp"] {
                assert!(!text.contains(clock), "{name} asks the clock; times are parameters");
            }
            assert_eq!(
                text.contains("ctid"),
                name.starts_with("collect_"),
                "{name}: ctid only in the collection of keys"
            );
        }
    }
    assert!(seen > 10, "the files have moved");
}

#[test]
fn every_statement_that_deletes_keys_asks_whether_they_may_be_forgotten() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/postgres/src");
    let mut seen = 0;
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let text = match path.extension() {
            Some(ending) if ending == "sql" => code(&path),
            _ => continue,
        };
        if text.contains("oncely.delete_keys(") || text.contains("delete from oncely.idempotency_keys") {
            let asks = text.contains("oncely.may_be_forgotten(") || text.contains("oncely.delete_keys(");
            assert!(asks, "{}: it does not ask", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 6, "the files have moved");
    let function = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/functions/delete_keys.sql");
    assert!(code(&function).contains("oncely.may_be_forgotten("), "{}: it does not ask", function.display());
}

#[test]
fn no_statement_meets_the_policies_of_keys_by_a_conflict() {
    // ON CONFLICT DO UPDATE fails with 42501 on a row that the login may not change, whatever its WHERE says: a lane would try again for ever.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/postgres/src");
    let mut seen = 0;
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "sql") {
            continue;
        }
        let text = code(&path);
        let inserts =
            text.split("insert into ").skip(1).filter(|rest| rest.starts_with("oncely.idempotency_keys"));
        for insert in inserts {
            seen += 1;
            assert!(!insert.contains("do update"), "{} updates by a conflict", path.display());
        }
    }
    assert!(seen >= 4, "the files have moved");
}

#[test]
fn what_waits_for_a_key_asks_every_condition_again() {
    // PostgreSQL looks again at a row that changed while it waited for the lock, but an EXISTS that became a join is not part of that look.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/postgres/src");
    let mut seen = 0;
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "sql") {
            continue;
        }
        let text = code(&path);
        for (at, _) in text.match_indices("for update") {
            let lock = text[at..].split([')', ';']).next().unwrap();
            if lock.contains("skip locked") {
                continue;
            }
            seen += 1;
            let part = &text[..at];
            let part = &part[part.rfind("materialized (").unwrap_or(0)..];
            for (place, _) in part.match_indices("exists (") {
                let before = part[..place].trim_end().trim_end_matches("not").trim_end();
                assert!(
                    before.ends_with("then"),
                    "{}: an EXISTS that no CASE keeps as a condition",
                    path.display()
                );
            }
        }
    }
    assert!(seen >= 4, "the files have moved");
}

#[tokio::test]
async fn a_bucket_is_frozen() {
    let mut world = World::new().await;
    // Known for ever; a change would send every tenant to another cell.
    for (tenant, bucket) in [("acme", 555), ("", 944), ("tenant-00", 526), ("ünï", 373)] {
        let digest = Sha256::digest(tenant.as_bytes());
        let expected = (i32::from(digest[0]) * 256 + i32::from(digest[1])) % 1_024;
        let row =
            sqlx::query("select oncely.bucket($1)").bind(tenant).fetch_one(&mut world.sql).await.unwrap();
        assert_eq!(row.get::<i32, _>(0), expected, "{tenant}");
        assert_eq!(expected, bucket, "{tenant}");
    }
}

#[tokio::test]
async fn migrations_go_down_and_up_again() {
    let mut world = World::new().await;
    // The test's handlers take Oncely's types, and going down never takes a user's objects with it.
    let refused = oncely_postgres::MIGRATOR.undo(&mut world.sql, 0).await.unwrap_err();
    assert!(refused.to_string().contains("20261122000009"), "{refused}");
    sqlx::query("drop schema app cascade").execute(&mut world.sql).await.unwrap();
    oncely_postgres::MIGRATOR.undo(&mut world.sql, 0).await.unwrap();
    let left = rows(
        &mut world,
        "select relname::text from pg_class where relnamespace = 'oncely'::regnamespace and relkind in ('r', 'p', 'v')
         union all select proname::text from pg_proc where pronamespace = 'oncely'::regnamespace",
    )
    .await;
    assert_eq!(left, ["_sqlx_migrations"]);
    oncely_postgres::MIGRATOR.run(&mut world.sql).await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.cell").await, 1);
}

#[tokio::test]
async fn each_role_can_do_its_work_and_no_more() {
    let mut world = World::new().await;
    // Whether a role may; `set role` is enough, since the roles are groups.
    for (role, statement, allowed) in [
        (
            "oncely_worker",
            "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags) values ('a', gen_random_uuid(), 'mirror', now(), now(), 'payments', decode(repeat('ab', 16), 'hex'))",
            true,
        ),
        (
            "oncely_worker",
            "select oncely.beat(gen_random_uuid(), 'worker', 'w', '1', 'h', 1, 'd', 'ready', null, '[]'), oncely.leave(gen_random_uuid())",
            true,
        ),
        ("oncely_worker", "delete from oncely.processes", false),
        ("oncely_worker", "select * from oncely.controls", true),
        ("oncely_worker", "select oncely.pause_consumer('payments', null, 'x', 'me')", false),
        ("oncely_worker", "select * from oncely.stats", false),
        ("oncely_worker", "delete from oncely.stats", false),
        ("oncely_worker", "select oncely.roll_up_stats()", false),
        ("oncely_worker", "select oncely.prune_stats()", false),
        ("oncely_relay", "select oncely.roll_up_stats(), oncely.prune_stats()", true),
        ("oncely_relay", "select oncely.resume_consumer('payments', 'x', 'me')", false),
        ("oncely_operator", "select oncely.resume_consumer('payments', 'x', 'me')", true),
        ("oncely_operator", "delete from oncely.controls", false),
        ("oncely_auditor", "select * from oncely.stats, oncely.relay_stats, oncely.controls", true),
        (
            "oncely_worker",
            "select tenant, occurred_at, consumer, key, outcome, trace_id from oncely.audit",
            true,
        ),
        ("oncely_worker", "select detail from oncely.audit", false),
        ("oncely_auditor", "select oncely.pause_consumer('payments', null, 'x', 'me')", false),
        ("oncely_worker", "select oncely.bury_processes(now())", false),
        ("oncely_relay", "select oncely.bury_processes(now())", true),
        ("oncely_relay", "delete from oncely.processes", false),
        ("oncely_emitter", "select oncely.leave(gen_random_uuid())", false),
        ("oncely_auditor", "select * from oncely.processes", true),
        ("oncely_auditor", "select oncely.park('a', 'b', 'c', null, 'ana')", false),
        ("oncely_worker", "select oncely.park('a', 'b', 'c', null, 'ana')", false),
        ("oncely_operator", "select oncely.park('a', 'b', 'c', null, 'ana')", true),
        ("oncely_operator", "insert into oncely.mirror_queue select * from oncely.mirror_queue", false),
        ("oncely_auditor", "select oncely.mirror_again('payments', now(), 1, now(), null, null)", false),
        ("oncely_worker", "select oncely.mirror_again('payments', now(), 1, now(), null, null)", false),
        ("oncely_worker", "select oncely.epoch(), secret from oncely.signing_keys(), oncely.cell", true),
        ("oncely_worker", "select secret from oncely.mirror_keys()", true),
        ("oncely_worker", "select oncely.rotate_secret('letter', '1 min', null, null, 'me')", false),
        ("oncely_relay", "select secret from oncely.mirror_keys()", true),
        ("oncely_relay", "select secret from oncely.signing_keys()", false),
        ("oncely_relay", "select oncely.forget_secrets()", true),
        ("oncely_worker", "select oncely.forget_secrets()", false),
        ("oncely_operator", "select secret from oncely.secrets", false),
        ("oncely_operator", "select purpose, id, accepted_until from oncely.secrets", true),
        ("oncely_worker", "select oncely.emit('x', 'y', '{}')", true),
        ("oncely_worker", "delete from oncely.events", false),
        (
            "oncely_emitter",
            "select oncely.emit('x', 'y', '{}'), oncely.emit('x', 'y', '{}'::jsonb, ordering_key => 'a'), oncely.emit('x', 'y', ''::bytea)",
            true,
        ),
        ("oncely_emitter", "select * from oncely.events", false),
        ("oncely_emitter", "insert into oncely.events select * from oncely.events", false),
        ("oncely_emitter", "select * from oncely.idempotency_keys", false),
        ("oncely_relay", "select payload from oncely.events for update skip locked", true),
        (
            "oncely_relay",
            "update oncely.events set attempts = 1, state = 'parked', available_at = now(), reason = 'r', last_error = 'e' where false",
            true,
        ),
        ("oncely_relay", "delete from oncely.events", false),
        ("oncely_relay", "select oncely.delete_events('{}', '{}'), oncely.delete_mirrored('{}', '{}')", true),
        ("oncely_worker", "select oncely.delete_events('{}', '{}')", false),
        ("oncely_relay", "update oncely.events set payload = ''", false),
        ("oncely_relay", "select oncely.emit('x', 'y', '{}')", false),
        ("oncely_auditor", "select exchange, reason from oncely.events", true),
        ("oncely_auditor", "select payload from oncely.events", false),
        ("oncely_worker", "delete from oncely.idempotency_keys", false),
        ("oncely_worker", "delete from oncely.audit", false),
        ("oncely_worker", "update oncely.audit set outcome = 'completed'", false),
        ("oncely_worker", "select oncely.drop_audit_partitions(now())", false),
        ("oncely_relay", "select id from oncely.mirror_queue for update skip locked", true),
        ("oncely_relay", "delete from oncely.idempotency_keys where status = 'COMPLETED'", false),
        ("oncely_relay", "select oncely.delete_keys(array(select ctid from oncely.idempotency_keys))", true),
        ("oncely_worker", "select oncely.delete_keys('{}')", false),
        ("oncely_auditor", "select oncely.delete_keys('{}')", false),
        ("oncely_relay", "select ctid from oncely.idempotency_keys for update skip locked", true),
        ("oncely_relay", "select oncely.make_audit_partitions(now(), now() + interval '60 days')", true),
        (
            "oncely_relay",
            "select oncely.make_audit_partition(now()), oncely.seal_audit(), oncely.observe_clock()",
            true,
        ),
        ("oncely_relay", "select oncely.drop_audit_partition(now() - interval '31 days')", true),
        ("oncely_relay", "select retention from oncely.consumers", true),
        ("oncely_relay", "select oncely.accept_clock('me', null)", false),
        ("oncely_relay", "update oncely.cell set audit_floor = '1 day'", false),
        ("oncely_relay", "update oncely.maintenance set clock_seen_at = now()", false),
        ("oncely_relay", "delete from oncely.audit_seals", false),
        ("oncely_relay", "select oncely.append_seal('rows', now(), now())", false),
        (
            "oncely_worker",
            "select oncely.register_consumer('c', '7 days', '1 day', 'body', 'dead_letter', 'w')",
            true,
        ),
        ("oncely_worker", "select oncely.set_retention('c', '1 day', null, 'me', null)", false),
        ("oncely_worker", "update oncely.consumers set retention = '1 day'", false),
        (
            "oncely_operator",
            "select oncely.register_consumer('c', '7 days', '1 day', 'body', 'dead_letter', 'w')",
            false,
        ),
        ("oncely_operator", "select oncely.set_retention('c', '5 days', null, 'me', null)", true),
        ("oncely_operator", "select oncely.accept_clock('me', null)", true),
        ("oncely_operator", "select oncely.record_action('', 'v', '{}', 1, null, 'me')", true),
        (
            "oncely_operator",
            "insert into oncely.operator_actions select * from oncely.operator_actions",
            false,
        ),
        ("oncely_operator", "update oncely.cell set audit_floor = '1 day'", false),
        (
            "oncely_operator",
            "select oncely.letter_memories('{t}', '{00000000-0000-0000-0000-000000000000}', now())",
            true,
        ),
        (
            "oncely_auditor",
            "select oncely.audit_digest(now(), now()), oncely.seal_hash(s) from oncely.audit_seals as s",
            true,
        ),
        ("oncely_auditor", "select oncely.record_action('', 'v', '{}', 1, null, 'me')", false),
        ("oncely_relay", "insert into oncely.idempotency_keys select * from oncely.idempotency_keys", false),
        ("oncely_relay", "delete from oncely.audit", false),
        ("oncely_operator", "select * from oncely.processed_keys", true),
        ("oncely_operator", "delete from oncely.audit", false),
        ("oncely_worker", "update oncely.dead_letters set state = 'waiting' where state = 'waiting'", true),
        ("oncely_worker", "delete from oncely.dead_letters", false),
        ("oncely_worker", "select * from oncely.operator_actions", false),
        (
            "oncely_relay",
            "select oncely.collect_dead_letters(now(), 5), oncely.collect_ordering_keys(now(), '', '', 5)",
            true,
        ),
        ("oncely_relay", "select body from oncely.dead_letters", false),
        (
            "oncely_operator",
            "update oncely.dead_letters set state = 'discarded' where state = 'waiting'",
            false,
        ),
        (
            "oncely_operator",
            "select oncely.decide_letters('discard', '{}', '{}', '{}', '{}', null, 'me')",
            true,
        ),
        ("oncely_operator", "select oncely.finish_requeue('{}', '{}', '{}')", true),
        (
            "oncely_worker",
            "select oncely.decide_letters('discard', '{}', '{}', '{}', '{}', null, 'me')",
            false,
        ),
        ("oncely_operator", "update oncely.dead_letters set body = ''", false),
        ("oncely_operator", "update oncely.dead_letters set fingerprint = '', queue = 'another'", false),
        ("oncely_operator", "select * from oncely.dead_letters, oncely.dead_letter_groups", true),
        (
            "oncely_operator",
            "update oncely.events set state = 'pending', attempts = 0, available_at = now() where state = 'parked'",
            false,
        ),
        ("oncely_operator", "delete from oncely.events where state = 'parked'", false),
        (
            "oncely_operator",
            "select oncely.change_events('retry_events', now(), '{}', '{}', null, '{}', null, 'me')",
            true,
        ),
        (
            "oncely_relay",
            "select oncely.change_events('discard_events', now(), '{}', '{}', null, '{}', null, 'me')",
            false,
        ),
        ("oncely_operator", "update oncely.events set exchange = ''", false),
        ("oncely_operator", "update oncely.operator_actions set count = 0", false),
        ("oncely_operator", "delete from oncely.operator_actions", false),
        (
            "oncely_auditor",
            "select tenant, key, reason, detail, properties, state from oncely.dead_letters",
            true,
        ),
        ("oncely_auditor", "select * from oncely.operator_actions, oncely.dead_letter_groups", true),
        ("oncely_auditor", "select body from oncely.dead_letters", false),
        ("oncely_auditor", "select headers from oncely.dead_letters", false),
        ("oncely_auditor", "update oncely.dead_letters set state = 'waiting'", false),
        ("oncely_auditor", "select * from oncely.audit", true),
        ("oncely_auditor", "select oncely.epoch()", true),
        ("oncely_auditor", "select secret from oncely.secrets", false),
        ("oncely_auditor", "select secret from oncely.mirror_keys()", false),
        ("oncely_auditor", "select secret from oncely.signing_keys()", false),
        (
            "oncely_auditor",
            "select purpose, id, created_at, signs_from, accepted_until from oncely.secrets",
            true,
        ),
        ("oncely_auditor", "delete from oncely.idempotency_keys", false),
        ("oncely_auditor", "insert into oncely.audit select * from oncely.audit", false),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(format!("set role {role}"))).execute(&mut world.sql).await.unwrap();
        let done = sqlx::query(statement).execute(&mut world.sql).await;
        sqlx::query("reset role").execute(&mut world.sql).await.unwrap();
        match done {
            Ok(_) => assert!(allowed, "{role} may {statement}"),
            Err(error) => {
                let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
                assert_eq!((allowed, code.as_str()), (false, "42501"), "{role}: {statement}: {error}");
            }
        }
    }
}

/// LOCK TABLE asks for a privilege on the table as a whole: one to change some columns does not do.
#[tokio::test]
async fn no_role_can_delete_from_empty_or_lock_a_table() {
    let mut world = World::new().await;
    let granted = rows(
        &mut world,
        "select format('%s: %s on %s', r.rolname, p.privilege, c.relname)
         from pg_roles as r
         cross join pg_class as c
         cross join (
             values ('update'), ('delete'), ('truncate'),
                 (case when current_setting('server_version_num')::int >= 170000 then 'maintain' else 'truncate' end)
         ) as p (privilege)
         where r.rolname ~ '^oncely_(worker|relay|operator|auditor|tenant_auditor|emitter|consumer)$'
           and c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
           and has_table_privilege(r.rolname, c.oid, p.privilege)",
    )
    .await;
    assert_eq!(granted, Vec::<String>::new());
    let tables = rows(
        &mut world,
        "select c.relname::text from pg_class as c
         where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition",
    )
    .await;
    for role in ["oncely_worker", "oncely_relay", "oncely_operator", "oncely_auditor"] {
        for table in &tables {
            let lock = format!("set role {role}; lock table oncely.\"{table}\" in access exclusive mode");
            let error = sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut world.sql).await.unwrap_err();
            let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
            assert_eq!(code, "42501", "{role} {table}: {error}");
            sqlx::raw_sql("reset role").execute(&mut world.sql).await.unwrap();
        }
    }
}

/// Functions that the schema's owner alone calls.
const OF_THE_OWNER: [&str; 1] = ["erase_trail"];

/// Names that text calls as functions of the schema, without comments.
fn called(text: &str, names: &mut BTreeSet<String>) {
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for rest in line.split("oncely.").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
            if rest[end..].starts_with('(') {
                names.insert(rest[..end].to_owned());
            }
        }
    }
}

fn called_below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        // Not through a link: a crate's `migrations` are those of the root.
        if entry.file_type().unwrap().is_dir() {
            called_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
            called(&std::fs::read_to_string(&path).unwrap(), names);
        }
    }
}

/// Most tests start programs as a superuser, who needs no grant.
#[tokio::test]
async fn every_function_that_a_program_calls_is_granted_to_a_role() {
    let mut world = World::new().await;
    let mut names = BTreeSet::new();
    called_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates"), &mut names);
    assert!(names.contains("take_turn") && names.len() > 50, "{names:?}");
    let granted_to_none = rows(
        &mut world,
        "select distinct p.proname::text from pg_proc as p
         where p.pronamespace = 'oncely'::regnamespace
           and not exists (
               select from pg_roles as r
               where r.rolname ~ '^oncely_(worker|relay|operator|auditor|tenant_auditor|emitter|consumer)$'
                 and has_function_privilege(r.oid, p.oid, 'execute')
           )",
    )
    .await;
    let called_by_none: Vec<_> = granted_to_none.iter().filter(|name| names.contains(*name)).collect();
    assert_eq!(called_by_none, OF_THE_OWNER.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn every_function_looks_names_up_in_pg_catalog_alone() {
    let mut world = World::new().await;
    // One whose body is parsed already looks up nothing any more.
    let open = rows(
        &mut world,
        "select p.oid::regprocedure::text from pg_proc as p
         where p.pronamespace = 'oncely'::regnamespace and p.prosqlbody is null
           and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)",
    )
    .await;
    assert_eq!(open, Vec::<String>::new(), "add: set search_path = pg_catalog, pg_temp");
}

/// Functions in SQL with a body that is text: PostgreSQL parses and plans it with each call. They run in maintenance, for lists and for
/// operators; what messages, requests and leases call is in PL/pgSQL, which keeps its plans, or has a parsed body, which is inlined.
const PLANNED_WITH_EACH_CALL: [&str; 8] = [
    "bucket",
    "failure_group",
    "is_kind",
    "mirror_keys",
    "reopen_steps",
    "seal_hash",
    "signing_keys",
    "visible_tenants",
];

#[tokio::test]
async fn no_function_that_messages_call_is_planned_with_each_call() {
    let mut world = World::new().await;
    let planned = rows(
        &mut world,
        "select p.proname::text from pg_proc as p join pg_language as l on l.oid = p.prolang
         where p.pronamespace = 'oncely'::regnamespace and l.lanname = 'sql'
           and (p.prosqlbody is null or p.prosecdef or p.proconfig is not null)",
    )
    .await;
    let allowed = |name: &String| PLANNED_WITH_EACH_CALL.contains(&name.as_str());
    let others: Vec<_> = planned.iter().filter(|name| !allowed(name)).collect();
    assert_eq!(others, Vec::<&String>::new(), "language plpgsql, or begin atomic without settings");
}

/// The role that runs them may be a superuser, with its own search_path.
#[test]
fn every_migration_pins_its_search_path_and_can_be_read_without_scrolling() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Functions, one a file, which the migrations hold as well.
        if path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("--"));
        assert_eq!(
            first,
            Some("set local search_path = pg_catalog, pg_temp;"),
            "{name}: its first statement"
        );
        let long = text.lines().filter(|line| line.chars().count() > 120).collect::<Vec<_>>();
        assert_eq!(long, Vec::<&str>::new(), "{name}: lines of more than 120 characters");
    }
}
