//! What processes write of what they did, and what people tell consumers to do.

use sqlx::AssertSqlSafe;

use crate::support::{Login, World};

/// A process of the schema's owner, and a consumer that a worker has registered.
const SETTING: &str = "
    select oncely.beat('00000000-0000-7000-8000-000000000001', 'worker', 'w', '1', 'h', 1, 'd', 'ready', null, '[]');
    select oncely.register_consumer('payments', '7 days', '1 day', 'body', 'dead_letter', 'w');";

/// A relay of the schema's owner.
const RELAY: &str = "select oncely.beat('00000000-0000-7000-8000-000000000009', 'relay', 'r', '1', 'h', 1, 'd', 'ready', null, '[]')";

/// The counts of a span of `payments`, as JSON.
fn counts(consumer: &str, completed: u32) -> String {
    let durations = format!("[{}]", vec!["1"; 20].join(","));
    format!(
        r#"{{"consumer": "{consumer}", "delivered": {completed}, "completed": {completed}, "refused": 0, "duplicates": 2, "retried": 0,
            "postponed": 0, "dead_lettered": 0, "fallbacks": 0, "outages": 0, "durations": {durations}}}"#
    )
}

async fn run(world: &mut World, statement: &str) -> Result<(), String> {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut world.sql).await;
    done.map(|_| ()).map_err(|error| {
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        code.unwrap_or_else(|| error.to_string())
    })
}

fn record(process: u32, at: &str, counts: &str) -> String {
    format!(
        "select oncely.record_stats('00000000-0000-7000-8000-{process:012}', date_bin('10 seconds', {at}, 'epoch'), '[{counts}]')"
    )
}

const NOW: &str = "clock_timestamp()";

#[tokio::test]
async fn a_span_that_is_written_again_counts_once() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    let span = "select date_bin('10 seconds', clock_timestamp() - interval '20 seconds', 'epoch')::text";
    let at = format!("timestamptz '{}'", world.text(span).await.unwrap());
    // Its reply was lost, and more has been done since.
    run(&mut world, &record(1, &at, &counts("payments", 3))).await.unwrap();
    run(&mut world, &record(1, &at, &counts("payments", 5))).await.unwrap();
    let written = "select concat(count(*), ' ', sum(completed), ' ', sum(durations[20])) from oncely.stats";
    assert_eq!(world.text(written).await.as_deref(), Some("1 5 1"));
}

#[tokio::test]
async fn nobody_writes_for_another_process_or_an_unknown_consumer_or_at_any_time() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    run(&mut world, &record(1, NOW, &counts("nobody", 3))).await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.stats").await, 0, "no worker has registered it");
    assert_eq!(run(&mut world, &record(2, NOW, &counts("payments", 3))).await, Err("ONC16".to_owned()));
    for at in ["clock_timestamp() - interval '2 hours'", "clock_timestamp() + interval '2 minutes'"] {
        let late = record(1, at, &counts("payments", 3));
        assert_eq!(run(&mut world, &late).await, Err("ONC11".to_owned()), "{at}");
    }
    let odd = "select oncely.record_stats('00000000-0000-7000-8000-000000000001', date_bin('10 seconds', clock_timestamp(), 'epoch') + '1 s', '[]')";
    assert_eq!(run(&mut world, odd).await, Err("ONC11".to_owned()));
    let negative = counts("payments", 3).replace("\"duplicates\": 2", "\"duplicates\": -1");
    assert_eq!(run(&mut world, &record(1, NOW, &negative)).await, Err("23514".to_owned()));
    let mut login = Login::create(&mut world, "oncely_worker").await.connect().await;
    let stolen =
        sqlx::raw_sql(AssertSqlSafe(record(1, NOW, &counts("payments", 3)))).execute(&mut login).await;
    let code =
        stolen.unwrap_err().as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
    assert_eq!(code.as_deref(), Some("ONC16"), "another login's process");
}

