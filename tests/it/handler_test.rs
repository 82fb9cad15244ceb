//! `oncely handler test`: the verdicts of a worker, and nothing left behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row as _;
use testbed::Process;

use crate::command_line::stdout;
use crate::support::gate::{Gate, WAITING};
use crate::support::{Login, World, message, program};

/// A file of messages: key and payload.
fn file(world: &World, messages: &[(&str, Value)]) -> PathBuf {
    let line = |(key, payload): &(&str, Value)| {
        json!({ "tenant": "acme", "message_id": key, "payload": payload }).to_string()
    };
    let text = messages.iter().map(line).collect::<Vec<_>>().join("\n");
    let path = world.file().with_file_name("messages.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

async fn tested(world: &World, messages: &[(&str, Value)], more: &[&str]) -> (Option<i32>, Value) {
    let path = file(world, messages);
    let arguments = [&["handler", "test", path.to_str().unwrap(), "--json"], more].concat();
    let output = world.oncely(&arguments).await;
    let told = format!("{}{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"));
    assert_eq!(object["schema"], "oncely.handler/1");
    (output.status.code(), object)
}

/// By key: what became of its messages, in their order.
fn outcomes(object: &Value) -> BTreeMap<String, Vec<(String, Option<String>)>> {
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for one in object["messages"].as_array().unwrap() {
        let text = |name: &str| one[name].as_str().map(str::to_owned);
        found
            .entry(text("key").unwrap_or_default())
            .or_default()
            .push((text("outcome").unwrap(), text("reason")));
    }
    found
}

/// Everything that is in the tables of Oncely and of the application.
async fn contents(world: &mut World) -> Vec<String> {
    let tables = sqlx::query(
        "select format('%I.%I', n.nspname, c.relname) from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p') and n.nspname in ('oncely', 'app') order by 1",
    );
    let tables: Vec<String> =
        tables.fetch_all(&mut world.sql).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(tables.len() > 10, "{tables:?}");
    let mut found = Vec::new();
    for table in tables {
        let rows =
            format!("select coalesce(string_agg(t::text, chr(10) order by t::text), '') from {table} as t");
        found.push(format!("{table}: {}", world.text(&rows).await.unwrap()));
    }
    found
}

const EMITTER: &str = "
create function app.tell(message oncely.message) returns jsonb language plpgsql as $$
begin
    perform oncely.emit('shop', 'order.placed', message.payload, ordering_key => message.key, cause => message);
    perform oncely.emit('', 'mail', message.payload, cause => message);
    return app.handle(message);
end
$$";

#[tokio::test]
async fn a_file_gets_the_verdicts_that_a_worker_reaches() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    // One lane: in the order of the file.
    world.consumer("payments", "max_body = 200\nlanes = 1");
    let messages = [
        ("fine", json!({ "amount": 1 })),
        ("fine", json!({ "amount": 1 })),
        ("fine", json!({ "amount": 2 })),
        ("fail", json!({ "do": "fail" })),
        ("fail", json!({ "do": "fail" })),
        ("reject", json!({ "do": "reject" })),
        ("reject", json!({ "do": "reject" })),
        ("refuse", json!({ "do": "refuse" })),
        ("refuse", json!({ "do": "refuse" })),
        ("divide", json!({ "do": "divide" })),
        ("missing", json!({ "do": "missing_table" })),
        ("number 1", json!({ "do": "number", "number": "7" })),
        ("number 2", json!({ "do": "number", "number": "7" })),
        ("large", json!("x".repeat(300))),
        ("", json!({})),
    ];
    let (code, object) = tested(&world, &messages, &[]).await;
    assert_eq!(code, Some(1));

    // The same file through a broker.
    world.apply_topology().await;
    let queue = world.queue("payments");
    let path = file(&world, &messages);
    let published = world.oncely(&["publish", &queue, "--lines", path.to_str().unwrap()]).await;
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    let worker = world.start("worker");
    world.wait_for_ready(&queue, 0).await;
    // Those that failed last need a witness.
    world.publish("payments", message("acme", "more"), "{}").await;
    let decided = "select count(*) from oncely.idempotency_keys where status <> 'IN_PROGRESS'";
    world.wait_for(decided, 9).await;
    world.wait_for("select count(*) from oncely.dead_letters", 8).await;
    world.stop(worker).await;
    for (key, verdicts) in outcomes(&object) {
        for (outcome, reason) in verdicts {
            // In the trail a duplicate's reason is who knew it.
            let rows = format!(
                "select count(*) from oncely.audit where key = '{key}' and outcome = '{outcome}' and attempt <= 1
                 and (outcome = 'duplicate' or reason is not distinct from nullif('{}', ''))",
                reason.clone().unwrap_or_default()
            );
            assert!(world.count(&rows).await > 0, "{key}: a worker does not say {outcome} {reason:?}");
        }
    }
    let told =
        |key: &str| outcomes(&object)[key].iter().map(|(outcome, _)| outcome.clone()).collect::<Vec<_>>();
    assert_eq!(told("fine"), ["completed", "duplicate", "dead_lettered"]);
    assert_eq!(told("refuse"), ["refused", "duplicate"]);
    assert_eq!(told("number 2"), ["retried"], "only COMMIT would find it");
}

