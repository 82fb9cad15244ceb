//! The audit trail: its partitions under load, its floor, its seals.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::Connection as _;

use crate::support::World;

/// Nothing is sealed while a transaction runs that was there before it, be it of another test's database: some of those hold one for a
/// minute.
const SEALED: std::time::Duration = std::time::Duration::from_secs(180);

/// Returns those of these partitions that exist. A count of all would change when a week begins.
async fn existing(world: &mut World, partitions: &[String]) -> Vec<String> {
    sqlx::query_scalar("select p from unnest($1::text[]) with ordinality as u (p, n) where to_regclass('oncely.' || p) is not null order by n")
        .bind(partitions)
        .fetch_all(&mut world.sql)
        .await
        .unwrap()
}

/// Decisions of so many minutes ago, one a minute.
async fn decisions(world: &mut World, minutes: std::ops::Range<i32>) {
    sqlx::query(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now() - make_interval(mins => n), 1, 'payments', 'k' || n, 'q', 'completed', 'w'
         from generate_series($1, $2) as n",
    )
    .bind(minutes.start)
    .bind(minutes.end - 1)
    .execute(&mut world.sql)
    .await
    .unwrap();
}

async fn gc(world: &World) -> Value {
    let output = world.oncely(&["gc", "run", "--json"]).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn a_partition_is_made_while_others_write_into_its_week() {
    let mut world = World::new().await;
    let week = "select c.oid::regclass::text from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname = 'audit_' || to_char(date_trunc('week', now() at time zone 'UTC'), 'YYYYMMDD')";
    let this_week = world.text(week).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("drop table {this_week}")))
        .execute(&mut world.sql)
        .await
        .unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let (stop, mut connection) = (stop.clone(), world.database.connect().await.unwrap());
        writers.spawn(async move {
            let mut written = 0_i64;
            // Without a pause: the busier the better.
            while !stop.is_cancelled() {
                let mut transaction = connection.begin().await?;
                sqlx::query(
                    "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
                     values ('acme', clock_timestamp(), 1, 'payments', $1, 'q', 'completed', 'w')",
                )
                .bind(format!("{writer}-{written}"))
                .execute(&mut *transaction)
                .await?;
                // Time for which the row's lock on the table is held, as a business transaction holds it.
                sqlx::query("select pg_sleep(0.005)").execute(&mut *transaction).await?;
                transaction.commit().await?;
                written += 1;
            }
            Ok::<i64, sqlx::Error>(written)
        });
    }
    world.wait_for("select (count(*) > 20)::int::bigint from oncely.audit_default", 1).await;
    let mut failures = Vec::new();
    for _ in 0..8 {
        match sqlx::query_scalar::<_, Option<String>>("select oncely.make_audit_partition(now())")
            .fetch_one(&mut world.sql)
            .await
        {
            Ok(made) => {
                assert_eq!(made.map(|name| format!("oncely.{name}")), Some(this_week.clone()));
                break;
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    let default = world.count("select count(*) from oncely.audit_default").await;
    world.wait_for("select (count(*) > 200)::int::bigint from oncely.audit", 1).await;
    stop.cancel();
    let mut written = 0;
    while let Some(done) = writers.join_next().await {
        written += done.unwrap().expect("nobody who writes is refused");
    }
    assert!(failures.len() < 8, "{failures:?}");
    assert_eq!(default, 0, "all have moved");
    assert_eq!(world.count("select count(*) from oncely.audit").await, written);
    assert_eq!(world.count("select count(*) from oncely.audit_default").await, 0);
}

#[tokio::test]
async fn a_week_that_cannot_be_made_keeps_no_other_from_being_made_nor_an_old_one_from_being_dropped() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[audit]\nahead = \"70d\"");
    sqlx::query("select oncely.make_audit_partition(now() - interval '120 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    // Something has the name of the week in 42 days.
    let name = "select 'audit_' || to_char(date_trunc('week', now() at time zone 'UTC') + interval '42 days', 'YYYYMMDD')";
    let name = world.text(name).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("create domain oncely.{name} as integer")))
        .execute(&mut world.sql)
        .await
        .unwrap();
    let report = gc(&world).await;
    assert_eq!(report["partitions_dropped"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["failures"].as_array().unwrap().len(), 1, "{report}");
    assert!(report["partitions_made"].as_array().unwrap().len() >= 5, "{report}");
    let last =
        "select (max(right(c.relname, 8)) >= to_char(now() + interval '63 days', 'YYYYMMDD'))::int::bigint
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '[0-9]$'";
    assert_eq!(world.count(last).await, 1);
}