#[tokio::test]
async fn old_spans_become_minutes_and_nothing_is_counted_twice_or_lost() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    // Two processes, half an hour of spans each, half of it older than two hours; and what is older than a week.
    run(
        &mut world,
        "insert into oncely.stats
         select date_bin('10 seconds', clock_timestamp() - interval '105 minutes' - s * interval '10 seconds', 'epoch'), 'payments', p.id,
             1, 1, 0, 2, 0, 0, 0, 0, 0, array_fill(3::bigint, array[20])
         from generate_series(0, 179) as s
         cross join (values (gen_random_uuid()), (gen_random_uuid())) as p (id);
         insert into oncely.stats
         select date_bin('1 minute', clock_timestamp() - interval '8 days', 'epoch'), 'payments',
             '00000000-0000-0000-0000-000000000000', 9, 9, 9, 9, 9, 9, 9, 9, 9, array_fill(9::bigint, array[20]);
         insert into oncely.relay_stats
         select date_bin('10 seconds', clock_timestamp() - interval '3 hours' + s * interval '10 seconds', 'epoch'), 'redis',
             gen_random_uuid(), 1, 0, 0, s, s
         from generate_series(0, 11) as s",
    )
    .await
    .unwrap();
    let sums = "select concat(sum(completed), ' ', sum(duplicates), ' ', sum(durations[1]), ' ', sum(durations[20])) from oncely.stats
                where at > clock_timestamp() - interval '7 days'";
    assert_eq!(world.text(sums).await.as_deref(), Some("360 720 1080 1080"));
    for statement in ["select oncely.roll_up_stats()", "select oncely.prune_stats()"] {
        run(&mut world, statement).await.unwrap();
    }
    assert_eq!(world.text(sums).await.as_deref(), Some("360 720 1080 1080"));
    let rows = world.count("select count(*) from oncely.stats").await;
    assert!((195..=220).contains(&rows), "{rows}: half stay spans, the others are one a minute");
    assert_eq!(
        world
            .count("select count(*) from oncely.stats where at < clock_timestamp() - interval '7 days'")
            .await,
        0
    );
    let relay = "select concat(sum(relayed), ' ', max(records), ' ', count(*) <= 3) from oncely.relay_stats";
    assert_eq!(world.text(relay).await.as_deref(), Some("12 11 t"));
    // What came in between is added to its minute.
    run(
        &mut world,
        "insert into oncely.stats
         select (select min(at) from oncely.stats), 'payments', gen_random_uuid(), 1, 1, 0, 0, 0, 0, 0, 0, 0, array_fill(1::bigint, array[20])",
    )
    .await
    .unwrap();
    run(&mut world, "select oncely.roll_up_stats()").await.unwrap();
    assert_eq!(world.text(sums).await.as_deref(), Some("361 720 1081 1081"));
    assert_eq!(world.count("select count(*) from oncely.stats").await, rows);
}

/// What PostgreSQL's largest number does to a sum, and what is no age.
#[tokio::test]
async fn a_span_that_says_more_than_there_can_be_is_refused() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    run(&mut world, RELAY).await.unwrap();
    let good = counts("payments", 3);
    for (what, said) in [
        ("delivered", good.replace("\"delivered\": 3", "\"delivered\": 9223372036854775807")),
        ("outages", good.replace("\"outages\": 0", "\"outages\": 1000000000001")),
        ("negative bucket", good.replacen("[1,", "[-1,", 1)),
        ("full bucket", good.replacen("[1,", "[9223372036854775807,", 1)),
    ] {
        assert_eq!(run(&mut world, &record(1, NOW, &said)).await, Err("23514".to_owned()), "{what}");
    }
    for (records, age) in [("9223372036854775807", "1"), ("1", "\"NaN\""), ("1", "\"Infinity\""), ("1", "-1")]
    {
        let said = format!(
            "select oncely.record_relay_stats('00000000-0000-7000-8000-000000000009', date_bin('10 seconds', {NOW}, 'epoch'),
                 '[{{\"target\": \"redis\", \"relayed\": 1, \"failed\": 0, \"parked\": 0, \"records\": {records}, \"oldest_age\": {age}}}]')"
        );
        assert_eq!(run(&mut world, &said).await, Err("23514".to_owned()), "{records} {age}");
    }
}

