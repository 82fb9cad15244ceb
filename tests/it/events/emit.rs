//! What `oncely.emit` writes, and what it refuses.

use oncely::event::Event;
use oncely::handler::handler_fn;
use oncely::worker::Worker;
use oncely::{Context, Message};
use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _};

use tokio_util::sync::CancellationToken;

use crate::support::{World, message};

/// The one event that there is, as JSON.
async fn event(world: &mut World) -> Value {
    let row = sqlx::query(
        "select to_jsonb(e) || jsonb_build_object('body', convert_from(payload, 'UTF8'), 'due_in', extract(epoch from available_at - created_at)) from oncely.events as e",
    )
    .fetch_one(&mut world.sql)
    .await
    .unwrap();
    row.get(0)
}

#[tokio::test]
async fn any_client_emits_a_text_a_json_value_or_bytes() {
    let mut world = World::new().await;
    for (call, content_type, body) in [
        ("oncely.emit('x', 'a.b', '{\"a\":1}')", "application/json", "{\"a\":1}"),
        ("oncely.emit('x', 'a.b', ' [1, 2]')", "application/json", " [1, 2]"),
        ("oncely.emit('x', 'a.b', 'plain {text')", "text/plain; charset=utf-8", "plain {text"),
        ("oncely.emit('x', 'a.b', '{not json')", "text/plain; charset=utf-8", "{not json"),
        ("oncely.emit('x', 'a.b', '{\"b\": 2,\"a\":1}'::jsonb)", "application/json", "{\"a\": 1, \"b\": 2}"),
        ("oncely.emit('x', 'a.b', 'null'::jsonb)", "application/json", "null"),
        ("oncely.emit('x', 'a.b', 'bytes'::bytea)", "application/octet-stream", "bytes"),
        ("oncely.emit('x', 'a.b', 'xml', content_type => 'text/xml')", "text/xml", "xml"),
        (
            "oncely.emit('x', 'a.b', 'with headers', '{\"h\": 1}')",
            "text/plain; charset=utf-8",
            "with headers",
        ),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(format!("select {call}"))).execute(&mut world.sql).await.unwrap();
        let event = event(&mut world).await;
        assert_eq!((&event["content_type"], &event["body"]), (&json!(content_type), &json!(body)), "{call}");
        assert_eq!((&event["exchange"], &event["routing_key"]), (&json!("x"), &json!("a.b")));
        assert_eq!(
            (&event["tenant"], &event["app_id"], &event["state"]),
            (&json!("shop"), &json!("oncely"), &json!("pending"))
        );
        sqlx::query("delete from oncely.events").execute(&mut world.sql).await.unwrap();
    }
    let id = "select oncely.emit('x', 'y', 'z', delay => '90 s', tenant => 'acme', type => 't', source => '/shop', message_id => 'm-1')";
    let id: uuid::Uuid = sqlx::query(id).fetch_one(&mut world.sql).await.unwrap().get(0);
    assert_eq!(id.get_version_num(), 7);
    let event = event(&mut world).await;
    assert_eq!((&event["id"], &event["tenant"]), (&json!(id.to_string()), &json!("acme")));
    assert_eq!(event["due_in"], json!(90.0), "{event}");
    let headers = event["headers"].as_object().unwrap();
    for (name, value) in [("specversion", "1.0"), ("id", "m-1"), ("source", "/shop"), ("type", "t")] {
        assert_eq!(headers[&format!("cloudEvents:{name}")], json!(value));
    }
    let time = headers["cloudEvents:time"].as_str().unwrap();
    assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok(), "{time}");
}

