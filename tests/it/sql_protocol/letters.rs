//! What a client gives up is a dead letter like a worker's.

use lapin::options::{BasicAckOptions, BasicGetOptions};
use lapin::types::{AMQPValue, FieldTable};
use oncely::identity::{Identity, IdentityPart};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::{Login, World, message};

/// What `oncely.fail` answered: outcome, reason, and whether the message is stored.
type Failed = (String, Option<String>, bool);

async fn fail(sql: &mut PgConnection, queue: &str, key: &str, attempt: i32, body: &[u8]) -> Failed {
    fail_with(sql, queue, key, attempt, body, "poison", "{}").await
}

async fn fail_with(
    sql: &mut PgConnection,
    queue: &str,
    key: &str,
    attempt: i32,
    body: &[u8],
    reason: &str,
    headers: &str,
) -> Failed {
    let row = sqlx::query(
        "select outcome, final_reason, stored from oncely.fail('acme', 'invoices', $1, sha256($2), $3,
            'no such product: ''pen''', $4, queue => $5, body => $2, properties => $6::json, headers => $7::json,
            exchange => 'shop', routing_key => 'order.placed')",
    )
    .bind(key)
    .bind(body)
    .bind(attempt)
    .bind(reason)
    .bind(queue)
    .bind(json!({ "message_id": key, "content_type": "text/plain", "delivery_mode": 2, "reply_to": null, "user_id": "admin" }))
    .bind(headers)
    .fetch_one(sql)
    .await
    .unwrap();
    (row.get(0), row.get(1), row.get(2))
}

async fn claim(sql: &mut PgConnection, key: &str, body: &[u8]) -> String {
    sqlx::query_scalar("select outcome from oncely.claim('acme', 'invoices', $1, sha256($2))")
        .bind(key)
        .bind(body)
        .fetch_one(sql)
        .await
        .unwrap()
}