/// The bounds as a table has them that somebody has changed, and rows beyond them: of now, of three hours and of eight days ago.
const BEYOND: &str = "
    alter table oncely.stats drop constraint stats_counts, drop constraint stats_durations;
    alter table oncely.relay_stats drop constraint relay_stats_counts;
    insert into oncely.stats
    select date_bin('10 seconds', clock_timestamp() - back, 'epoch'), 'payments', gen_random_uuid(),
        9223372036854775807, 9223372036854775807, 1, 1, 1, 1, 1, 1, 1, array_fill(9223372036854775807, array[20])
    from unnest(array['25 seconds', '3 hours', '8 days']::interval[]) as back, generate_series(1, 2);
    insert into oncely.relay_stats
    select date_bin('10 seconds', clock_timestamp() - back, 'epoch'), 'redis', gen_random_uuid(),
        9223372036854775807, 1, 1, 9223372036854775807, 1
    from unnest(array['25 seconds', '3 hours', '8 days']::interval[]) as back, generate_series(1, 2)";

#[tokio::test]
async fn rows_beyond_all_bounds_end_neither_the_roll_up_nor_a_look() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    run(&mut world, SETTING).await.unwrap();
    run(&mut world, BEYOND).await.unwrap();
    let (look, top) = (world.oncely(&["consumers", "list"]).await, world.oncely(&["top", "--once"]).await);
    assert!(look.status.success(), "{}", String::from_utf8_lossy(&look.stderr));
    assert!(top.status.success(), "{}", String::from_utf8_lossy(&top.stderr));
    run(&mut world, "select oncely.roll_up_stats()").await.unwrap();
    let minutes =
        "select concat_ws(' ', count(*), max(delivered), max(durations[20]), sum(refused)) from oncely.stats
        where process = '00000000-0000-0000-0000-000000000000' and at > clock_timestamp() - interval '1 day'";
    assert_eq!(world.text(minutes).await.as_deref(), Some("1 1000000000000 1000000000000 2"));
    run(&mut world, "select oncely.prune_stats()").await.unwrap();
    let old = "select (select count(*) from oncely.stats where at < now() - interval '7 days')
        + (select count(*) from oncely.relay_stats where at < now() - interval '7 days')";
    assert_eq!(world.count(old).await, 0);
}

#[tokio::test]
async fn what_somebody_holds_is_left_for_the_next_time() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    run(
        &mut world,
        "insert into oncely.stats
         select date_bin('10 seconds', clock_timestamp() - back, 'epoch'), 'payments', p.id, 1, 1, 0, 0, 0, 0, 0, 0, 0,
             array_fill(1::bigint, array[20])
         from unnest(array['3 hours', '8 days']::interval[]) as back,
             (values ('00000000-0000-7000-8000-000000000001'::uuid), ('00000000-0000-7000-8000-000000000002')) as p (id);
         update oncely.processes set last_seen_at = last_seen_at - interval '2 hours'",
    )
    .await
    .unwrap();
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql(
        "begin; select from oncely.processes for update;
         select from oncely.stats where process = '00000000-0000-7000-8000-000000000001' for update",
    )
    .execute(&mut holder)
    .await
    .unwrap();
    run(&mut world, "set lock_timeout = '2s'").await.unwrap();
    for statement in [
        "select oncely.roll_up_stats()",
        "select oncely.prune_stats()",
        "select oncely.bury_processes(now())",
    ] {
        run(&mut world, statement).await.unwrap();
    }
    let left = "select concat_ws(' ', (select count(*) from oncely.stats where process <> '00000000-0000-0000-0000-000000000000'),
        (select count(*) from oncely.stats where process = '00000000-0000-0000-0000-000000000000'),
        (select count(*) from oncely.processes))";
    assert_eq!(world.text(left).await.as_deref(), Some("2 1 1"));
    sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    for statement in [
        "select oncely.roll_up_stats()",
        "select oncely.prune_stats()",
        "select oncely.bury_processes(now())",
    ] {
        run(&mut world, statement).await.unwrap();
    }
    assert_eq!(world.text(left).await.as_deref(), Some("0 1 0"));
    assert_eq!(world.count("select sum(completed)::bigint from oncely.stats").await, 2);
}