#[tokio::test]
async fn an_event_is_of_whom_the_call_names_or_of_whom_the_transaction_has_claimed() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    sqlx::raw_sql("set oncely.tenant = ''").execute(&mut sql).await.unwrap();
    let emit = "select oncely.emit('x', 'y', 'z')";
    let named = "select oncely.emit('x', 'y', 'z', tenant => 'named')";
    for nobodys in [emit, "select oncely.emit('x', 'y', 'z', tenant => '')"] {
        let error = sqlx::query(nobodys).execute(&mut sql).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("ONC05"), "{error}");
    }
    let claim = "select oncely.claim($1, 'payments', 'k', sha256('x'))";
    let mut transaction = sql.begin().await.unwrap();
    sqlx::query(claim).bind("one").execute(&mut *transaction).await.unwrap();
    for call in [emit, named] {
        sqlx::query(call).execute(&mut *transaction).await.unwrap();
    }
    // A claim that is rolled back never happened.
    let mut inner = transaction.begin().await.unwrap();
    sqlx::query(claim).bind("two").execute(&mut *inner).await.unwrap();
    inner.rollback().await.unwrap();
    sqlx::query(emit).execute(&mut *transaction).await.unwrap();
    // Of two: whose it is is for the caller to say.
    sqlx::query(claim).bind("two").execute(&mut *transaction).await.unwrap();
    sqlx::query(named).execute(&mut *transaction).await.unwrap();
    let mut inner = transaction.begin().await.unwrap();
    let error = sqlx::query(emit).execute(&mut *inner).await.unwrap_err();
    assert!(error.to_string().contains("claims of several"), "{error}");
    inner.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    let tenants = "select string_agg(tenant, ' ' order by tenant) from oncely.events";
    assert_eq!(world.text(tenants).await.as_deref(), Some("named named one one"));
    // The next transaction has claimed nothing.
    assert!(sqlx::query(emit).execute(&mut sql).await.is_err());
    sqlx::raw_sql("set oncely.tenant = 'shop'").execute(&mut sql).await.unwrap();
    sqlx::query(emit).execute(&mut sql).await.unwrap();
    assert_eq!(world.text(tenants).await.as_deref(), Some("named named one one shop"));
}

