//! Settings of a session that decide what a function's text means, or in which form it reads and writes values: none decides here, whatever
//! the role, the database or the server say.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::{World, message};

/// Each of them other than by default, as far as a program may be met by it.
const HOSTILE: &[(&str, &str)] = &[
    ("standard_conforming_strings", "off"),
    ("escape_string_warning", "off"),
    ("backslash_quote", "off"),
    ("bytea_output", "escape"),
    ("datestyle", "SQL, DMY"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "Pacific/Apia"),
    ("extra_float_digits", "-15"),
    ("xmloption", "document"),
    ("quote_all_identifiers", "on"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("lc_numeric", "C"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("check_function_bodies", "off"),
    ("plpgsql.variable_conflict", "use_variable"),
    ("enable_seqscan", "off"),
    ("enable_nestloop", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

async fn make_hostile(connection: &mut PgConnection, database: &str) {
    for (setting, value) in HOSTILE {
        let set = format!("alter database {database} set {setting} = '{value}'");
        connection.execute(AssertSqlSafe(set.clone())).await.unwrap_or_else(|error| panic!("{set}: {error}"));
    }
}

/// The text without comments and without literals that say by an `E` how they are read.
fn bare(text: &str) -> String {
    let (mut bare, mut rest) = (String::new(), text);
    // Not the end of a literal such as 'DONE'.
    let begins = |rest: &str| {
        let mut all = rest.match_indices("E'").map(|(at, _)| at);
        all.find(|at| !rest[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
    };
    while let Some(start) = begins(rest) {
        bare.push_str(&rest[..start]);
        let literal = &rest[start + 2..];
        let mut end = literal.len();
        let mut chars = literal.char_indices();
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => drop(chars.next()),
                '\'' => {
                    end = at + 1;
                    break;
                }
                _ => {}
            }
        }
        rest = &literal[end..];
    }
    bare.push_str(rest);
    bare.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_left_of_a_text_is_what_a_setting_could_read_in_two_ways() {
    assert_eq!(bare(r"a E'\n\'b' c '\d' -- \x"), r"a  c '\d' ");
}

#[tokio::test]
async fn no_text_of_ours_has_a_backslash_that_a_setting_gives_its_meaning() {
    let mut world = World::new().await;
    let functions = "select p.oid::regprocedure::text as name, coalesce(p.prosrc, '') as text from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace
        union all select 'policy ' || policyname, concat(qual, with_check) from pg_policies where schemaname = 'oncely'
        union all select 'constraint ' || conname, pg_get_constraintdef(oid) from pg_constraint
            where connamespace = 'oncely'::regnamespace and contype = 'c'";
    let mut texts: Vec<(String, String)> = Vec::new();
    for row in sqlx::query(functions).fetch_all(&mut world.sql).await.unwrap() {
        texts.push((row.get(0), row.get(1)));
    }
    assert!(texts.len() > 150, "{}", texts.len());
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap() {
        let path = entry.unwrap().path();
        // Functions, one a file, which the migrations hold as well.
        if path.is_dir() {
            continue;
        }
        texts.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    }
    for (name, text) in texts {
        assert!(!bare(&text).contains('\\'), "{name}: write it as E'…'");
    }
}

#[tokio::test]
async fn migrations_are_applied_and_functions_work_whatever_a_session_s_settings_are() {
    let mut world = World::new().await;
    let name = format!("hostile_{}", uuid::Uuid::new_v4().simple());
    world
        .sql
        .execute(AssertSqlSafe(format!("create database {name} template template0 encoding 'UTF8'")))
        .await
        .unwrap();
    make_hostile(&mut world.sql, &name).await;
    let (server, _) = world.database.url().rsplit_once('/').unwrap();
    let url = format!("{server}/{name}");
    let migrated = world.oncely_with(&["migrate"], &[("DATABASE_URL", url.as_str())]).await;
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let mut client = PgConnection::connect(&url).await.unwrap();
    let calls = "begin isolation level read committed;
        select oncely.claim('acme', 'payments', 'k', sha256('{}'));
        select oncely.complete('acme', 'payments', 'k', '{\"a\": [1, null]}');
        select oncely.emit('x', 'y', '[1]', ordering_key => 'o', tenant => 'acme');
        select oncely.emit('x', 'y', 'no json', tenant => 'acme');
        commit;
        begin isolation level read committed;
        select oncely.claim('acme', 'payments', 'f', sha256('{}'));
        select oncely.fail('acme', 'payments', 'f', sha256('{}'), 1, 'x', error_code => '22012', delay => interval '1 day 2 hours');
        commit";
    sqlx::raw_sql(calls).execute(&mut client).await.unwrap();
    let seen: String = sqlx::query_scalar(
        "select string_agg(k.key || ' ' || k.status || ' ' || coalesce(k.response::text, '-') || ' ' || octet_length(k.fingerprint), '; ' order by k.key)
         from oncely.idempotency_keys as k",
    )
    .fetch_one(&mut client)
    .await
    .unwrap();
    assert_eq!(seen, "f FAILED - 16; k COMPLETED {\"a\": [1, null]} 16");
    let types: String = sqlx::query_scalar(
        "select string_agg(coalesce(content_type, '-'), ', ' order by content_type) from oncely.events",
    )
    .fetch_one(&mut client)
    .await
    .unwrap();
    assert!(types.contains("application/json"), "{types}");
    client.close().await.unwrap();
    world.sql.execute(AssertSqlSafe(format!("drop database {name} with (force)"))).await.unwrap();
}

#[tokio::test]
async fn worker_relay_and_verbs_work_whatever_the_database_s_settings_are() {
    let mut world = World::new().await;
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    make_hostile(&mut world.sql, &name).await;
    world.consumer("payments", "");
    world.configure("[relay]\npoll = \"20ms\"");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    for number in 0..20 {
        let body = if number % 5 == 0 { r#"{"do": "reject"}"# } else { "{}" };
        world.publish("payments", message("acme", &format!("k{number}")), body).await;
    }
    world.wait_for("select count(*) from app.effects", 16).await;
    world.wait_for("select count(*) from oncely.dead_letters", 4).await;
    for arguments in [
        &["failed", "list"][..],
        &["failed", "groups"],
        &["status"],
        &["audit", "list"],
        &["gc", "--dry-run"],
        &["explain", "k1"],
        &["retention", "list"],
    ] {
        let output = world.oncely(arguments).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!told.contains("SQLSTATE"), "{arguments:?}: {told}");
    }
    for process in [worker, relay] {
        let log = world.stopped_log(process).await;
        assert!(!log.contains("ERROR"), "{log}");
    }
}

#[tokio::test]
async fn no_session_of_a_program_compiles_its_statements() {
    let mut world = World::new().await;
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    for setting in ["jit = on", "jit_above_cost = 0"] {
        world.sql.execute(AssertSqlSafe(format!("alter database {name} set {setting}"))).await.unwrap();
    }
    let tells = "create function app.tell(message oncely.message) returns jsonb language plpgsql as $$
        begin
            insert into app.effects (tenant, consumer, key, attempt)
                values (message.tenant, message.consumer, current_setting('jit'), message.attempt);
            return null;
        end $$";
    world.sql.execute(tells).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.tell\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'off'", 1).await;
    world.stop(worker).await;
}
