//! `oncely keys seed`: what was processed before is a duplicate from then on.

use std::process::Output;

use serde_json::{Value, json};

use crate::command_line::stdout;
use crate::support::{Login, World, message};

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a file beside the configuration; its path.
fn file(world: &World, name: &str, text: &str) -> String {
    let path = world.file().with_file_name(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn seed(world: &World, file: &str, more: &[&str]) -> (i32, Value, String) {
    let output =
        world.oncely(&[&["keys", "seed", file, "--consumer", "payments", "--json"], more].concat()).await;
    let object = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), object, told(&output))
}

async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()))
        .execute(&mut world.sql)
        .await
        .expect(statements);
}

#[tokio::test]
async fn a_seeded_key_is_a_duplicate_and_what_is_known_stays_as_it_is() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[audit]\nduplicates = true");
    world.apply_topology().await;
    // Known as something else: one was given up, one is tried again, one took effect.
    run(
        &mut world,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason) values
            ('acme', 'payments', 'dead', 'FAILED', 6, now(), now(), 'attempts_exhausted'),
            ('acme', 'payments', 'open', 'IN_PROGRESS', 1, now(), null, null),
            ('acme', 'payments', 'done', 'COMPLETED', 1, now(), now(), null)",
    )
    .await;
    world.register("payments", "7 days").await;
    let keys = file(
        &world,
        "processed.csv",
        &format!(
            "tenant,key,completed_at\nacme,old-1,\nacme,old-2,{}\nacme,old-1,\nacme,{},\nacme,dead,\nacme,open,\nacme,done,\n\
             acme,ancient,2001-01-01T00:00:00Z\nacme,tomorrow,2999-01-01T00:00:00Z\nglobex,old-1,\n",
            chrono::Utc::now().to_rfc3339(),
            "k".repeat(256)
        ),
    );
    let (code, object, text) = seed(&world, &keys, &["--dry-run"]).await;
    assert_eq!((code, &object["lines"], &object["refused"]), (1, &json!(10), &json!(1)), "{text}");
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 3, "nothing was changed");

    let (code, object, text) = seed(&world, &keys, &["--note", "cut-over"]).await;
    assert_eq!(code, 1, "{text}");
    assert_eq!(object["schema"], "oncely.keys.seed/1");
    for (name, count) in
        [("lines", 10), ("seeded", 3), ("known", 2), ("too_old", 1), ("conflicting", 2), ("refused", 2)]
    {
        assert_eq!(object[name], json!(count), "{name}: {object}");
    }
    assert_eq!(
        object["conflicts"],
        json!([
            { "tenant": "acme", "key": "dead", "status": "FAILED", "reason": "attempts_exhausted" },
            { "tenant": "acme", "key": "open", "status": "IN_PROGRESS", "reason": null },
        ])
    );
    for said in [
        "processed.csv, line 5: the key",
        "line 10: completed_at is yet to come",
        "key open is IN_PROGRESS here",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let actions = "select count(*) from oncely.operator_actions where verb = 'seed_keys' and count = 3 and reason = 'cut-over'
        and filter ->> 'conflicting' = '2'";
    assert_eq!(world.count(actions).await, 1);
    let trail = "select count(*) from oncely.audit where outcome = 'completed' and consumer = 'payments' and attempt = 0
        and worker = 'oncely keys seed' and login = session_user";
    assert_eq!(world.count(trail).await, 3);

    // Once more, and as lines of JSON.
    let again = file(
        &world,
        "processed.jsonl",
        "{\"tenant\": \"acme\", \"key\": \"old-1\"}\n{\"tenant\": \"globex\", \"key\": \"old-1\"}\n",
    );
    let (code, object, text) = seed(&world, &again, &[]).await;
    assert_eq!((code, &object["seeded"], &object["known"]), (0, &json!(0), &json!(2)), "{text}");
    assert_eq!(world.count(trail).await, 3);

    let worker = world.start("worker");
    for key in ["old-1", "old-2", "new-1"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 2).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    let text = stdout(&world.oncely(&["explain", "old-1", "--tenant", "acme"]).await);
    assert!(text.contains("seeded: processed elsewhere at"), "{text}");
}