#[tokio::test]
async fn an_event_is_there_when_its_transaction_commits_and_never_otherwise() {
    let mut world = World::new().await;
    let mut other = world.database.connect().await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("select oncely.emit('x', 'y', 'z', ordering_key => 'k')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(world.count("select count(*) from oncely.events").await, 0);
    transaction.rollback().await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.events").await, 0);
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("select oncely.emit('x', 'y', 'z', ordering_key => 'k')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("savepoint s").execute(&mut *transaction).await.unwrap();
    sqlx::query("select oncely.emit('x', 'y', 'z', ordering_key => 'k')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("rollback to s").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.events").await, 1);
    assert_eq!(
        world.count("select ordering_number from oncely.events").await,
        1,
        "nothing rolled back counts"
    );
    assert_eq!(world.count("select last_number from oncely.ordering_keys").await, 1);
}

#[tokio::test]
async fn numbers_within_an_ordering_key_follow_the_commits() {
    let mut world = World::new().await;
    let (mut first, mut second) =
        (world.database.connect().await.unwrap(), world.database.connect().await.unwrap());
    let emit =
        |name: &str| format!("select oncely.emit('x', 'y', '{name}', ordering_key => 'k', tenant => 'acme')");
    let mut transaction = first.begin().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(emit("first"))).execute(&mut *transaction).await.unwrap();
    // Waits for the first one's commit, so that nobody can see it before that.
    let text = emit("second");
    let later =
        tokio::spawn(
            async move { sqlx::query(sqlx::AssertSqlSafe(text)).execute(&mut second).await.unwrap() },
        );
    world
        .wait_for("select count(*) from pg_locks as l join pg_stat_activity as a on a.pid = l.pid where not l.granted and a.datname = current_database()", 1)
        .await;
    sqlx::query(sqlx::AssertSqlSafe(emit("first, too"))).execute(&mut *transaction).await.unwrap();
    // Another tenant's key of the same name waits for nobody.
    sqlx::query("select oncely.emit('x', 'y', 'stranger', ordering_key => 'k', tenant => 'other')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    later.await.unwrap();
    let order = "select string_agg(convert_from(payload, 'UTF8'), ' < ' order by ordering_number) from oncely.events where tenant = 'acme'";
    assert_eq!(world.text(order).await.unwrap(), "first < first, too < second");
}

#[tokio::test]
async fn what_no_broker_would_take_is_refused_when_it_is_written() {
    let mut world = World::new().await;
    let long = "ä".repeat(128);
    for (call, code, says) in [
        ("oncely.emit('x', 'y', null::text)".to_owned(), "ONC05", "null"),
        ("oncely.emit(null, 'y', 'z')".to_owned(), "ONC05", "null"),
        (format!("oncely.emit('{long}', 'y', 'z')"), "ONC04", "exchange of an event has 256 bytes"),
        (format!("oncely.emit('x', '{long}', 'z')"), "ONC04", "routing_key of an event has 256 bytes"),
        (
            format!("oncely.emit('x', 'y', 'z', message_id => '{long}')"),
            "ONC04",
            "message_id of an event has 256",
        ),
        (
            format!("oncely.emit('x', 'y', 'z', ordering_key => '{long}')"),
            "ONC04",
            "ordering_key of an event has 256",
        ),
        ("oncely.emit('x', 'y', 'z', message_id => '')".to_owned(), "ONC05", "must not be empty"),
        ("oncely.emit('x', 'y', 'z', delay => '-1 s')".to_owned(), "ONC05", "negative"),
        (
            "oncely.emit('x', 'y', 'z', delay => '1 s', ordering_key => 'k')".to_owned(),
            "ONC05",
            "either a delay or an ordering_key",
        ),
        ("oncely.emit('x', 'y', 'z', source => '/shop')".to_owned(), "ONC05", "needs a source and a type"),
        (
            "oncely.emit('x', 'y', 'z', headers => '[1]')".to_owned(),
            "ONC05",
            "must be a JSON object, not array",
        ),
        ("oncely.emit('x', 'y', 'z', headers => '{\"a\": 1.5}')".to_owned(), "ONC05", "header a"),
        (
            "oncely.emit('x', 'y', 'z', headers => '{\"a\": 9223372036854775808}')".to_owned(),
            "ONC05",
            "header a",
        ),
        ("oncely.emit('x', 'y', 'z', headers => '{\"a\": {\"b\": 1}}')".to_owned(), "ONC05", "header a"),
        ("oncely.emit('x', 'y', 'z', headers => '{\"a\": [1]}')".to_owned(), "ONC05", "header a"),
        (format!("oncely.emit('x', 'y', 'z', headers => '{{\"{long}\": 1}}')"), "ONC05", "1 to 255 bytes"),
        ("oncely.emit('x', 'y', 'z', headers => '{\"CC\": \"a\"}')".to_owned(), "ONC05", "header CC"),
        ("oncely.emit('x', 'y', 'z', headers => '{\"BCC\": null}')".to_owned(), "ONC05", "header BCC"),
        (
            "oncely.emit('x', 'y', 'z', reply_to => 'amq.rabbitmq.reply-to')".to_owned(),
            "ONC05",
            "amq.rabbitmq.reply-to",
        ),
        (
            "oncely.emit('x', 'y', 'z', headers => jsonb_build_object('a', repeat('x', 122880)))".to_owned(),
            "ONC04",
            "headers of an event have 122887 bytes; the limit is 122880",
        ),
        (
            "oncely.emit('x', 'y', repeat('x', 16777217))".to_owned(),
            "ONC04",
            "payload of an event has 16777217 bytes; the limit is 16777216",
        ),
    ] {
        let refused =
            sqlx::query(sqlx::AssertSqlSafe(format!("select {call}"))).execute(&mut world.sql).await;
        let Err(refused) = refused else { panic!("taken: {call:.200}") };
        let refused = refused.into_database_error().unwrap();
        assert_eq!(refused.code().as_deref(), Some(code), "{call:.200}: {refused}");
        assert!(refused.message().contains(says), "{call:.200}: {refused}");
    }
    // The limit can be lowered, for a session or a database, and not raised.
    for (limit, bytes, taken) in [
        ("11", 11, true),
        ("10", 11, false),
        ("2000000000", 16 << 20, true),
        ("2000000000", (16 << 20) + 1, false),
    ] {
        sqlx::query("select set_config('oncely.max_event_bytes', $1, false)")
            .bind(limit)
            .execute(&mut world.sql)
            .await
            .unwrap();
        let done = sqlx::query("select oncely.emit('x', 'y', repeat('x', $1))")
            .bind(bytes)
            .execute(&mut world.sql)
            .await;
        assert_eq!(done.is_ok(), taken, "limit {limit}, {bytes} bytes");
    }
}

#[tokio::test]
async fn an_event_carries_on_the_tenant_and_the_trace_of_the_delivery_that_caused_it() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create function app.tell(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform oncely.emit('x', 'told', message.payload, headers => '{\"h\": true}', cause => message);
             return null;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("sql", "handler = { function = \"app.tell\" }");
    let queue = world.queue("rust");
    world.configure(&format!(
        "[[consumers]]\nname = \"rust\"\nqueue = {queue:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}"
    ));
    world.apply_topology().await;
    let traced = |key: &str| {
        let mut properties = message("acme", key);
        let mut headers = properties.headers().clone().unwrap();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        headers.insert("traceparent".into(), lapin::types::AMQPValue::LongString(trace.into()));
        headers.insert("tracestate".into(), lapin::types::AMQPValue::LongString("a=b".into()));
        properties = properties.with_headers(headers);
        properties
    };
    world.publish("sql", traced("1"), r#"{"n": 1}"#).await;
    world.publish("rust", traced("2"), r#"{"n": 2}"#).await;
    let told = handler_fn(async |mut context: Context<'_>, message: Message<'_>| {
        let event = Event::new("x", "told").body(message.body().to_vec(), "application/json");
        context.emit(&event.header("h", true).message_id(message.key())).await?;
        Ok(())
    });
    let stop = CancellationToken::new();
    let worker = Worker::builder(world.config()).handler("rust", told).build().unwrap();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    world
        .wait_for(
            "select count(*) from oncely.events
             where tenant = 'acme' and headers @> '{\"h\": true, \"tracestate\": \"a=b\"}'
               and headers ->> 'traceparent' = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
               and convert_from(payload, 'UTF8')::jsonb ->> 'n' in ('1', '2')",
            2,
        )
        .await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(world.count("select count(*) from oncely.events where message_id = '2'").await, 1);
}

#[tokio::test]
async fn a_handler_whose_event_is_too_large_is_dead_lettered_and_its_neighbours_are_not() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create function app.tell(message oncely.message) returns jsonb language plpgsql as $$
         begin
             insert into app.effects (tenant, consumer, key) values (message.tenant, message.consumer, message.key);
             perform oncely.emit('x', 'told', 'b', headers => jsonb_build_object('a', repeat('x', (message.payload ->> 'size')::integer)));
             return null;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("tell", "handler = { function = \"app.tell\" }");
    world.apply_topology().await;
    for (key, size) in [("1", 10), ("2", 200_000), ("3", 10)] {
        world.publish("tell", message("acme", key), &format!(r#"{{"size": {size}}}"#)).await;
    }
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.events", 2).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("tell")), 1).await;

    let why = "select error_code || ' ' || reason || ' ' || detail from oncely.audit where outcome = 'dead_lettered'";
    let why = world.text(why).await.unwrap();
    assert!(why.starts_with("ONC04 poison") && why.contains("the limit is 122880"), "{why}");
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
    world.stop(worker).await;
}
