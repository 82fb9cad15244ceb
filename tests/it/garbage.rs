//! The garbage collection, and the audit table's partitions.

use sqlx::{Connection as _, Row as _};

use crate::support::{Login, World};

async fn with_keys(retention: &str) -> World {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 7");
    world.consumer("payments", &format!("retention = {retention:?}\nredelivery_horizon = \"1h\""));
    world.consumer("longer", "retention = \"60d\"");
    world.register("payments", retention).await;
    world.register("longer", "60d").await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
         select 'acme', consumer, status || age, status::oncely.key_status, 1, now() - make_interval(days => age),
            case when status <> 'IN_PROGRESS' then now() - make_interval(days => age) end,
            case when status = 'FAILED' then 'poison' end
         from unnest(array['COMPLETED', 'FAILED', 'IN_PROGRESS']) as status
         cross join generate_series(1, 30) as age
         cross join unnest(array['payments', 'longer', 'unconfigured']) as consumer",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world
}

async fn left(world: &mut World, consumer: &str) -> i64 {
    world.count(&format!("select count(*) from oncely.idempotency_keys where consumer = '{consumer}'")).await
}

#[tokio::test]
async fn keys_past_their_consumers_retention_go_in_bounded_batches() {
    let mut world = with_keys("10d").await;
    let plan = world.oncely(&["gc", "run", "--dry-run", "--json"]).await;
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan["schema"], "oncely.gc/1");
    assert_eq!(plan["consumers"][1]["completed"], 21);
    assert_eq!(left(&mut world, "payments").await, 90, "a dry run deletes nothing");
    let done = world.oncely(&["gc", "run", "--json"]).await;
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    for status in ["completed", "failed", "in_progress"] {
        assert_eq!(done["consumers"][1][status], 21, "{status}");
        assert_eq!(done["consumers"][0][status], 0, "{status}");
    }
    assert_eq!(left(&mut world, "payments").await, 27);
    assert_eq!(left(&mut world, "longer").await, 90);
    assert_eq!(left(&mut world, "unconfigured").await, 90, "nobody knows their retention");
    assert_eq!(
        world.count("select count(*) from oncely.idempotency_keys where consumer = 'payments' and key ~ '(1[0-9]|2[0-9]|30)$'").await,
        0
    );
}

#[tokio::test]
async fn a_step_of_a_collection_that_fails_keeps_no_other_from_its_work() {
    let mut world = with_keys("10d").await;
    sqlx::raw_sql(
        "create function app.keep() returns trigger language plpgsql as $$ begin raise exception 'it stays'; end $$;
         create trigger keep before delete on oncely.idempotency_keys for each row
         when (old.status = 'FAILED' or old.consumer = 'sql') execute function app.keep();
         insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at)
         values ('acme', 'sql', 'k', 'COMPLETED', 1, now() - interval '9 days', now() - interval '9 days', now() - interval '1 day');
         insert into oncely.ordering_keys (tenant, ordering_key, last_number, used_at) values ('acme', 'idle', 1, now() - interval '9 days')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let done = world.oncely(&["gc", "run", "--json"]).await;
    assert_eq!(done.status.code(), Some(1), "{}", String::from_utf8_lossy(&done.stderr));
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let payments = &done["consumers"][1];
    assert_eq!((&payments["completed"], &payments["failed"]), (&21.into(), &0.into()), "{done}");
    assert_eq!(payments["in_progress"], 21);
    let failures: Vec<&str> =
        done["failures"].as_array().unwrap().iter().filter_map(|text| text.as_str()).collect();
    assert!(
        failures.len() == 2 && failures[0].starts_with("cannot collect payments: it stays"),
        "{failures:?}"
    );
    assert!(failures[1].starts_with("cannot collect keys of oncely.claim: it stays"), "{failures:?}");
    assert_eq!(world.count("select count(*) from oncely.ordering_keys").await, 0);
}

