//! Two doors, one effect: a request that comes again as a message, and a message that comes again as a request, both under leases.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use axum::routing::post;
use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, IdempotencyLayerBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::super::{Calls, till};
use super::{Ask, EFFECTS, Server, in_postgresql, pool};
use crate::support::{World, message};

/// What messages are posted to: the same provider.
async fn charge(State(books): State<PgPool>, headers: HeaderMap) -> String {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let insert =
        "insert into app.effects (tenant, consumer, key, routing_key) values ('acme', 'provider', $1, $2)";
    let insert = sqlx::query(insert).bind(header("oncely-key")).bind(header("idempotency-key"));
    insert.execute(&books).await.unwrap();
    json!({ "charged": header("oncely-key") }).to_string()
}

async fn world() -> World {
    let mut world = World::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", post(charge)).with_state(pool(world.database.url(), 4).await);
    tokio::spawn(async move { axum::serve(listener, app).await });
    world.configure("[audit]\nduplicates = true");
    let handler = format!("handler = {{ http = \"http://{address}/\", repeat = {{ within = \"24h\" }} }}");
    world.consumer("payments", &format!("{handler}\nlease = {{ time = \"5s\", max_run = \"60s\" }}"));
    world.apply_topology().await;
    world
}

async fn shared(
    world: &World,
    change: impl FnOnce(IdempotencyLayerBuilder) -> IdempotencyLayerBuilder,
) -> Server {
    let layer = IdempotencyLayer::leased(in_postgresql(world).await)
        .consumer(Consumer::shared("payments"))
        .tenant(|parts| parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned))
        .fingerprint(FingerprintPolicy::Body)
        .one_principal();
    let (layer, calls) = (change(layer).build().unwrap(), Calls::default());
    let app = till::app(layer.clone(), calls.clone(), pool(world.database.url(), 4).await);
    Server::serve(layer, calls, app).await
}

#[tokio::test]
async fn a_request_that_returns_as_a_message_is_one_effect() {
    let mut world = world().await;
    let worker = world.start("worker");
    let server = shared(&world, |settings| settings).await;

    // As a request first.
    let body = r#"{"amount":7}"#;
    let first = server.client.ask(&Ask::pay("request", body)).await;
    assert_eq!(first.status, 201);
    world.publish("payments", message("acme", "request"), body).await;
    let duplicate = "select count(*) from oncely.audit where key = 'request' and outcome = 'duplicate'";
    world.wait_for(duplicate, 1).await;
    assert_eq!(world.count(EFFECTS).await, 1);
    assert_eq!(server.client.ask(&Ask::pay("request", body)).await.body, first.body);

    // As a message first.
    world.publish("payments", message("acme", "message"), body).await;
    let completed =
        "select count(*) from oncely.idempotency_keys where key = 'message' and status = 'COMPLETED'";
    world.wait_for(completed, 1).await;
    let reply = server.client.ask(&Ask::pay("message", body)).await;
    assert_eq!((reply.status, reply.is_replayed()), (200, true));
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(said, json!({ "charged": "message" }));
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 2));

    // Another payload is another intent, at either door.
    assert_eq!(server.client.ask(&Ask::pay("message", "{}")).await.problem(), "key-reused");
    world.publish("payments", message("acme", "request"), "{}").await;
    let conflict = "select count(*) from oncely.audit where key = 'request' and reason = 'key_conflict'";
    world.wait_for(conflict, 1).await;
    assert_eq!(world.count(EFFECTS).await, 2);

    // In words of the service's own.
    let mapped = |settings: IdempotencyLayerBuilder| {
        settings.from_message(|result| {
            assert!(!result.is_refused);
            let charged = result.response.as_ref().and_then(|json| json["charged"].as_str());
            let text = format!("charged {}", charged.unwrap_or_default());
            Response::builder().status(202).header("x-from", "message").body(text.into()).unwrap()
        })
    };
    let server = shared(&world, mapped).await;
    let reply = server.client.ask(&Ask::pay("message", body)).await;
    assert_eq!(
        (reply.status, reply.is_replayed(), reply.body.as_slice()),
        (202, true, &b"charged message"[..])
    );
    assert_eq!(reply.header("x-from").as_deref(), Some("message"));
    assert_eq!(
        server.client.ask(&Ask::pay("request", body)).await.body,
        first.body,
        "a request's answer is its own"
    );

    let sql = pool(world.database.url(), 2).await;
    // The other form of the door knows the answer, too.
    let transactional = |_: IdempotencyLayerBuilder| {
        IdempotencyLayer::transactional(sql)
            .consumer(Consumer::shared("payments"))
            .tenant(|_| Some("acme".to_owned()))
            .fingerprint(FingerprintPolicy::Body)
            .one_principal()
    };
    let server = Server::start(pool(world.database.url(), 1).await, transactional).await;
    let reply = server.client.ask(&Ask::pay("request", body)).await;
    assert_eq!((reply.status, reply.is_replayed(), reply.body), (201, true, first.body));

    // What a worker has encrypted is nothing for a client.
    let sealed = r#"update oncely.idempotency_keys
        set response = '{"oncely_encrypted": {"key": "a", "value": "AAAA"}}' where key = 'message'"#;
    sqlx::query(sealed).execute(&mut world.sql).await.unwrap();
    let server = shared(&world, |settings| settings).await;
    let reply = server.client.ask(&Ask::pay("message", body)).await;
    assert_eq!((reply.status, reply.is_replayed(), reply.body.len()), (204, true, 0));
    world.stop(worker).await;
}

#[tokio::test]
async fn a_message_that_is_at_work_is_in_flight_for_a_request() {
    let mut world = world().await;
    let server = shared(&world, |settings| settings.wait(std::time::Duration::from_millis(100))).await;
    // What a worker's run says of itself.
    let claim = "select outcome from oncely.claim_lease('acme', 'payments', 'k', sha256('{}'), 'a worker')";
    assert_eq!(world.text(claim).await.as_deref(), Some("granted"));
    let reply = server.client.ask(&Ask::pay("k", "{}")).await;
    assert_eq!((reply.status, reply.problem().as_str()), (409, "in-flight"));
    let rest: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((15..=30).contains(&rest), "{rest}");
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (0, 0));
}
