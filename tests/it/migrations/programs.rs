//! Expand, migrate, contract: which programs go on on which schema.

use std::time::Duration;

use super::{file, up};
use crate::command_line::stdout;
use crate::support::{World, message};

/// A migration as a later release would have applied it.
async fn later(world: &mut World, description: &str) {
    sqlx::query(
        "insert into oncely._sqlx_migrations (version, description, success, checksum, execution_time)
         values (99990101000000, $1, true, '\\x00', 0)
         on conflict (version) do update set description = excluded.description",
    )
    .bind(description)
    .execute(&mut world.sql)
    .await
    .unwrap();
}

/// What an expanding migration may do to every table: columns that older programs do not name, another index, a looser constraint.
const EXPAND: &str = "
    do $$
    declare
        expanded text;
    begin
        for expanded in
            select c.oid::regclass::text from pg_class as c
            where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
              and c.relname <> '_sqlx_migrations'
        loop
            execute format('alter table %s add column later text, add column later_number integer not null default 7', expanded);
            execute format('create index on %s (later)', expanded);
        end loop;
    end $$;
    create function oncely.later() returns integer language sql set search_path = pg_catalog, pg_temp as 'select 1'";

#[tokio::test]
async fn an_older_program_goes_on_on_an_expanded_schema() {
    let mut world = World::new().await;
    sqlx::raw_sql(EXPAND).execute(&mut world.sql).await.unwrap();
    later(&mut world, "expand everything").await;
    world.configure("[relay]\npoll = \"20ms\"\n[audit]\nduplicates = true");
    world.consumer("payments", "replies = true");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    for key in ["a", "b", "a"] {
        world.publish("payments", message("acme", key).with_reply_to("nobody".into()), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    for verb in [
        &["check"][..],
        &["status"],
        &["gc", "run"],
        &["keys", "list", "--consumer", "payments", "--status", "completed"],
    ] {
        let output = world.oncely(verb).await;
        assert!(
            output.status.success(),
            "{verb:?}: {}{}",
            stdout(&output),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let migrated = world.oncely(&["migrate"]).await;
    let text = String::from_utf8_lossy(&migrated.stderr);
    assert!(migrated.status.success() && text.contains("a newer Oncely has migrated it"), "{text}");
    let plan = world.oncely(&["migrate", "plan"]).await;
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stderr));
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_program_is_refused_where_a_newer_one_has_taken_away_what_it_uses() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let latest = up().last().unwrap().version;
    // Known to this program: since then it does not use it.
    later(&mut world, &format!("drop something unused since {latest}")).await;
    let check = world.oncely(&["check"]).await;
    assert!(check.status.success(), "{}", stdout(&check));

    later(&mut world, "drop something unused since 99980101000000").await;
    let mut worker = world.start("worker");
    let status = worker.wait_for_end(Duration::from_secs(60)).await.unwrap();
    assert_eq!(status.code(), Some(78), "{}", worker.output());
    let text = worker.output();
    assert!(
        text.contains("migration 99990101000000 took away what this program still uses: update this program"),
        "{text}"
    );
}

#[tokio::test]
async fn a_program_that_migrations_are_missing_for_applies_none_between_those_of_a_newer_one() {
    let mut world = World::new().await;
    assert!(world.oncely(&["migrate", "revert", "--yes"]).await.status.success());
    later(&mut world, "expand everything").await;
    for verb in [&["migrate"][..], &["migrate", "plan"]] {
        let refused = world.oncely(verb).await;
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(4), "{text}");
        assert!(
            text.contains("[99990101000000] are unknown here") && text.contains("migrate with that one"),
            "{text}"
        );
    }
    sqlx::raw_sql(
        "delete from oncely._sqlx_migrations where version = 99990101000000;
         update oncely._sqlx_migrations set checksum = '\\x00' where version = 20261122000001",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let refused = world.oncely(&["migrate"]).await;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{text}");
    assert!(text.contains("[20261122000001] were applied from other files"), "{text}");
}

/// Its statements: without comments and without the bodies of functions, which run later. What stands in a `do` runs at once.
fn statements(sql: &str) -> String {
    let lines: Vec<&str> = sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let mut rest = lines.join("\n").to_lowercase();
    let mut code = String::new();
    while let Some((before, after)) = rest.split_once("\nas $") {
        let (tag, body) = after.split_once('$').unwrap();
        let end = format!("${tag}$");
        let (_, after) = body.split_once(&end).unwrap();
        code.push_str(before);
        rest = after.to_owned();
    }
    code.push_str(&rest);
    code.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What programs of before might miss, or stumble over.
fn taken_away(sql: &str) -> Vec<String> {
    let mut found = Vec::new();
    for statement in statements(sql).split(';') {
        let statement = statement.trim();
        let is_taken = [
            "drop table",
            "drop function",
            "drop view",
            "drop type",
            "drop column",
            "drop schema",
            "drop policy",
            "drop attribute",
            " rename ",
            "set not null",
            "drop default",
        ];
        let is_changed = statement.contains("alter column") && statement.contains(" type ");
        // A new function is everybody's, until it is not.
        let is_revoked = statement.starts_with("revoke ") && !statement.ends_with(" from public");
        let adds = statement.split("add column").skip(1);
        let mut adds = adds.filter(|column| column.contains("not null") && !column.contains("default"));
        if is_taken.iter().any(|words| statement.contains(words))
            || is_changed
            || is_revoked
            || adds.next().is_some()
        {
            found.push(statement.chars().take(100).collect());
        }
    }
    found
}

#[test]
fn what_a_migration_takes_away_nobody_has_used_since_an_earlier_one() {
    let mut versions = Vec::new();
    for migration in up() {
        let taken = taken_away(migration.sql.as_str());
        let since =
            migration.description.rsplit_once(" unused since ").map(|(_, since)| since.parse::<i64>());
        match since {
            None => assert_eq!(
                taken,
                Vec::<String>::new(),
                "{}: programs of before may need it. Take it away one release after the last program that uses it, by a migration whose \
                 name ends with _unused_since_VERSION: of the migration that those which do not use it know",
                file(migration)
            ),
            Some(since) => {
                assert!(
                    since.is_ok_and(|since| versions.contains(&since)),
                    "{}: no earlier one",
                    file(migration)
                );
            }
        }
        versions.push(migration.version);
    }
}

#[test]
fn what_programs_of_before_might_miss_is_found() {
    for sql in [
        "drop function oncely.emit(text);",
        "alter table oncely.audit\n    drop column detail;",
        "alter table oncely.audit rename column detail to text;",
        "alter table oncely.audit alter column attempt type bigint;",
        "alter table oncely.audit alter column detail set not null;",
        "alter table oncely.audit add column later text not null;",
        "revoke select on oncely.audit from oncely_worker;",
        "do $$ begin execute 'drop table oncely.audit'; end $$;",
    ] {
        assert_eq!(taken_away(sql).len(), 1, "{sql}");
    }
    for sql in [
        "create function oncely.tidy() returns void\nlanguage plpgsql\nas $$ begin drop table oncely.later; end $$;",
        "revoke execute on function oncely.tidy from public;",
        "-- drop table oncely.audit\nalter table oncely.audit add column later text, add column n integer not null default 7;",
        "create table oncely.later (tenant text not null);",
    ] {
        assert_eq!(taken_away(sql), Vec::<String>::new(), "{sql}");
    }
}
