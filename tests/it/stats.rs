//! What processes write of what they did, and what people tell consumers to do.

use sqlx::AssertSqlSafe;

use crate::support::{Login, World};

/// A process of the schema's owner, and a consumer that a worker has registered.
const SETTING: &str = "
    select oncely.beat('00000000-0000-7000-8000-000000000001', 'worker', 'w', '1', 'h', 1, 'd', 'ready', null, '[]');
    select oncely.register_consumer('payments', '7 days', '1 day', 'body', 'dead_letter', 'w');";

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
    run(&mut world, "select oncely.roll_up_stats()").await.unwrap();
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