#[tokio::test]
async fn it_shows_what_each_message_wrote_and_emitted_and_leaves_nothing_behind() {
    let mut world = World::new().await;
    sqlx::raw_sql(EMITTER).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.tell\" }");
    // Nobody listens there.
    world.urls.rabbitmq = "amqp://127.0.0.1:1".to_owned();
    let before = contents(&mut world).await;
    let messages = [
        ("a", json!({ "do": "number", "number": "1" })),
        ("b", json!({ "do": "fail" })),
        ("c", json!({ "do": "number", "number": "2" })),
    ];
    let (code, object) = tested(&world, &messages, &[]).await;
    assert_eq!(code, Some(1), "{object:#}");
    let [a, b, c] = [0, 1, 2].map(|index| &object["messages"][index]);
    for one in [a, c] {
        assert_eq!(one["outcome"], "completed", "{one:#}");
        let wrote = ["effects", "numbers"].map(
            |table| json!({ "schema": "app", "table": table, "inserted": 1, "updated": 0, "deleted": 0 }),
        );
        assert_eq!(one["wrote"], json!(wrote));
        let events: Vec<&Value> =
            one["events"].as_array().unwrap().iter().map(|event| &event["routing_key"]).collect();
        assert_eq!(events, ["order.placed", "mail"]);
        assert_eq!(one["response"], json!({ "done": one["key"] }));
    }
    let failed = [&b["outcome"], &b["sqlstate"], &b["delay"]];
    assert_eq!(failed, ["retried", "P0001", "100ms"]);
    assert_eq!((&b["wrote"], &b["emitted"]), (&json!([]), &json!(0)), "a failure takes its own back");
    let batch = json!({ "lines": [1, 3], "succeeds": true, "sqlstate": null, "detail": null });
    assert_eq!(object["batches"], json!([batch]));
    assert_eq!(contents(&mut world).await, before);
}

/// In the background; what it prints is its output.
fn started(world: &World, messages: &[(&str, Value)]) -> Process {
    let path = file(world, messages);
    let config = world.file().display().to_string();
    let environment = [
        ("ONCELY_CONFIG", config.as_str()),
        ("DATABASE_URL", world.database.url()),
        ("AMQP_URL", world.urls.rabbitmq.as_str()),
    ];
    let log = world.file().with_file_name("test.log");
    let arguments = ["handler", "test", path.to_str().unwrap()];
    Process::start(&program("oncely"), &arguments, &environment, &log).unwrap()
}

#[tokio::test]
async fn events_of_others_are_not_taken_for_the_messages() {
    let mut world = World::new().await;
    sqlx::raw_sql(EMITTER).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.tell\" }");
    let gate = Gate::shut(&world).await;
    let mut test = started(&world, &[("a", json!({ "do": "wait" }))]);
    world.wait_for(WAITING, 1).await;
    world.count("select count(oncely.emit('others', 'meanwhile', 'null'::jsonb))").await;
    gate.open().await;
    let status = test.wait_for_end(Duration::from_secs(30)).await.unwrap();
    let told = test.output();
    assert!(status.success() && told.contains("emitted   shop order.placed, ordering key a"), "{told}");
    assert!(!told.contains("meanwhile"), "{told}");
}