#[tokio::test]
async fn a_key_whose_mirror_record_is_pending_is_not_collected() {
    let mut world = with_keys("10d").await;
    // Written 15 days ago and not relayed since: a collection must stop before it.
    sqlx::query(
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         values ('acme', gen_random_uuid(), 'mirror', now() - interval '15 days', now(), 'payments', decode(repeat('ab', 16), 'hex'))",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let completed =
        "select count(*) from oncely.idempotency_keys where consumer = 'payments' and status = 'COMPLETED'";
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    assert_eq!(world.count(completed).await, 14, "ages 1 to 14 are left: 10 to 14 wait for the relay");
    sqlx::query("delete from oncely.mirror_queue").execute(&mut world.sql).await.unwrap();
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    assert_eq!(world.count(completed).await, 9);
}

#[tokio::test]
async fn the_relay_collects_by_its_schedule() {
    let mut world = with_keys("10d").await;
    world.configure("");
    let text = std::fs::read_to_string(world.file()).unwrap();
    // Six fields: every second.
    std::fs::write(world.file(), text.replace("[gc]\n", "[gc]\nschedule = \"* * * * * *\"\n")).unwrap();
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.idempotency_keys where consumer = 'payments'", 27).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_second_collection_leaves_the_work_to_the_first() {
    let mut world = with_keys("10d").await;
    assert_eq!(
        world.text("select oncely.try_session_lock('collection', false)::text").await,
        Some("true".to_owned())
    );
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("another collection is at work"));
    assert_eq!(left(&mut world, "payments").await, 90);
    // Released, or held by a session that is gone.
    for end in
        ["select oncely.release_session_lock('collection')", "update oncely.locks set pid = 1 where pid <> 0"]
    {
        sqlx::query("select oncely.try_session_lock('collection', false)")
            .execute(&mut world.sql)
            .await
            .unwrap();
        sqlx::query(end).execute(&mut world.sql).await.unwrap();
        let output = world.oncely(&["gc", "run"]).await;
        assert!(!String::from_utf8_lossy(&output.stderr).contains("at work"), "{end}");
    }
}

/// Every advisory lock that there ever was here.
const SQUATTED: [&str; 5] = ["collection", "requeue", "requeueing", "count_letters", "audit_partitions"];