/// What a login is told, by SQLSTATE.
async fn tried(login: &mut sqlx::PgConnection, statement: &str) -> Result<(), String> {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(login).await;
    done.map(|_| ()).map_err(|error| {
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        code.unwrap_or_else(|| error.to_string())
    })
}

fn beat(id: &str, kind: &str, name: &str) -> String {
    format!("select oncely.beat({id}, '{kind}', '{name}', '1', 'h', 1, 'd', 'ready', null, '[]')")
}

#[tokio::test]
async fn a_login_lives_as_what_it_is_and_under_an_id_of_its_own() {
    let mut world = World::new().await;
    let worker = Login::create(&mut world, "oncely_worker").await;
    let relay = Login::create(&mut world, "oncely_relay").await;
    let (mut as_worker, mut as_relay) = (worker.connect().await, relay.connect().await);
    let id = "gen_random_uuid()";
    assert_eq!(tried(&mut as_worker, &beat(id, "worker", "w")).await, Ok(()));
    assert_eq!(tried(&mut as_relay, &beat(id, "relay", "r")).await, Ok(()));
    assert_eq!(tried(&mut as_worker, &beat(id, "relay", "w")).await, Err("ONC16".to_owned()));
    assert_eq!(tried(&mut as_relay, &beat(id, "worker", "r")).await, Err("ONC16".to_owned()));
    assert_eq!(tried(&mut as_relay, &beat(id, "gateway", "r")).await, Err("ONC16".to_owned()));
    // It names the minutes of all processes together.
    let all = "'00000000-0000-0000-0000-000000000000'";
    assert_eq!(tried(&mut as_worker, &beat(all, "worker", "w")).await, Err("23514".to_owned()));
    let known = "select id::text from oncely.processes where kind = 'relay'";
    let others = format!("'{}'", world.text(known).await.unwrap());
    assert_eq!(tried(&mut as_worker, &beat(&others, "worker", "w")).await, Err("23505".to_owned()));
    assert_eq!(tried(&mut as_worker, &format!("select oncely.leave({others})")).await, Ok(()));
    assert_eq!(world.count("select count(*) from oncely.processes").await, 2);
    // A login without the role in its own session has it all the same.
    let alter = format!("alter role {} noinherit; alter role {0} set role oncely_worker", worker.name);
    run(&mut world, &alter).await.unwrap();
    assert_eq!(tried(&mut worker.connect().await, &beat(id, "worker", "w")).await, Ok(()));
    drop((as_worker, as_relay));
    worker.drop_now(&mut world).await;
    relay.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_login_has_a_hundred_processes_and_hides_nobody_elses() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let login = Login::create(&mut world, "oncely_worker").await;
    let mut as_worker = login.connect().await;
    run(&mut world, &beat("gen_random_uuid()", "worker", "zoe")).await.unwrap();
    let hundred =
        "select oncely.beat(gen_random_uuid(), 'worker', 'a', '1', 'h', 1, 'd', 'ready', null, '[]')
        from generate_series(1, 100)";
    assert_eq!(tried(&mut as_worker, hundred).await, Ok(()));
    assert_eq!(
        tried(&mut as_worker, &beat("gen_random_uuid()", "worker", "b")).await,
        Err("53400".to_owned())
    );
    // Those that ended without a word make room for those that come after them.
    run(
        &mut world,
        "update oncely.processes set last_seen_at = now() - interval '2 minutes' where name = 'a'",
    )
    .await
    .unwrap();
    assert_eq!(tried(&mut as_worker, &beat("gen_random_uuid()", "worker", "b")).await, Ok(()));
    // And where more have come at the same moment, the others are seen all the same.
    run(
        &mut world,
        "insert into oncely.processes
         select gen_random_uuid(), kind, name, version, host, pid, config_digest, state, reason, login, started_at, now(), has_succeeded, consumers
         from oncely.processes cross join generate_series(1, 2000) where name = 'b'",
    )
    .await
    .unwrap();
    let output = world.oncely(&["status", "--json"]).await;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = told["processes"].as_array().unwrap();
    assert!(processes.iter().any(|process| process["name"] == "zoe"), "{}", processes.len());
    assert_eq!(processes.len(), 101);
    drop(as_worker);
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_login_that_comes_and_goes_fills_no_span() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    let login = Login::create(&mut world, "oncely_worker").await;
    let mut as_worker = login.connect().await;
    let span = "select date_bin('10 seconds', clock_timestamp() - interval '20 seconds', 'epoch')::text";
    let at = format!("timestamptz '{}'", world.text(span).await.unwrap());
    let turn = |number: u32| {
        let id = format!("'00000000-0000-7000-8000-{number:012}'");
        [
            beat(&id, "worker", "w"),
            record(number, &at, &counts("payments", 3)),
            format!("select oncely.leave({id})"),
        ]
        .join(";")
    };
    for number in 101..=200 {
        assert_eq!(tried(&mut as_worker, &turn(number)).await, Ok(()), "{number}");
    }
    assert_eq!(tried(&mut as_worker, &turn(201)).await, Err("53400".to_owned()));
    assert_eq!(world.count("select count(*) from oncely.stats").await, 100);
    drop(as_worker);
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_pause_has_a_reason_and_an_end_in_the_future_and_is_recorded() {
    let mut world = World::new().await;
    run(&mut world, SETTING).await.unwrap();
    for (call, code) in [
        ("oncely.pause_consumer('nobody', null, 'why', 'me')", "ONC11"),
        ("oncely.pause_consumer('payments', null, '', 'me')", "ONC11"),
        ("oncely.pause_consumer('payments', null, null, 'me')", "ONC11"),
        ("oncely.pause_consumer('payments', clock_timestamp() - interval '1 s', 'why', 'me')", "ONC11"),
        ("oncely.pause_consumer('payments', '10000-01-01', 'why', 'me')", "ONC11"),
        ("oncely.pause_consumer('payments', 'infinity', 'why', 'me')", "ONC11"),
    ] {
        assert_eq!(run(&mut world, &format!("select {call}")).await, Err(code.to_owned()), "{call}");
    }
    run(&mut world, "select oncely.pause_consumer('payments', null, 'a deployment', 'ana')").await.unwrap();
    run(
        &mut world,
        "select oncely.pause_consumer('payments', clock_timestamp() + interval '1 h', 'longer', 'bo')",
    )
    .await
    .unwrap();
    let held = "select concat(reason, ' ', paused_by like '% (bo)', ' ', paused_until is not null) from oncely.controls";
    assert_eq!(world.text(held).await.as_deref(), Some("longer t t"));
    assert_eq!(
        world.text("select oncely.resume_consumer('payments', null, 'ana')::text").await.as_deref(),
        Some("true")
    );
    assert_eq!(
        world.text("select oncely.resume_consumer('payments', null, 'ana')::text").await.as_deref(),
        Some("false")
    );
    let actions = "select string_agg(verb, ' ' order by occurred_at) from oncely.operator_actions";
    assert_eq!(world.text(actions).await.as_deref(), Some("pause pause resume"));
}