#[tokio::test]
async fn killed_in_the_middle_it_leaves_nothing_behind() {
    let mut world = World::new().await;
    sqlx::raw_sql(EMITTER).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.tell\" }");
    let before = contents(&mut world).await;
    let gate = Gate::shut(&world).await;
    let mut test = started(&world, &[("a", json!({})), ("b", json!({ "do": "wait" }))]);
    world.wait_for(WAITING, 1).await;
    let written = "select count(distinct l.pid) from pg_locks as l join pg_class as c on c.oid = l.relation
        where c.relname in ('effects', 'events') and l.mode = 'RowExclusiveLock'
        and l.database = (select oid from pg_database where datname = current_database())";
    assert_eq!(world.count(written).await, 1, "it is in the middle");
    world.kill(&mut test);
    gate.open().await;
    let sessions = "select count(*) from pg_stat_activity
        where application_name like 'oncely worker%' and datname = current_database()";
    world.wait_for(sessions, 0).await;
    assert_eq!(contents(&mut world).await, before);
}

/// Takes the second of two equal numbers for known: only a constraint that is checked at once tells.
const CAREFUL: &str = r#"
create table app.once (number text, constraint once_number unique (number) deferrable initially immediate);
create function app.careful(message oncely.message) returns jsonb language plpgsql as $$
begin
    begin
        insert into app.once values (message.payload ->> 'number');
    exception when unique_violation then
        return '"known"';
    end;
    -- Mended before COMMIT: only a constraint that waits for that lets it through.
    insert into app.numbers values (message.key), (message.key);
    delete from app.numbers where ctid = (select max(ctid) from app.numbers where number = message.key);
    return '"new"';
end
$$"#;

#[tokio::test]
async fn constraints_are_checked_when_they_are_for_a_worker_behind_earlier_messages_too() {
    let mut world = World::new().await;
    sqlx::raw_sql(CAREFUL).execute(&mut world.sql).await.unwrap();
    world.consumer("careful", "handler = { function = \"app.careful\" }");
    let messages =
        [("a", json!({ "number": "1" })), ("b", json!({ "number": "2" })), ("c", json!({ "number": "1" }))];
    let (code, object) = tested(&world, &messages, &[]).await;
    assert_eq!(code, Some(0), "{object:#}");
    let said: Vec<&Value> =
        object["messages"].as_array().unwrap().iter().map(|one| &one["response"]).collect();
    assert_eq!(said, ["new", "new", "known"]);
    let (code, object) = tested(&world, &messages, &["--one-by-one"]).await;
    assert_eq!((code, &object["messages"][2]["response"]), (Some(0), &json!("new")), "{object:#}");
    assert_eq!(object["batches"], json!([]));
}

/// Well alone, and not with others.
const FIRST_ONLY: &str = "
create function app.first_only(messages oncely.message[]) returns setof oncely.result language sql as $$
    select m.seq, null::jsonb from unnest(messages) as m order by m.seq limit 1
$$";

#[tokio::test]
async fn a_batch_function_that_works_with_single_messages_alone_is_found() {
    let mut world = World::new().await;
    sqlx::raw_sql(FIRST_ONLY).execute(&mut world.sql).await.unwrap();
    world.consumer("first", "handler = { function = \"app.first_only\", batch = true }\nbatch = 3");
    world.consumer("batch", "handler = { function = \"app.handle_batch\", batch = true }\nbatch = 3");
    let messages = ["k1", "k2", "k3", "k4"].map(|key| (key, json!({})));
    let (code, object) = tested(&world, &messages, &["--consumer", "first"]).await;
    assert_eq!(code, Some(1), "{object:#}");
    assert!(object["messages"].as_array().unwrap().iter().all(|one| one["outcome"] == "completed"));
    let batches: Vec<(&Value, &Value)> =
        object["batches"].as_array().unwrap().iter().map(|one| (&one["lines"], &one["succeeds"])).collect();
    assert_eq!(batches, [(&json!([1, 2, 3]), &json!(false)), (&json!([4]), &json!(true))]);
    let (code, object) = tested(&world, &messages, &["--consumer", "batch"]).await;
    assert_eq!(code, Some(0), "{object:#}");
}

