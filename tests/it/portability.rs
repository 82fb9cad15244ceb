//! Rules that let one SQL text serve PostgreSQL and an engine that spreads tables over nodes by tenant, read from the catalogue and from
//! the SQL files; and the work of all programs where tables are divided as such an engine divides them.

use std::collections::BTreeSet;
use std::path::Path;

use lapin::types::FieldTable;
use oncely_core::decide::KeyStatus;
use oncely_postgres as pg;
use regex::Regex;
use sqlx::Row as _;

use crate::support::{World, message};

/// Tables that such an engine divides by their column `tenant`.
const DIVIDED: &str = "(idempotency_keys|mirror_queue|audit|dead_letters|letter_growth|letter_usage|operator_actions|events|ordering_keys)";

fn source(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The SQL files of a folder by their names, without comments, in lower case.
fn statements(folder: &str) -> Vec<(String, String)> {
    let files = std::fs::read_dir(source(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut statements: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| line.split("--").next().unwrap_or_default());
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, lines.collect::<Vec<_>>().join("\n").to_lowercase())
        })
        .collect();
    statements.sort();
    assert!(statements.len() > 20, "{folder}: the files have moved");
    statements
}

/// Files whose statements are run on the tables of one unit.
fn files_of_units() -> BTreeSet<String> {
    let call = Regex::new(r#"fetch_(from_unit|batch)!\((?s:.*?)"src/(\w+\.sql)""#).unwrap();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(source("crates/postgres/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            files.extend(call.captures_iter(&text).map(|found| found[2].to_owned()));
        }
    }
    assert!(files.len() >= 14, "{files:?}");
    files
}

/// Such an engine refuses a policy with a subquery, and knows no restrictive one: it would be permissive on the nodes.
#[tokio::test]
async fn every_policy_is_permissive_and_reads_no_table() {
    let mut world = World::new().await;
    let policies = "select c.relname || '.' || p.polname, not p.polpermissive
            or concat(p.polqual::text, p.polwithcheck::text) ~ 'SUBLINK'
        from pg_policy as p join pg_class as c on c.oid = p.polrelid where c.relnamespace = 'oncely'::regnamespace";
    let policies = sqlx::query(policies).fetch_all(&mut world.sql).await.unwrap();
    assert!(policies.len() > 10, "the schema has moved");
    let broken: Vec<String> =
        policies.iter().filter(|row| row.get::<bool, _>(1)).map(|row| row.get(0)).collect();
    assert_eq!(broken, Vec::<String>::new());
}

/// It does not bring such a function to its nodes with the table; and PostgreSQL (15.20) adds no column with a default to a table whose row
/// such a function reads.
#[tokio::test]
async fn no_sql_function_with_a_body_of_statements_takes_a_row_of_a_table() {
    let mut world = World::new().await;
    let takes_row = "select p.oid::regprocedure::text from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace and p.prosqlbody is not null and exists (
            select from unnest(p.proargtypes) as a (type) join pg_class as c on c.reltype = a.type and c.relkind in ('r', 'p')
        )";
    let found: Vec<String> = sqlx::query_scalar(takes_row).fetch_all(&mut world.sql).await.unwrap();
    assert_eq!(found, Vec::<String>::new());
}

/// It locks rows, addresses them by their places, and walks along an index only within one part of a table.
#[test]
fn a_statement_that_locks_or_walks_names_its_tenants_or_reads_one_unit() {
    let locks = Regex::new(r"for (no key )?update|for share|\bctid\s*=|with recursive").unwrap();
    let table = Regex::new(&format!(r"(from|join|update|into)\s+oncely\.{DIVIDED}\b")).unwrap();
    let of_tenants = |text: &str| {
        let one = Regex::new(
            r"tenant\s*(=|operator\(pg_catalog\.=\))\s*(\$\d|[a-z_]+\.tenant\b|tenant\b|crowded\b)",
        )
        .unwrap();
        text.contains("oncely.in_group(") || one.is_match(text)
    };
    let units = files_of_units();
    let mut seen = 0;
    let functions = statements("migrations/functions");
    // A function's statements, each by itself.
    let of_functions = functions
        .iter()
        .flat_map(|(name, text)| text.split(';').map(move |part| (name.clone(), part.to_owned())));
    for (name, text) in statements("crates/postgres/src").into_iter().chain(of_functions) {
        if !locks.is_match(&text) || !table.is_match(&text) {
            continue;
        }
        seen += 1;
        // What names its table by %s reads a unit's.
        assert!(
            units.contains(&name) || of_tenants(&text) || text.contains("from %s"),
            "{name}: add oncely.in_group and run it by tenant_groups, or run it on a unit: {text}"
        );
    }
    assert!(seen >= 25, "the files have moved: {seen}");
}