#[tokio::test]
async fn a_publication_for_all_tables_keeps_no_partition_from_being_made_or_dropped() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let without = "select string_agg(c.relname, ' ') from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and c.relreplident <> 'f'
          and not exists (select from pg_index as x where x.indrelid = c.oid and x.indisprimary)";
    assert_eq!(
        world.text(without).await,
        None,
        "tables that nobody may delete from while they are published"
    );
    // Rows that wait for their week, one to come and one long gone.
    sqlx::raw_sql(
        "create publication everything for all tables;
         insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now() + make_interval(days => days), 1, 'payments', 'k', 'q', 'completed', 'w'
         from unnest(array[-400, 63]) as days",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert_eq!(world.count("select count(*) from oncely.audit_default").await, 2);
    let made: Option<String> =
        sqlx::query_scalar("select oncely.make_audit_partition(now() + interval '63 days')")
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
    assert!(made.is_some(), "its row has moved there");
    sqlx::query("select oncely.make_audit_partition(now() - interval '120 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let report = gc(&world).await;
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["partitions_dropped"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(world.count("select count(*) from oncely.audit_default").await, 0);
    assert_eq!(world.count("select count(*) from oncely.audit").await, 1);
}

#[tokio::test]
async fn nobody_drops_a_part_of_the_trail_that_is_younger_than_the_floor() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[audit]\nretention = \"8d\"");
    let mut partitions = Vec::new();
    for days in [20, 50] {
        let partition: String =
            sqlx::query_scalar("select oncely.make_audit_partition(now() - make_interval(days => $1))")
                .bind(days)
                .fetch_one(&mut world.sql)
                .await
                .unwrap();
        partitions.push(partition);
    }
    assert_eq!(existing(&mut world, &partitions).await, partitions);
    for role in ["oncely_relay", "oncely_operator"] {
        for call in [
            "oncely.drop_audit_partitions(now() + interval '100 years')",
            "oncely.drop_audit_partition(now() - interval '29 days')",
        ] {
            let text = format!("set role {role}; select {call}");
            let error = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut world.sql).await.unwrap_err();
            assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("ONC20"), "{error}");
            sqlx::raw_sql("reset role").execute(&mut world.sql).await.unwrap();
        }
    }
    assert_eq!(existing(&mut world, &partitions).await, partitions);
    // A configuration that says less is told so.
    let report = gc(&world).await;
    assert!(
        report["notes"][0]
            .as_str()
            .unwrap()
            .starts_with("audit.retention is 8days, but the database keeps the trail for"),
        "{report}"
    );
    assert_eq!(existing(&mut world, &partitions).await, partitions[..1]);
    sqlx::query("update oncely.cell set audit_floor = '8 days'").execute(&mut world.sql).await.unwrap();
    gc(&world).await;
    assert_eq!(existing(&mut world, &partitions).await, [""; 0]);
}

#[tokio::test]
async fn the_database_says_who_acted() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "set session authorization oncely_operator;
         select oncely.record_action('', 'discard', '{}', 1, null, 'alice')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let forged = sqlx::query(
        "insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count)
         values ('', gen_random_uuid(), now() - interval '1 year', 'bob (bob)', 'discard', '{}', 1)",
    )
    .execute(&mut world.sql)
    .await
    .unwrap_err();
    assert_eq!(forged.as_database_error().unwrap().code().as_deref(), Some("42501"), "{forged}");
    sqlx::raw_sql("reset session authorization").execute(&mut world.sql).await.unwrap();
    let actor =
        "select actor || ' ' || (occurred_at > now() - interval '1 minute') from oncely.operator_actions";
    assert_eq!(world.text(actor).await.as_deref(), Some("oncely_operator (alice) true"));
}

/// A world with a sealed trail of a hundred decisions, of two hours ago to twenty minutes ago.
async fn sealed() -> World {
    sealed_from(20).await
}

/// The same, so many minutes ago.
async fn sealed_from(minutes: i32) -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    // Two hours ago may have been last week.
    sqlx::query("select oncely.make_audit_partition(now() - interval '7 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    decisions(&mut world, minutes..minutes + 100).await;
    // What stands in no partition of its own is sealed where it would stand.
    testbed::eventually_within(SEALED, "all is sealed", || async {
        let report = gc(&world).await;
        let sql = &mut world.database.connect().await?;
        let rows: Option<i64> = sqlx::query_scalar("select sum(row_count)::bigint from oncely.audit_seals")
            .fetch_one(sql)
            .await?;
        if rows == Some(100) { Ok(()) } else { Err(anyhow::anyhow!("{rows:?}, {report}")) }
    })
    .await
    .unwrap();
    world
}