#[tokio::test]
async fn a_handler_past_its_deadline_is_cancelled_and_those_behind_it_run() {
    let mut world = World::new().await;
    let gate = Gate::shut(&world).await;
    world.consumer("payments", "deadline = \"300ms\"");
    let messages = [("a", json!({})), ("b", json!({ "do": "wait" })), ("c", json!({}))];
    let (code, object) = tested(&world, &messages, &[]).await;
    gate.open().await;
    assert_eq!(code, Some(1));
    let said: Vec<(&Value, &Value)> = object["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["outcome"], &one["sqlstate"]))
        .collect();
    let (fine, late) = (json!("completed"), json!("retried"));
    assert_eq!(said, [(&fine, &Value::Null), (&late, &json!("57014")), (&fine, &Value::Null)]);
}

/// Goes on when it is cancelled; ends its session.
const STUBBORN: &str = "
create function app.stubborn(message oncely.message) returns jsonb language plpgsql as $$
begin
    if message.payload ->> 'do' = 'end' then
        perform pg_terminate_backend(pg_backend_pid());
    end if;
    while message.payload ->> 'do' = 'go_on' loop
        begin
            perform pg_advisory_xact_lock(4711);
        exception when query_canceled then
            null;
        end;
    end loop;
    insert into app.numbers values (message.key);
    return to_jsonb((select count(*) from app.numbers));
end
$$";

#[tokio::test]
async fn a_handler_that_cannot_be_stopped_takes_its_session_with_it_and_one_that_ends_it_is_named() {
    let mut world = World::new().await;
    sqlx::raw_sql(STUBBORN).execute(&mut world.sql).await.unwrap();
    let gate = Gate::shut(&world).await;
    world.consumer("payments", "handler = { function = \"app.stubborn\" }\ndeadline = \"300ms\"");
    let messages = [("a", json!({})), ("b", json!({ "do": "go_on" })), ("c", json!({})), ("d", json!({}))];
    let (code, object) = tested(&world, &messages, &[]).await;
    assert_eq!(code, Some(1));
    let said = object["messages"].as_array().unwrap().iter();
    let said: Vec<(&Value, &Value)> = said.map(|one| (&one["response"], &one["session_lost"])).collect();
    let [yes, no] = [true, false].map(Value::from);
    assert_eq!(
        said,
        [(&json!(1), &no), (&Value::Null, &yes), (&json!(1), &no), (&json!(2), &no)],
        "{object:#}"
    );
    gate.open().await;
    let path = file(&world, &[("a", json!({})), ("b", json!({ "do": "end" }))]);
    let output = world.oncely(&["handler", "test", path.to_str().unwrap()]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("error: line 2: PostgreSQL went away"), "{told}");
}

#[tokio::test]
async fn a_workers_login_is_enough_and_a_key_that_the_database_knows_runs_and_says_so() {
    let mut world = World::new().await;
    sqlx::raw_sql(EMITTER).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.tell\" }");
    let login = Login::create(&mut world, "oncely_worker").await;
    let grant =
        format!("grant usage on schema app to {0}; grant all on all tables in schema app to {0}", login.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
    let known =
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        values ('acme', 'payments', 'old', 'COMPLETED', 1, now(), now())";
    sqlx::raw_sql(known).execute(&mut world.sql).await.unwrap();
    let path = file(&world, &[("old", json!({})), ("new", json!({}))]);
    let arguments = ["handler", "test", path.to_str().unwrap(), "--json"];
    let [(_, url)] = login.environment();
    let output = world.oncely_with(&arguments, &[("DATABASE_URL", &url)]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{told}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [old, new] = [0, 1].map(|index| &object["messages"][index]);
    assert_eq!(old["database"], json!({ "status": "COMPLETED", "attempts": 1, "runs": false }));
    assert_eq!((&old["outcome"], &new["database"]), (&json!("completed"), &Value::Null));
    assert_eq!((&new["events"], &new["emitted"]), (&Value::Null, &json!(2)), "it may not read events");
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_body_that_is_no_json_is_text_or_base64() {
    let mut world = World::new().await;
    let length = "create function app.length(message oncely.message) returns jsonb language sql
        as $$ select jsonb_build_object('bytes', octet_length(message.body), 'is_json', message.payload is not null) $$";
    sqlx::raw_sql(length).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "handler = { function = \"app.length\" }");
    let path = world.file().with_file_name("bodies.jsonl");
    let lines = [
        json!({ "tenant": "t", "message_id": "json", "payload": { "a": 1 } }),
        json!({ "tenant": "t", "message_id": "text", "body": "<é/>" }),
        json!({ "tenant": "t", "message_id": "bytes", "body_base64": "/wD+" }),
    ];
    std::fs::write(&path, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let output = world.oncely(&["handler", "test", path.to_str().unwrap(), "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let bytes: Vec<_> =
        object["messages"].as_array().unwrap().iter().map(|one| &one["response"]["bytes"]).collect();
    assert_eq!(bytes, [&json!(7), &json!(5), &json!(3)], "{object}");
    for (line, why) in [
        (json!({ "tenant": "t" }), "there is no payload (JSON), body (text) or body_base64"),
        (json!({ "body": "x", "payload": 1 }), "exclude each other"),
        (json!({ "body_base64": "-" }), "line 1: body_base64: "),
    ] {
        std::fs::write(&path, line.to_string()).unwrap();
        let output = world.oncely(&["handler", "test", path.to_str().unwrap()]).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && told.contains(why), "{line}: {told}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_file_or_choice_is_said_before_anything_runs() {
    let mut world = World::new().await;
    world.consumer("orders", "handler = { function = \"app.not_there\" }");
    world.consumer("payments", "");
    let path = world.file().with_file_name("bad.jsonl");
    let path = path.to_str().unwrap();
    let lines = "{\"payload\": 1}\nno JSON\n\n{\"tennant\": \"t\", \"payload\": 1}\n";
    std::fs::write(path, lines).unwrap();
    let bad_lines = vec!["nothing was run", "line 2: ", "line 4: unknown field `tennant`"];
    for (arguments, code, says) in [
        (vec!["--consumer", "payments"], 1, bad_lines),
        (vec![], 2, vec!["several consumers", "orders, payments"]),
        (vec!["--consumer", "paiments"], 2, vec!["there is no consumer paiments", "orders, payments"]),
        (vec!["--consumer", "payments", "--attempt", "0"], 2, vec!["--attempt"]),
    ] {
        let output = world.oncely(&[&["handler", "test", path], &arguments[..]].concat()).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(says.iter().all(|says| told.contains(says)), "{arguments:?}: {told}");
    }
    // A missing function of one consumer is no problem of another.
    std::fs::write(path, "{\"tenant\": \"t\", \"message_id\": \"m\", \"payload\": 1}").unwrap();
    let fine = world.oncely(&["handler", "test", path, "--consumer", "payments"]).await;
    assert_eq!(fine.status.code(), Some(0), "{}", String::from_utf8_lossy(&fine.stderr));
    let output = world.oncely(&["handler", "test", path, "--consumer", "orders"]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("there is no function app.not_there(oncely.message)"), "{told}");
}

#[tokio::test]
async fn it_prints_what_the_book_shows() {
    let mut world = World::new().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join("examples").join(name)).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(read("tour/payments.sql"))).execute(&mut world.sql).await.unwrap();
    world.configure(&read("tour/oncely.toml"));
    let path = root.join("examples/testing/payments.jsonl");
    let output = world.oncely(&["handler", "test", path.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout(&output), read("testing/payments.txt"));
}