#[test]
fn no_subquery_of_a_from_clause_is_without_columns() {
    let without = Regex::new(r"from\s*\(\s*select\s+from\b").unwrap();
    let mut texts = statements("crates/postgres/src");
    texts.extend(statements("migrations/functions"));
    for entry in std::fs::read_dir(source("crates/postgres/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    for (name, text) in texts {
        assert!(!without.is_match(&text), "{name}: write select 1 from");
    }
}

/// It plans such a statement as the caller, who may not read the view's table of logins.
#[test]
fn no_statement_reads_a_table_and_the_sessions_of_all_logins() {
    for (name, text) in
        statements("crates/postgres/src").into_iter().chain(statements("migrations/functions"))
    {
        for statement in text.split(';').filter(|statement| statement.contains("pg_stat_activity")) {
            assert!(!statement.contains("from oncely."), "{name}: call pg_stat_get_activity: {statement}");
        }
    }
}

/// It computes what changes in one place, and refuses what each node would compute for itself.
#[tokio::test]
async fn no_change_of_a_table_computes_with_a_volatile_function() {
    let mut world = World::new().await;
    let volatile =
        "select proname::text from pg_proc where pronamespace = 'oncely'::regnamespace and provolatile = 'v'";
    let rows = sqlx::query(volatile).fetch_all(&mut world.sql).await.unwrap();
    let mut names: Vec<String> =
        rows.iter().map(|row| format!(r"oncely\.{}", row.get::<String, _>(0))).collect();
    names
        .extend(["clock_timestamp", "random", "gen_random_uuid", "pg_backend_pid", "now"].map(str::to_owned));
    let calls = Regex::new(&format!(r"\b({})\(", names.join("|"))).unwrap();
    let change = Regex::new(r"\b(update|delete\s+from)\s+(oncely\.\w+|%s)").unwrap();
    let mut seen = 0;
    for (name, text) in
        statements("migrations/functions").into_iter().chain(statements("crates/postgres/src"))
    {
        for statement in text.split(';').filter_map(|statement| {
            let change = change.find(statement)?;
            statement.get(change.start()..)
        }) {
            seen += 1;
            let call = calls.find(statement).map(|call| call.as_str());
            assert_eq!(call, None, "{name}: compute it before, into a variable");
            let locks = statement.contains("skip locked");
            assert!(
                !locks,
                "{name}: each copy of a table would skip other rows: choose them before, into a variable"
            );
        }
    }
    assert!(seen > 40, "the files have moved: {seen}");
}

/// On a node to which the statement is sent, the session is another one.
#[test]
fn no_change_of_a_table_names_the_login_of_the_session() {
    let change = Regex::new(r"\b(insert\s+into|update|delete\s+from)\s+(oncely\.\w+|%s)").unwrap();
    let login = Regex::new(r"\b(session_user|current_user|current_role|current_timestamp)\b").unwrap();
    for (name, text) in statements("migrations/functions") {
        for statement in text.split(';').filter_map(|statement| {
            let change = change.find(statement)?;
            statement.get(change.start()..)
        }) {
            assert!(!login.is_match(statement), "{name}: read it before, into a variable: {statement}");
        }
    }
}

/// What a unit's statements return and delete is the unit's alone.
#[tokio::test]
async fn a_unit_is_read_and_collected_alone() {
    let mut world = World::new().await;
    sqlx::raw_sql(testbed::DIVIDED).execute(&mut world.sql).await.unwrap();
    world.register("payments", "1 day").await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 't' || n, 'payments', 'k', 'COMPLETED', 1, now() - interval '9 days', now() - interval '9 days' from generate_series(1, 40) as n;
         insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, ordering_key, ordering_number)
         select 't' || n, gen_random_uuid(), now(), now(), '', 'q', '', case when n % 2 = 0 then 'o' end, case when n % 2 = 0 then 1 end
         from generate_series(1, 40) as n;
         select oncely.observe_clock()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let units = pg::list_units(&mut world.sql).await.unwrap();
    assert_eq!(units.len(), 2);
    let limits = pg::TakeLimits { events: 100, bytes: 1 << 20, keys: 100, per_key: 1 };
    let now = pg::read_database_time(&mut world.sql).await.unwrap();
    let rules = pg::list_retention_rules(&mut world.sql, now).await.unwrap();
    let mut left = 40;
    for (part, unit) in units.iter().enumerate() {
        let in_unit = format!(
            "select count(*) from generate_series(1, 40) as n where oncely.bucket('t' || n) % 2 = {part}"
        );
        let expected = world.count(&in_unit).await;
        assert!(expected > 5, "a unit with hardly a tenant");
        let mut tenants = BTreeSet::new();
        let events = pg::take_events(&mut world.sql, unit, now, limits).await.unwrap();
        let ordered = pg::take_ordered(&mut world.sql, unit, now, limits, &mut None).await.unwrap();
        tenants.extend(events.into_iter().chain(ordered).map(|event| event.tenant));
        assert_eq!(i64::try_from(tenants.len()).unwrap(), expected);
        for rule in &rules {
            pg::collect_batch(&mut world.sql, unit, KeyStatus::Completed, rule, 100, None).await.unwrap();
        }
        left -= expected;
        assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, left);
    }
    assert_eq!(left, 0);
}