async fn verify(world: &World, code: i32, more: &[&str]) -> Value {
    let mut arguments = vec!["audit", "verify", "--json"];
    arguments.extend(more);
    let output = world.oncely(&arguments).await;
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn a_trail_that_nobody_touched_verifies_and_goes_on_after_a_new_column_and_a_drop() {
    let mut world = sealed_from(2 * 1_440).await;
    let found = verify(&world, 0, &[]).await;
    assert_eq!((found["rows"].as_i64(), found["unsealed"].as_i64()), (Some(100), Some(0)), "{found}");
    let anchor = found["hash"].as_str().unwrap().to_owned();
    decisions(&mut world, 0..5).await;
    sqlx::raw_sql(
        "alter table oncely.audit add column later text;
         set timezone = 'Asia/Tokyo'; set datestyle = 'German'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert_eq!(verify(&world, 0, &["--anchor", &anchor]).await["unsealed"], 5);
    // After its retention it is dropped; the seals stay.
    sqlx::raw_sql(
        "update oncely.cell set audit_floor = '1 day';
         select oncely.append_seal('dropped', 'epoch', min(until_time))
         from oncely.audit_seals where until_time > (select max(occurred_at) from oncely.audit where occurred_at < now() - interval '1 day');
         delete from oncely.audit",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let found = verify(&world, 0, &["--anchor", &anchor]).await;
    assert!(found["dropped_until"].is_string(), "{found}");
    // What comes back there is nobody's.
    decisions(&mut world, 2_900..2_901).await;
    assert_eq!(verify(&world, 1, &[]).await["breaks"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn who_touches_a_sealed_row_or_a_seal_is_found_out_and_the_span_is_named() {
    let mut world = sealed().await;
    sqlx::raw_sql(
        "create table app.rows as table oncely.audit; create table app.seals as table oncely.audit_seals",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    for (what, statement) in [
        ("some were deleted", "delete from oncely.audit where key = 'k60'"),
        ("rows were changed", "update oncely.audit set detail = ',)' where key = 'k60'"),
        ("rows were changed", "update oncely.audit set occurred_at = occurred_at + interval '1 microsecond' where key = 'k60'"),
        (
            "some were added later",
            "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
             select tenant, occurred_at, attempt, consumer, 'k', queue, outcome, worker from oncely.audit where key = 'k60'",
        ),
        (
            "was changed",
            "update oncely.audit_seals set row_count = row_count - 1 where from_time <= now() - interval '1 hour' and until_time > now() - interval '1 hour'",
        ),
    ] {
        let at = "select concat_ws(' ', extract(epoch from now() - interval '1 hour'))";
        let at: f64 = world.text(at).await.unwrap().parse().unwrap();
        sqlx::raw_sql(statement).execute(&mut world.sql).await.unwrap();
        let found = verify(&world, 1, &[]).await;
        let broken = &found["breaks"][0];
        assert!(broken["what"].as_str().unwrap().contains(what), "{statement}: {found}");
        let time = |name: &str| {
            broken[name].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp() as f64
        };
        assert!(time("from") <= at + 60.0 && at - 60.0 <= time("until"), "{statement}: {found}");
        let shown = world.oncely(&["audit", "verify"]).await;
        assert_eq!(shown.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&shown.stdout).starts_with("✗ "), "{shown:?}");
        sqlx::raw_sql(
            "delete from oncely.audit; insert into oncely.audit table app.rows;
             delete from oncely.audit_seals; insert into oncely.audit_seals table app.seals",
        )
        .execute(&mut world.sql)
        .await
        .unwrap();
        verify(&world, 0, &[]).await;
    }
}

#[tokio::test]
async fn who_owns_the_schema_neither_drops_what_is_young_nor_has_its_functions_believed() {
    let mut world = sealed().await;
    // Functions that find all in order.
    let forged = "
        create or replace function oncely.audit_digest(
            from_time timestamptz, until_time timestamptz, out row_count bigint, out digest bytea
        ) language sql as $$
            select s.row_count, s.digest from oncely.audit_seals as s
            where s.from_time = audit_digest.from_time and s.until_time = audit_digest.until_time
        $$;
        create or replace function oncely.seal_hash(seal oncely.audit_seals) returns bytea language sql as 'select seal.hash'";
    sqlx::raw_sql(forged).execute(&mut world.sql).await.unwrap();
    verify(&world, 0, &[]).await;
    sqlx::raw_sql("update oncely.audit set tenant = 'globex' where key = 'k60'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let found = verify(&world, 1, &[]).await;
    assert!(found["breaks"][0]["what"].as_str().unwrap().contains("rows were changed"), "{found}");

    let mut world = sealed().await;
    sqlx::raw_sql(
        "select oncely.append_seal('dropped', 'epoch', max(until_time)) from oncely.audit_seals;
         delete from oncely.audit",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let found = verify(&world, 1, &[]).await;
    assert!(found["breaks"][0]["what"].as_str().unwrap().contains("audit_floor"), "{found}");
}

#[tokio::test]
async fn who_forges_the_whole_chain_does_not_forge_a_hash_that_was_written_down() {
    let mut world = sealed().await;
    let anchor = verify(&world, 0, &[]).await["hash"].as_str().unwrap().to_owned();
    sqlx::raw_sql(
        "delete from oncely.audit where key = 'k60';
         create temporary table spans as select from_time, until_time from oncely.audit_seals order by place;
         delete from oncely.audit_seals;
         select count(oncely.append_seal('rows', from_time, until_time)) from (select * from spans order by from_time) as s",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert_eq!(verify(&world, 0, &[]).await["rows"], 99);
    let found = verify(&world, 1, &["--anchor", &anchor]).await;
    assert!(found["breaks"][0]["what"].as_str().unwrap().contains("the anchor is not in"), "{found}");
}

#[tokio::test]
async fn a_span_is_sealed_only_when_nobody_can_still_write_into_it() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    sqlx::query("select oncely.make_audit_partition(now() - interval '7 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let mut other = world.database.connect().await.unwrap();
    let mut late = other.begin().await.unwrap();
    sqlx::query(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         values ('acme', now() - interval '1 hour', 1, 'payments', 'late', 'q', 'completed', 'w')",
    )
    .execute(&mut *late)
    .await
    .unwrap();
    gc(&world).await;
    gc(&world).await;
    let seals = "select count(*) from oncely.audit_seals where until_time > now() - interval '1 hour'";
    assert_eq!(world.count(seals).await, 0);
    late.commit().await.unwrap();
    testbed::eventually_within(SEALED, "it is sealed", || async {
        gc(&world).await;
        let sql = &mut world.database.connect().await?;
        let rows: Option<i64> = sqlx::query_scalar("select sum(row_count)::bigint from oncely.audit_seals")
            .fetch_one(sql)
            .await?;
        if rows == Some(1) { Ok(()) } else { Err(anyhow::anyhow!("{rows:?}")) }
    })
    .await
    .unwrap();
    verify(&world, 0, &[]).await;
}

#[tokio::test]
async fn a_list_of_what_came_fast_reads_it_a_few_times_and_no_more() {
    const ROWS: i64 = 240_000;
    let mut world = World::new().await;
    world.consumer("payments", "");
    // Twelve thousand a second, up to the end of what is asked for: no step is short of rows.
    let until: DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut world.sql).await.unwrap();
    sqlx::query(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', $2 - n * interval '1 second' / 12000, 1, 'payments', 'k' || n, 'q', 'completed', 'w' from generate_series($1, 1, -1) as n",
    )
    .bind(ROWS)
    .bind(until)
    .execute(&mut world.sql)
    .await
    .unwrap();
    sqlx::raw_sql("select oncely.summarize_audit(); select pg_stat_force_next_flush()")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_user_tables
        where schemaname = 'oncely' and relname like 'audit%'";
    let before = world.count(read).await;
    let (since, until) = ((until - TimeDelta::seconds(20)).to_rfc3339(), until.to_rfc3339());
    let listed = ["audit", "list", "--tenant", "nobody", "--since", &since, "--until", &until];
    let listed = world.oncely(&listed).await;
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    // A session tells what it has counted when it ends.
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'oncely audit'";
    world.wait_for(sessions, 0).await;
    sqlx::raw_sql("select pg_stat_clear_snapshot()").execute(&mut world.sql).await.unwrap();
    let read = world.count(read).await - before;
    assert!((ROWS..8 * ROWS).contains(&read), "{read} rows were read to look through {ROWS}");
}
