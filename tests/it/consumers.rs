//! `oncely consumers`: how consumers stand, and who has paused them.

use serde_json::{Value, json};
use testbed::eventually;

use crate::command_line::stdout;
use crate::support::{Login, World, message};

/// The row of a consumer.
async fn row(world: &World, name: &str) -> Value {
    let output = world.oncely(&["consumers", "list", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(object["schema"], "oncely.consumers/1");
    let rows = object["consumers"].as_array().unwrap();
    rows.iter().find(|row| row["consumer"] == name).cloned().unwrap_or(Value::Null)
}

async fn until_state(world: &World, name: &str, state: &str) -> Value {
    eventually(&format!("{name} is {state}"), || async {
        let row = row(world, name).await;
        if row["state"] == state { Ok(row) } else { Err(row.to_string()) }
    })
    .await
    .unwrap()
}

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_consumer_runs_stalls_or_has_no_worker_and_the_list_says_why() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let running = until_state(&world, "payments", "running").await;
    assert_eq!((&running["workers"], &running["reason"]), (&json!(1), &Value::Null), "{running}");
    assert_eq!((&running["configured"], &running["retention"]), (&json!(true), &json!(604_800.0)));
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    let stalled = until_state(&world, "payments", "stalled").await;
    assert_eq!(stalled["reason"], "undefined table (SQLSTATE 42P01)");
    assert!(stalled["since"].is_string() && stalled["inflight"] == 1, "{stalled}");
    sqlx::query("create table app.not_there (n integer)").execute(&mut world.sql).await.unwrap();
    until_state(&world, "payments", "running").await;
    world.stop(worker).await;
    // Known to the database alone, and to the configuration alone.
    world.register("ledger", "3 days").await;
    world.reconfigure("name = \"payments\"", "name = \"receipts\"");
    let ledger = row(&world, "ledger").await;
    assert_eq!((&ledger["state"], &ledger["configured"]), (&json!("no_worker"), &json!(false)));
    let receipts = row(&world, "receipts").await;
    assert_eq!((&receipts["configured"], &receipts["retention"]), (&json!(true), &Value::Null));
    let text = stdout(&world.oncely(&["consumers", "list"]).await);
    for part in ["NO WORKER", "3days", "not in this configuration"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    // Where there is no configuration, the database is enough.
    let bare = [("ONCELY_CONFIG", "/nowhere/oncely.toml")];
    let output = world.oncely_with(&["consumers", "list", "-o", "ndjson"], &bare).await;
    let text = stdout(&output);
    assert!(text.contains(r#""consumer":"ledger""#) && text.contains(r#""configured":null"#), "{text}");
}

#[tokio::test]
async fn the_last_minute_comes_from_the_spans_that_are_over() {
    let mut world = World::new().await;
    world.register("ledger", "3 days").await;
    // In the whole spans of the last minute, in the one that is being written, and before.
    let spans = "insert into oncely.stats
        select date_bin('10 seconds', clock_timestamp(), 'epoch') - s * interval '10 seconds', 'ledger', gen_random_uuid(), 12, 10, 1, 1, 2, 0, 3,
            0, 0, array_fill(0::bigint, array[4]) || 99::bigint || array_fill(0::bigint, array[14]) || 1::bigint
        from generate_series(0, 8) as s, generate_series(1, 2)";
    // The minute ends where a span ends: asked once more, it is another one's.
    eventually("the last minute", || async {
        let mut sql = world.database.connect().await.map_err(|error| error.to_string())?;
        let again = format!("delete from oncely.stats; {spans}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(again))
            .execute(&mut sql)
            .await
            .map_err(|error| error.to_string())?;
        let row = row(&world, "ledger").await;
        let counts =
            ["delivered", "done", "duplicates", "retried", "dead_lettered"].map(|name| row[name].clone());
        let wanted = [144, 132, 12, 24, 36].map(Value::from);
        if counts != wanted || row["done_by_span"] != json!([22, 22, 22, 22, 22, 22]) {
            return Err(row.to_string());
        }
        let p50 = row["p50"].as_f64().unwrap();
        if (0.005..=0.01).contains(&p50) && row["p99"].as_f64() == Some(0.01) {
            Ok(())
        } else {
            Err(row.to_string())
        }
    })
    .await
    .unwrap();
    let text = stdout(&world.oncely(&["consumers", "list"]).await);
    assert!(text.contains("10 ms") && text.contains("NO WORKER"), "{text}");
}

#[tokio::test]
async fn a_pause_says_who_why_and_until_when_and_is_recorded() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.register("payments", "7 days").await;
    let operator = [("USER", "ana")];
    let paused = world
        .oncely_with(
            &["consumers", "pause", "payments", "--reason", "schema change", "--for", "30m", "--json"],
            &operator,
        )
        .await;
    assert_eq!(paused.status.code(), Some(0), "{}", told(&paused));
    assert!(told(&paused).contains("payments is paused until"), "{}", told(&paused));
    let object: Value = serde_json::from_slice(&paused.stdout).unwrap();
    assert_eq!(object["pause"]["reason"], "schema change");
    let listed = row(&world, "payments").await;
    assert_eq!((&listed["state"], &listed["reason"]), (&json!("paused"), &json!("schema change")));
    assert!(listed["paused_by"].as_str().unwrap().ends_with(" (ana)"), "{listed}");
    assert!(listed["until"].is_string(), "{listed}");
    // A second one changes reason and end, and tells of the first.
    let again = world.oncely(&["consumers", "pause", "payments", "--reason", "longer"]).await;
    assert!(again.status.success());
    let text = told(&again);
    assert!(text.contains("until `oncely") && text.contains("(ana): schema change"), "{text}");
    assert_eq!(row(&world, "payments").await["until"], Value::Null);
    let resumed = world.oncely(&["consumers", "resume", "payments", "--reason", "done"]).await;
    assert_eq!(resumed.status.code(), Some(0), "{}", told(&resumed));
    assert_eq!(row(&world, "payments").await["state"], "no_worker");
    let actions = "select string_agg(concat(verb, ' ', reason), ', ' order by occurred_at) from oncely.operator_actions";
    assert_eq!(world.text(actions).await.as_deref(), Some("pause schema change, pause longer, resume done"));
}

#[tokio::test]
async fn a_worker_obeys_and_what_it_did_is_listed() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    until_state(&world, "payments", "running").await;
    assert!(world.oncely(&["consumers", "pause", "payments", "--reason", "why"]).await.status.success());
    world.wait_for_line(&worker, "paused").await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for_ready(&queue, 1).await;
    until_state(&world, "payments", "paused").await;
    assert!(world.oncely(&["consumers", "resume", "payments"]).await.status.success());
    world.wait_for("select count(*) from app.effects", 1).await;
    eventually("it is in the last minute", || async {
        let row = row(&world, "payments").await;
        let is_told = row["done"] == 1 && row["p99"].is_number() && row["completed_at"].is_string();
        if is_told { Ok(()) } else { Err(row.to_string()) }
    })
    .await
    .unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn what_can_not_be_paused_or_resumed_is_refused_by_exit_code() {
    let mut world = World::new().await;
    world.register("payments", "7 days").await;
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let auditor_url = auditor.environment();
    let [(name, url)] = &auditor_url;
    let pause = |consumer| ["consumers", "pause", consumer, "--reason", "why"];
    for (arguments, login, code, said) in [
        (&pause("paymnets")[..], None, 1, "which knows payments"),
        (&["consumers", "resume", "payments"], None, 1, "payments is not paused"),
        (&["consumers", "pause", "payments"], None, 2, "--reason"),
        (&[&pause("payments")[..], &["--for", "999ms"]].concat(), None, 2, "a second at least"),
        (&[&pause("payments")[..], &["--for", "11years"]].concat(), None, 2, "ten years at most"),
        (&pause("payments"), Some(url), 4, "role oncely_operator"),
        (&["consumers", "resume", "payments"], Some(url), 4, "role oncely_operator"),
        (&["consumers", "list"], Some(url), 0, ""),
    ] {
        let login: Vec<(&str, &str)> = login.iter().map(|url| (*name, url.as_str())).collect();
        let output = world.oncely_with(arguments, &login).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", told(&output));
        assert!(told(&output).contains(said), "{arguments:?}: {}", told(&output));
    }
    assert_eq!(world.count("select count(*) from oncely.controls").await, 0);
    auditor.drop_now(&mut world).await;
}

#[tokio::test]
async fn status_tells_of_a_pause_and_takes_it_for_no_danger() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.register("payments", "7 days").await;
    assert_eq!(world.oncely(&["status"]).await.status.code(), Some(5), "nobody consumes the queue");
    let paused =
        world.oncely(&["consumers", "pause", "payments", "--reason", "schema \u{1b}[2Jchange"]).await;
    assert!(paused.status.success(), "{}", told(&paused));
    let output = world.oncely(&["status"]).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("! payments: is paused by"), "{text}");
    assert!(text.contains("(run `oncely consumers resume payments`): schema \\u{1b}[2Jchange"), "{text}");
    assert!(!text.contains("no worker consumes"), "{text}");
}