#[tokio::test]
async fn no_lock_that_any_login_may_take_stops_the_maintenance_or_a_requeue() {
    let mut world = with_keys("10d").await;
    let stranger = Login::create(&mut world, "oncely_emitter").await;
    let mut squatter = stranger.connect().await;
    for name in SQUATTED {
        sqlx::query("select pg_advisory_lock(hashtextextended('oncely.' || $1, 0))")
            .bind(name)
            .execute(&mut squatter)
            .await
            .unwrap();
    }
    let refused = sqlx::query("select oncely.take_lock('collection', false)").execute(&mut squatter).await;
    assert!(refused.is_err());
    let output = world.oncely(&["gc", "run"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("deleted"), "{said}");
    assert!(left(&mut world, "payments").await < 90);
    assert_eq!(world.text("select oncely.count_letters(1, 1)::text").await, Some("0".to_owned()));
    squatter.close().await.unwrap();
    stranger.drop_now(&mut world).await;
}

/// Any login can take an advisory lock, so nothing may depend on one. Those of notifications are hints.
#[test]
fn nothing_of_ours_depends_on_an_advisory_lock() {
    const HINTS: [&str; 3] = ["notify_relay.sql", "20261122000009_events.up.sql", "event_listener.rs"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders =
        vec![root.join("crates"), root.join("stores"), root.join("src"), root.join("migrations")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !HINTS.contains(&name.as_str()) {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let taken = ["pg_advisory", "pg_try_advisory"].iter().any(|word| text.contains(word));
                assert!(!taken, "{}", path.display());
            }
        }
    }
}

#[tokio::test]
async fn a_collection_finds_its_rows_through_the_partial_index() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', 'k' || n, 'COMPLETED', 1, now() - make_interval(secs => n), now() - make_interval(secs => n)
         from generate_series(1, 200000) as n;
         select oncely.observe_clock(), oncely.register_consumer('payments', '10 s', '1 s', 'body', 'dead_letter', 'w');
         analyze oncely.idempotency_keys, oncely.mirror_queue",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let statement = include_str!("../../crates/postgres/src/collect_completed.sql");
    let now = chrono::Utc::now();
    let with = |statement: String| {
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind("payments")
            .bind(now - chrono::Duration::seconds(190_000))
            .bind(5_000_i64)
            .bind(Some(now - chrono::Duration::seconds(195_000)))
            .bind(vec!["globex"])
            .bind(false)
            .bind("")
    };
    let plan = with(format!("explain {statement}")).fetch_all(&mut world.sql).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Scan using idempotency_keys_completed"), "{plan}");
    assert!(!plan.contains("Seq Scan on idempotency_keys"), "{plan}");
    // Where the batch before ended is where the index is entered, not what its rows are sifted by.
    let cond =
        plan.lines().find(|line| line.contains("Index Cond: ((consumer")).unwrap_or_else(|| panic!("{plan}"));
    assert!(cond.contains("completed_at >="), "{plan}");
    // Nor does what deletes them read the table as a whole, or look for them by key.
    let mut transaction = sqlx::Connection::begin(&mut world.sql).await.unwrap();
    let done = with(statement.to_owned()).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!((done.get::<i64, _>(0), done.get::<i64, _>(1)), (5_000, 5_000));
    let scans = "select seq_scan, idx_scan from pg_stat_xact_user_tables where relid = 'oncely.idempotency_keys'::regclass";
    let scans = sqlx::query(scans).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!((scans.get::<i64, _>(0), scans.get::<i64, _>(1)), (0, 1));
    // Nor any other table for each key: the statement itself may read one that is short.
    let scanned = "select relname::text, seq_scan from pg_stat_xact_user_tables where schemaname = 'oncely' and seq_scan > 1";
    let scanned: Vec<(String, i64)> = sqlx::query_as(scanned).fetch_all(&mut *transaction).await.unwrap();
    assert_eq!(scanned, []);
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_collection_in_many_batches_leaves_only_what_somebody_holds() {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 7");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.register("payments", "10d").await;
    // Many at the same moment, more than a batch, as a worker's transaction writes them.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', 'k' || n, 'COMPLETED', 1, t.at, t.at
         from generate_series(1, 100) as n
         cross join lateral (select now() - interval '20 days' - (n / 40) * interval '1 hour' as at) as t",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut other = world.database.connect().await.unwrap();
    let mut held = sqlx::Connection::begin(&mut other).await.unwrap();
    sqlx::query("select from oncely.idempotency_keys where key in ('k3', 'k50', 'k95') for update")
        .execute(&mut *held)
        .await
        .unwrap();
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{output:?}");
    let held_back: Vec<String> =
        sqlx::query_scalar("select key from oncely.idempotency_keys order by length(key), key")
            .fetch_all(&mut world.sql)
            .await
            .unwrap();
    assert_eq!(held_back, ["k3", "k50", "k95"]);
    held.rollback().await.unwrap();
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    assert_eq!(left(&mut world, "payments").await, 0, "the next collection begins anew");
}

#[tokio::test]
async fn a_key_that_is_taken_again_while_a_collection_waits_for_it_stays() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', 'k' || n, 'COMPLETED', 1, now() - interval '20 days', now() - interval '20 days'
         from generate_series(1, 10) as n;
         select oncely.observe_clock()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.register("payments", "10d").await;
    let mut other = world.database.connect().await.unwrap();
    let mut taking = sqlx::Connection::begin(&mut other).await.unwrap();
    sqlx::query(
        "update oncely.idempotency_keys set created_at = now(), completed_at = now() where key in ('k3', 'k7')",
    )
    .execute(&mut *taking)
    .await
    .unwrap();
    let mut collector = world.database.connect().await.unwrap();
    let collection = tokio::spawn(async move {
        let statement = include_str!("../../crates/postgres/src/collect_completed.sql");
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind("payments")
            .bind(chrono::Utc::now() - chrono::Duration::days(10))
            .bind(100_i64)
            .bind(None::<chrono::DateTime<chrono::Utc>>)
            .bind(Vec::<String>::new())
            .bind(false)
            .bind("")
            .execute(&mut collector)
            .await
    });
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    world.wait_for(waiting, 1).await;
    taking.commit().await.unwrap();
    collection.await.unwrap().unwrap();
    let kept: Vec<String> = sqlx::query_scalar("select key from oncely.idempotency_keys order by key")
        .fetch_all(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(kept, ["k3", "k7"]);
}

#[tokio::test]
async fn audit_partitions_are_made_ahead_and_old_ones_dropped() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let partitions = "select count(*) from pg_inherits where inhparent = 'oncely.audit'::regclass";
    assert!(world.count(partitions).await >= 5, "the migration made four weeks and the default");
    // A row of a week without a partition waits in the default one, and moves when the partition is made.
    for age in ["100 days", "40 days"] {
        sqlx::query(
            "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
             values ('acme', now() - $1::interval, 1, 'payments', 'k', 'q', 'completed', 'w')",
        )
        .bind(sqlx::postgres::types::PgInterval::try_from(humantime(age)).unwrap())
        .execute(&mut world.sql)
        .await
        .unwrap();
    }
    assert_eq!(world.count("select count(*) from oncely.audit_default").await, 2);
    sqlx::query("select oncely.make_audit_partitions(now() - interval '101 days', now())")
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(world.count("select count(*) from oncely.audit_default").await, 0);
    assert_eq!(world.count("select count(*) from oncely.audit").await, 2);
    let before = world.count(partitions).await;
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    assert_eq!(world.count("select count(*) from oncely.audit").await, 1, "audit.retention is 90 days");
    assert!(world.count(partitions).await < before);
}

fn humantime(text: &str) -> std::time::Duration {
    let days: u64 = text.split(' ').next().unwrap().parse().unwrap();
    std::time::Duration::from_secs(days * 86_400)
}