#[tokio::test]
async fn the_trail_remembers_a_seeded_key_when_the_key_is_collected() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7 days").await;
    let keys = file(&world, "one.csv", "key\norder-1\n");
    let (code, _, text) = seed(&world, &keys, &["--tenant", "acme"]).await;
    assert_eq!(code, 0, "{text}");
    // A copy of it has been a dead letter for longer than the key was kept.
    run(
        &mut world,
        "delete from oncely.idempotency_keys;
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation,
            times, failure_group, exchange, routing_key, body_size, updated_at)
         select 'acme', gen_random_uuid(), 'payments', k, now() - interval '8 days', 'poison', 1, 'q', 'w', 'waiting', 1, 1, 'g', '', 'q', 0, now()
         from unnest(array['order-1', 'order-2']) as k",
    )
    .await;
    let memory = |key: &str| {
        format!(
            "select m.memory from oncely.dead_letters as d,
                lateral oncely.letter_memories(array[d.tenant], array[d.id], now()) as m where d.key = '{key}'"
        )
    };
    assert_eq!(world.text(&memory("order-1")).await.as_deref(), Some("TOOK_EFFECT"));
    assert_ne!(world.text(&memory("order-2")).await.as_deref(), Some("TOOK_EFFECT"));
}

#[tokio::test]
async fn a_seeding_that_is_killed_goes_on_where_it_is_run_again() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let count = 60_000;
    let lines: String = (0..count).map(|n| format!("{{\"tenant\": \"acme\", \"key\": {n}}}\n")).collect();
    let keys = file(&world, "many.jsonl", &lines);
    // Held at a key in the middle.
    let mut gate = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select oncely.claim('acme', 'payments', '30000', null)")
        .execute(&mut gate)
        .await
        .unwrap();
    let mut first =
        world.start_verb("oncely", &["keys", "seed", &keys, "--consumer", "payments"], "seed", &[]);
    let held = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%oncely.seed_keys%'
        and datname = current_database()";
    world.wait_for(held, 1).await;
    world.kill(&mut first);
    let done = "select count(*) from oncely.idempotency_keys where consumer = 'payments'";
    let before = world.count(done).await;
    assert!(before > 0 && before < count, "{before}");
    // The other one does it after all.
    let complete = "select oncely.complete('acme', 'payments', '30000'); commit";
    sqlx::raw_sql(complete).execute(&mut gate).await.unwrap();
    world.wait_for(held, 0).await;
    let (code, object, text) = seed(&world, &keys, &[]).await;
    assert_eq!(code, 0, "{text}");
    let number = |name: &str| object[name].as_i64().unwrap();
    assert_eq!(number("seeded") + number("known"), count, "{object}");
    assert!(number("known") > before, "{object}");
    assert_eq!(world.count(done).await, count);
    let trail =
        "select count(*) from (select key from oncely.audit group by key having count(*) = 1) as once";
    assert_eq!(world.count(trail).await, count, "a row of the trail each, and no second one");
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_before_anything_is_written() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let good = file(&world, "good.csv", "tenant,key\nacme,k\n");
    let bare = file(&world, "bare.csv", "acme,k\n");
    for (arguments, code, said) in [
        (
            vec!["keys", "seed", &good, "--consumer", "paiments"],
            2,
            "not configured here: name one of payments",
        ),
        (
            vec!["keys", "seed", &good, "--consumer", "payments", "--retention", "7d"],
            2,
            "leave --retention out",
        ),
        (vec!["keys", "seed", &bare, "--consumer", "payments"], 1, "bare.csv: line 1 must name the columns"),
        (
            vec!["keys", "seed", &good, "--consumer", "payments", "--tenant", "acme"],
            1,
            "key or key,completed_at",
        ),
        (vec!["keys", "seed", "/nowhere.csv", "--consumer", "payments"], 1, "/nowhere.csv can't be read"),
    ] {
        let output = world.oncely(&arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", told(&output));
        assert!(told(&output).contains(said), "{arguments:?}: {}", told(&output));
    }
    world.consumer("orders", "mode = \"observe\"");
    for name in ["orders", "orders.observe"] {
        let output = world.oncely(&["keys", "seed", &good, "--consumer", name]).await;
        assert_eq!(output.status.code(), Some(2), "{name}: {}", told(&output));
        assert!(told(&output).contains("remove its mode = \"observe\""), "{name}: {}", told(&output));
    }
    let output = world.oncely(&["keys", "seed", &good, "--consumer", "paiments"]).await;
    assert!(!told(&output).contains(".observe"), "{}", told(&output));
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
    // A client of the SQL protocol keeps its keys as long as it says.
    let own = ["keys", "seed", &good, "--consumer", "invoices", "--retention", "3d"];
    let output = world.oncely(&own).await;
    assert!(output.status.success(), "{}", told(&output));
    let kept = "select count(*) from oncely.idempotency_keys where consumer = 'invoices' and expires_at = completed_at + interval '72 hours'";
    assert_eq!(world.count(kept).await, 1);
    // Only an operator.
    for (role, code) in [("oncely_operator", 0), ("oncely_auditor", 4), ("oncely_worker", 4)] {
        let login = Login::create(&mut world, role).await;
        let [(name, url)] = &login.environment();
        let output =
            world.oncely_with(&["keys", "seed", &good, "--consumer", "payments"], &[(name, url)]).await;
        assert_eq!(output.status.code(), Some(code), "{role}: {}", told(&output));
        login.drop_now(&mut world).await;
    }
    for (call, code) in [
        ("'', array['t'], array['k'], array[now()]", "ONC11"),
        ("'c', array['t'], array['k', 'l'], array[now()]", "ONC11"),
        ("'c', array['t', null], array['k', 'l'], array[now(), now()]", "ONC11"),
        ("'c', array['t'], array[''], array[now()]", "ONC11"),
        ("'c', array['t'], array['k'], array[now() + interval '1 day']", "ONC11"),
        ("'c', array['t'], array['k'], array['infinity'::timestamptz]", "ONC11"),
        ("'c.observe', array['t'], array['k'], array[now()]", "ONC11"),
        ("'c', array['t'], array['k'], array[now()], '-1 day'", "ONC11"),
        ("'c', '{}', '{}', '{}'", "ONC11"),
        ("'c', null, null, null", "ONC11"),
        (
            "'c', array_fill('t'::text, array[10001]), array_fill('k'::text, array[10001]), array_fill(now(), array[10001])",
            "ONC11",
        ),
    ] {
        let statement = format!("select oncely.seed_keys({call})");
        let error = sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(
            error.as_database_error().and_then(|e| e.code()).as_deref(),
            Some(code),
            "{call}: {error}"
        );
    }
}

#[tokio::test]
async fn what_another_databases_clock_says_of_just_now_is_seeded_as_of_now() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    let at = |seconds: i64| (chrono::Utc::now() + chrono::TimeDelta::seconds(seconds)).to_rfc3339();
    let text = format!("tenant,key,completed_at\nacme,ahead,{}\nacme,far,{}\n", at(120), at(7_200));
    let path = file(&world, "ahead.csv", &text);
    let (code, object, said) = seed(&world, &path, &[]).await;
    assert_eq!((code, &object["seeded"], &object["refused"]), (1, &json!(1), &json!(1)), "{object} {said}");
    let now = "select count(*) from oncely.idempotency_keys where key = 'ahead' and completed_at <= clock_timestamp()";
    assert_eq!(world.count(now).await, 1);
}