/// Batches of several tenants with failures, refusals, rejections, copies and a killed worker; events of both kinds; requeues; collections;
/// an erasure: as with undivided tables.
#[tokio::test]
async fn all_work_is_done_where_tables_are_divided() {
    let mut world = World::new().await;
    sqlx::raw_sql(testbed::DIVIDED).execute(&mut world.sql).await.unwrap();
    world.configure("[gc]\nbatch = 7");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    let told = world.queue("told");
    world.broker.declare_queue(&told, FieldTable::default()).await.unwrap();

    let queue = world.queue("payments");
    let tenants = ["acme", "globex", "initech", "umbrella"];
    let mut messages = Vec::new();
    for number in 0..120 {
        let body = match number % 10 {
            3 => r#"{"do": "reject"}"#,
            5 => r#"{"do": "fail_once"}"#,
            _ => r#"{"n": 1}"#,
        };
        for _ in 0..=(number % 3) {
            let properties = message(tenants[number % 4], &format!("k{number}"));
            messages.push((queue.clone(), properties, body.as_bytes().to_vec()));
        }
    }
    world.broker.publish_all("", messages).await.unwrap();
    let mut killed = world.start_as("worker", "killed");
    world.wait_beside_good_ones("payments", "select least(count(*), 10) from app.effects", 10).await;
    world.kill(&mut killed);
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world
        .wait_beside_good_ones("payments", "select count(*) from app.effects where key ~ '^k[0-9]+$'", 108)
        .await;
    world.wait_for("select count(*) from oncely.dead_letters where state = 'waiting'", 12).await;
    world.wait_for_ready(&queue, 0).await;
    let twice =
        "select count(*) from (select 1 from app.effects group by tenant, key having count(*) > 1) as d";
    assert_eq!(world.count(twice).await, 0);
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;

    for part in 0..3 {
        let emit = format!(
            "select oncely.emit('', '{told}', t || ' {part}', ordering_key => 'o', tenant => t),
                oncely.emit('', '{told}', 'any', tenant => t)
             from unnest(array['acme', 'globex', 'initech', 'umbrella']) as t"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(emit)).execute(&mut world.sql).await.unwrap();
    }
    world.wait_for_ready(&told, 24).await;
    let bodies = crate::events::bodies(&world.broker, &told).await;
    for tenant in tenants {
        let of_tenant: Vec<_> = bodies.iter().filter(|body| body.starts_with(tenant)).collect();
        assert_eq!(of_tenant, [0, 1, 2].map(|part| format!("{tenant} {part}")).iter().collect::<Vec<_>>());
    }

    for arguments in
        [&["failed", "list"][..], &["failed", "requeue", "--all", "--yes"], &["status"], &["outbox", "list"]]
    {
        let output = world.oncely(arguments).await;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // Status has findings, and no event is left.
        let is_done = output.status.success() || matches!(arguments[0], "status" | "outbox");
        assert!(is_done && !text.contains("error:"), "{arguments:?}: {text}");
    }
    // They fail again, as letters of the next generation.
    world
        .wait_for("select count(*) from oncely.dead_letters where state = 'waiting' and generation = 2", 12)
        .await;
    world.stop(worker).await;
    world.stop(relay).await;

    let age = "update oncely.idempotency_keys set created_at = created_at - interval '20 days',
        completed_at = completed_at - interval '20 days'";
    sqlx::raw_sql(age).execute(&mut world.sql).await.unwrap();
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        world.count("select count(*) from oncely.idempotency_keys where status = 'COMPLETED'").await,
        0
    );
    let output = world.oncely(&["tenant", "erase", "acme", "--yes"]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.count("select count(*) from oncely.dead_letters where tenant = 'acme'").await, 0);
    world.broker.delete_queue(&told).await.unwrap();
}