async fn complete(sql: &mut PgConnection, key: &str, body: &[u8]) -> String {
    let mut transaction = sql.begin().await.unwrap();
    let outcome = claim(&mut transaction, key, body).await;
    if outcome == "granted" {
        sqlx::query("select oncely.complete('acme', 'invoices', $1)")
            .bind(key)
            .execute(&mut *transaction)
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
    outcome
}

/// Runs a verb that must exit with `code`; its JSON.
async fn run(world: &World, code: i32, arguments: &[&str]) -> Value {
    let output = world.oncely(&[arguments, &["--json"]].concat()).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// A queue of a client's own, as no worker declares it.
async fn client(world: &World) -> String {
    let queue = world.queue("invoices");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    queue
}

fn given_up(reason: &str, stored: bool) -> Failed {
    ("given_up".to_owned(), Some(reason.to_owned()), stored)
}

#[tokio::test]
async fn what_a_client_gives_up_is_a_letter_that_is_requeued_and_runs_once() {
    let mut world = World::new().await;
    world.configure("");
    let queue = client(&world).await;
    let mut sql = world.database.connect().await.unwrap();
    let headers =
        json!({ "x-tenant-id": "acme", "n": 7, "rate": 1.5, "list": [1, { "a": true, "b": null }] });
    let body = b"not json \xff";
    assert_eq!(
        fail_with(&mut sql, &queue, "k", 1, body, "poison", &headers.to_string()).await,
        given_up("poison", true)
    );
    // It died before it acknowledged: told again, it stores the same letter.
    assert_eq!(claim(&mut sql, "k", body).await, "given_up");
    assert_eq!(fail(&mut sql, &queue, "k", 0, body).await, given_up("poison", true));
    let letter = "select concat_ws(' ', state, generation, times, attempt, detail, whole, failure_group ~ '^poison/-/[0-9a-f]{8}$')
        from oncely.dead_letters";
    assert_eq!(
        world.text(letter).await.as_deref(),
        Some("waiting 1 2 1 no such product: 'pen' t t"),
        "why it failed stays"
    );
    let groups = run(&world, 0, &["failed", "groups"]).await;
    assert_eq!(
        (&groups["groups"][0]["waiting"], &groups["groups"][0]["consumer"]),
        (&json!(1), &json!("invoices"))
    );
    let story = world.oncely(&["explain", "k"]).await;
    assert!(String::from_utf8_lossy(&story.stdout).contains("dead-lettered 2 times"), "{story:?}");

    let done = run(&world, 0, &["failed", "requeue", "--all", "--yes"]).await;
    assert_eq!((&done["done"], &done["swept"]), (&json!(1), &json!([])), "{done}");
    let copy =
        world.broker.channel().basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap();
    let copy = copy.unwrap().delivery;
    copy.ack(BasicAckOptions::default()).await.unwrap();
    assert_eq!(
        (copy.data.as_slice(), copy.properties.message_id().as_ref().map(|id| id.as_str())),
        (&body[..], Some("k"))
    );
    let headers = copy.properties.headers().clone().unwrap();
    let header = |name: &str| headers.inner().get(name).cloned();
    assert_eq!(header("x-tenant-id"), Some(AMQPValue::LongString("acme".into())));
    assert_eq!(header("n"), Some(AMQPValue::LongLongInt(7)));
    assert_eq!(header("rate"), Some(AMQPValue::Double(1.5)));
    assert_eq!(header("x-oncely-routing-key"), Some(AMQPValue::LongString("order.placed".into())));
    let Some(AMQPValue::FieldArray(list)) = header("list") else { panic!("{headers:?}") };
    assert!(
        matches!(&list.as_slice()[1], AMQPValue::FieldTable(table) if table.inner().len() == 2),
        "{list:?}"
    );
    // The broker has checked no user of it.
    assert_eq!(world.count("select count(*) from oncely.dead_letters where properties ? 'user_id'").await, 0);
    assert_eq!(complete(&mut sql, "k", body).await, "granted");
    assert_eq!(complete(&mut sql, "k", body).await, "duplicate", "and whatever else comes");
    let closed = "select count(*) from oncely.dead_letters where state = 'requeued' and swept_at is not null";
    assert_eq!(world.count(closed).await, 1, "no dead-letter queue holds a copy that a sweep must take");
    run(&world, 1, &["failed", "requeue", "--all", "--yes"]).await;
}

#[tokio::test]
async fn a_requeued_message_that_fails_again_is_the_next_generation() {
    let mut world = World::new().await;
    world.configure("");
    let queue = client(&world).await;
    let mut sql = world.database.connect().await.unwrap();
    for generation in 1..=2 {
        let mut work = sql.begin().await.unwrap();
        assert_eq!(claim(&mut work, "k", b"x").await, "granted");
        work.rollback().await.unwrap();
        assert_eq!(fail(&mut sql, &queue, "k", 1, b"x").await, given_up("poison", true));
        let found =
            world.count("select generation::bigint from oncely.dead_letters where state = 'waiting'").await;
        assert_eq!(found, generation);
        run(&world, 0, &["failed", "requeue", "--all", "--yes"]).await;
    }
    assert_eq!(world.broker.take_exactly(&queue, 2).await.unwrap().len(), 2);
    // Another payload under its key is a letter of its own, which no requeue lets run.
    assert_eq!(complete(&mut sql, "k", b"x").await, "granted");
    assert_eq!(
        fail(&mut sql, &queue, "k", 0, b"y").await,
        ("conflict".to_owned(), Some("key_conflict".to_owned()), true)
    );
    run(&world, 1, &["failed", "requeue", "--all", "--yes"]).await;
    assert_eq!(run(&world, 0, &["failed", "discard", "--all", "--yes"]).await["done"], 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_stays_with_its_client() {
    let mut world = World::new().await;
    world.configure("");
    let queue = client(&world).await;
    let mut sql = world.database.connect().await.unwrap();
    let deep = format!("{}1{}", "{\"a\":".repeat(60), "}".repeat(60));
    for (key, body, headers, why) in [
        ("nul", vec![], r#"{"a": "\u0000"}"#.to_owned(), "headers"),
        ("deep", vec![], deep, "headers"),
        ("name", vec![], format!("{{\"{}\": 1}}", "n".repeat(256)), "headers"),
        ("large", vec![0; 262_145], "{}".to_owned(), "max_body"),
    ] {
        let failed = fail_with(&mut sql, &queue, key, 1, &body, "poison", &headers).await;
        assert_eq!(failed, given_up("poison", false), "{key}");
        let omitted = format!("select omitted from oncely.dead_letters where key = '{key}'");
        assert_eq!(world.text(&omitted).await.as_deref(), Some(why), "{key}");
    }
    let plan = run(&world, 1, &["failed", "requeue", "--all", "--dry-run"]).await;
    assert!(plan["refused"].to_string().contains("dead-letter queue of its own"), "{plan}");
    // Its tenant's quota, and what makes room in it.
    run(&world, 0, &["tenant", "limit", "acme", "--letters", "1"]).await;
    assert!(fail(&mut sql, &queue, "q1", 1, b"q").await.2);
    assert!(!fail(&mut sql, &queue, "q2", 1, b"q").await.2, "over the quota");
    assert!(fail(&mut sql, &queue, "q1", 0, b"q").await.2, "counted once");
    run(&world, 0, &["tenant", "limit", "acme", "--letters", "2"]).await;
    assert!(fail(&mut sql, &queue, "q2", 0, b"q").await.2, "moved back to its queue, it comes again");
    // What is no message is the client's mistake.
    for wrong in [
        "queue => '', body => ''",
        "queue => 'q', body => '', properties => '{\"headers\": {}}'",
        "queue => 'q', body => '', headers => '[]'",
    ] {
        let call = format!("select oncely.fail('acme', 'invoices', 'w', null, 1, 'x', {wrong})");
        let error = sqlx::query(sqlx::AssertSqlSafe(call)).execute(&mut sql).await.unwrap_err();
        assert_eq!(super::code(error), "ONC11", "{wrong}");
    }
}

#[tokio::test]
async fn a_login_stores_letters_for_the_queues_that_it_was_granted_alone() {
    let mut world = World::new().await;
    world.configure("");
    let queue = client(&world).await;
    let shop = Login::create(&mut world, "oncely_consumer").await;
    run(&world, 0, &["grant", &shop.name, "--consumer", "invoices", "--tenant", "acme"]).await;
    let mut sql = shop.connect().await;
    // Whoever requeues publishes as the operator: a queue that the login names is not reached by that.
    assert_eq!(fail(&mut sql, &queue, "k", 1, b"x").await, given_up("poison", false));
    let omitted = "select concat_ws(' ', omitted, body is null, headers is null) from oncely.dead_letters";
    assert_eq!(world.text(omitted).await.as_deref(), Some("right t t"));
    run(&world, 1, &["failed", "requeue", "--all", "--dry-run"]).await;
    run(&world, 0, &["grant", &shop.name, "--queue", &queue, "--tenant", "acme"]).await;
    assert_eq!(
        fail(&mut sql, "payments", "other", 1, b"x").await,
        given_up("poison", false),
        "another queue"
    );
    assert_eq!(fail(&mut sql, &queue, "k", 0, b"x").await, given_up("poison", true));
    // Nor does it lead a letter that there is to somewhere else.
    assert_eq!(fail(&mut sql, "payments", "k", 0, b"x").await, given_up("poison", false));
    assert_eq!(
        world.text("select concat_ws(' ', queue, whole) from oncely.dead_letters where key = 'k'").await,
        Some(format!("{queue} t"))
    );
    assert_eq!(run(&world, 0, &["failed", "requeue", "--key", "k", "--yes"]).await["done"], 1);
    assert_eq!(world.broker.take_exactly(&queue, 1).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_worker_and_a_client_of_one_queue_store_one_letter() {
    let mut world = World::new().await;
    world.consumer(
        "invoices",
        "handler = { function = \"app.missing_kind\" }\nretry = { max_attempts = 1, delays = [] }",
    );
    sqlx::raw_sql("create function app.missing_kind(message oncely.message) returns jsonb language plpgsql as $$ begin perform oncely.reject('no kind'); end $$")
        .execute(&mut world.sql)
        .await
        .unwrap();
    world.apply_topology().await;
    let queue = world.queue("invoices");
    let worker = world.start("worker");
    world.publish("invoices", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    world.wait_for_ready(&format!("{queue}.dead"), 1).await;
    let mut sql = world.database.connect().await.unwrap();
    assert_eq!(fail(&mut sql, &queue, "k", 0, b"{}").await, given_up("handler_rejected", true));
    assert_eq!(fail(&mut sql, "elsewhere", "k", 0, b"{}").await, given_up("handler_rejected", false));
    let letters =
        format!("select count(*) from oncely.dead_letters where not from_client and queue = '{queue}'");
    assert_eq!(world.count(&letters).await, 1, "and it stays the worker's");
    // Requeued as a worker's: the dead-letter queue's copy goes with it.
    sqlx::raw_sql("create or replace function app.missing_kind(message oncely.message) returns jsonb language sql as $$ select app.handle(message) $$")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let done = run(&world, 0, &["failed", "requeue", "--all", "--yes"]).await;
    assert_eq!((&done["done"], &done["swept"][0]["dropped"]), (&json!(1), &json!(1)), "{done}");
    world.wait_for("select count(*) from app.effects where key = 'k'", 1).await;
    world.stop(worker).await;
    let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
    let identity = Identity { tenant: part("acmé"), consumer: part("c"), key: part("k") };
    let sql: uuid::Uuid = sqlx::query_scalar("select oncely.letter_id('acmé', 'c', 'k', '\\x00ff')")
        .fetch_one(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(sql, oncely_core::letter::letter_id(&identity, &[0, 255]));
}

#[tokio::test]
async fn a_letter_whose_key_was_settled_does_not_run_when_the_key_is_forgotten() {
    let mut world = World::new().await;
    world.configure("");
    let queue = client(&world).await;
    let mut sql = world.database.connect().await.unwrap();
    for key in ["done", "open"] {
        assert_eq!(fail(&mut sql, &queue, key, 1, b"x").await, given_up("poison", true));
    }
    // A person did by hand what the message asked for.
    run(&world, 0, &["keys", "settle", "done", "--took-effect", "yes", "--yes"]).await;
    sqlx::query("delete from oncely.idempotency_keys").execute(&mut world.sql).await.unwrap();
    let done = run(&world, 0, &["failed", "requeue", "--all", "--yes"]).await;
    assert_eq!(done["done"], 1, "{done}");
    let copies = world.broker.take_exactly(&queue, 1).await.unwrap();
    assert_eq!(copies[0].properties.message_id().as_ref().map(|id| id.as_str()), Some("open"));
}

#[tokio::test]
async fn a_key_that_a_client_gave_up_without_its_message_is_settled() {
    let mut world = World::new().await;
    world.configure("");
    let mut sql = world.database.connect().await.unwrap();
    assert_eq!(super::fail(&mut sql, "k", 1, Some("poison")).await.0, "given_up");
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    run(&world, 0, &["keys", "settle", "k", "--took-effect", "no", "--yes"]).await;
    assert_eq!(super::once(&mut sql, "k").await.outcome, "granted");
}
