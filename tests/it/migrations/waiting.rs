//! `oncely migrate plan`, and `oncely migrate` where somebody else has a lock.

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::{Database, eventually};

use super::up;
use crate::command_line::stdout;
use crate::support::{World, servers};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A world in which the last migration is pending, which locks the keys against everybody.
async fn one_pending() -> World {
    let world = World::new().await;
    let reverted = world.oncely(&["migrate", "revert", "--yes"]).await;
    assert!(reverted.status.success(), "{}", stderr(&reverted));
    world
}

/// Somebody who reads the keys in a transaction that does not end.
async fn reader(world: &World) -> (PgConnection, i32) {
    let mut reader = world.database.connect().await.unwrap();
    sqlx::raw_sql(
        "set application_name = 'a long report'; begin; lock table oncely.idempotency_keys in access share mode",
    )
    .execute(&mut reader)
    .await
    .unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut reader).await.unwrap();
    (reader, pid)
}

#[tokio::test]
async fn a_migration_that_waits_for_a_lock_lets_everybody_by_and_is_applied_in_the_end() {
    let mut world = one_pending().await;
    let (mut reader, pid) = reader(&world).await;
    let mut other = world.database.connect().await.unwrap();
    let database = world.database.clone();
    let others = async {
        let mut watch = database.connect().await.unwrap();
        for time in 1..=2 {
            let waits = "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'
                and relation = 'oncely.idempotency_keys'::regclass
                -- In copies of a database the table has the same number.
                and database = (select oid from pg_database where datname = current_database())";
            let watch = tokio::sync::Mutex::new(&mut watch);
            eventually("the migration waits", || async {
                let count: i64 =
                    sqlx::query_scalar(waits).fetch_one(&mut **watch.lock().await).await.unwrap();
                if count == 1 { Ok(()) } else { Err(count) }
            })
            .await
            .unwrap();
            // Who comes now stands behind it. The reader's transaction goes on, so what lets this by is that the migration gives up.
            let read = "set statement_timeout = '30s'; select from oncely.idempotency_keys limit 1";
            sqlx::raw_sql(read).execute(&mut other).await.unwrap_or_else(|error| panic!("{time}: {error}"));
        }
        sqlx::query("commit").execute(&mut reader).await.unwrap();
    };
    let (migrated, ()) = tokio::join!(world.oncely(&["migrate", "--wait", "5m"]), others);
    let text = stderr(&migrated);
    assert!(migrated.status.success(), "{text}");
    let waits =
        format!("(roles) waits: oncely.idempotency_keys is locked by pid {pid} (\"a long report\", login ");
    assert_eq!(text.matches(&waits).count(), 1, "once, however often it tries: {text}");
    assert!(text.contains("applied 1 migrations"), "{text}");
    assert_eq!(world.count("select count(*) from pg_policies where policyname = 'keys_worked'").await, 1);
}

#[tokio::test]
async fn a_migration_that_gets_no_lock_in_time_says_who_has_it_and_has_changed_nothing() {
    let world = one_pending().await;
    let (mut reader, pid) = reader(&world).await;
    let refused = world.oncely(&["migrate", "run", "--wait", "2s"]).await;
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    for part in [
        "migration 20261122000015 (roles) got no lock within 2s",
        &format!("oncely.idempotency_keys is locked by pid {pid} (\"a long report\", login "),
        &format!("select pg_terminate_backend({pid})"),
        "Nothing of it is applied",
        "run `oncely migrate` again",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(world.oncely(&["migrate", "info"]).await.status.code(), Some(1), "it is pending");
    sqlx::query("commit").execute(&mut reader).await.unwrap();
    assert!(world.oncely(&["migrate"]).await.status.success());
}

#[tokio::test]
async fn several_that_migrate_at_once_wait_for_each_other() {
    let mut world = World::new().await;
    world.database = Database::create(&servers().await.urls().postgres).await.unwrap();
    let migrate = || world.oncely(&["migrate", "--wait", "2m"]);
    let all = tokio::join!(migrate(), migrate(), migrate());
    for output in [all.0, all.1, all.2] {
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert!(world.oncely(&["migrate", "info"]).await.status.success());
}

#[tokio::test]
async fn the_plan_says_what_is_locked_and_how_large_it_is_and_changes_nothing() {
    let mut world = World::new().await;
    let done = world.oncely(&["migrate", "plan"]).await;
    assert_eq!((done.status.code(), stdout(&done).as_str()), (Some(0), ""), "{}", stderr(&done));
    assert!(stderr(&done).contains("nothing to do"));

    world = one_pending().await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', n::text, 'COMPLETED', 1, now(), now() from generate_series(1, 1000) as n;
         analyze oncely.idempotency_keys",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let plan = world.oncely(&["migrate", "plan", "-o", "json"]).await;
    assert_eq!(plan.status.code(), Some(1), "{}", stderr(&plan));
    let mut object: Value = serde_json::from_str(&stdout(&plan)).unwrap();
    let locks = object["locks"].as_array_mut().unwrap();
    assert!(locks.iter().any(|lock| lock["table"] == "oncely.audit"), "{locks:?}");
    locks.retain(|lock| lock["table"] == "oncely.idempotency_keys");
    let bytes = locks[0]["bytes"].take();
    assert!(bytes.as_i64().unwrap() > 50_000, "{bytes}");
    let row = json!({
        "version": 20_261_122_000_015_i64, "description": "roles", "table": "oncely.idempotency_keys",
        "kept_out": "everybody", "work": "catalogue", "rows": 1_000, "bytes": null, "seconds": 0.0,
    });
    assert_eq!(object, json!({ "schema": "oncely.migrate.plan/1", "locks": [row] }));
    let table = stdout(&world.oncely(&["migrate", "plan"]).await);
    for part in ["KEEPS WAITING", "oncely.idempotency_keys", "everybody", "a moment", "1000"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert_eq!(world.oncely(&["migrate", "info"]).await.status.code(), Some(1), "it is still pending");

    world.database = Database::create(&servers().await.urls().postgres).await.unwrap();
    let first = world.oncely(&["migrate", "plan"]).await;
    assert_eq!(first.status.code(), Some(1));
    let lines = stdout(&first);
    assert!(up().all(|migration| lines.contains(&migration.version.to_string())), "{lines}");
    assert!(lines.contains("nobody"), "{lines}");
    let mut sql = world.database.connect().await.unwrap();
    let made: bool =
        sqlx::query_scalar("select to_regnamespace('oncely') is not null").fetch_one(&mut sql).await.unwrap();
    assert!(!made, "nothing was made");
    sql.close().await.unwrap();
}

#[tokio::test]
async fn how_long_to_wait_is_a_matter_of_migrating_alone() {
    let world = World::new().await;
    let info = world.oncely(&["migrate", "--wait", "1s", "info"]).await;
    assert_eq!(info.status.code(), Some(2), "{}", stderr(&info));
    assert!(world.oncely(&["migrate", "--wait", "1s"]).await.status.success());
}
