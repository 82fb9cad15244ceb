//! Refusals that no handler has given: a router's, an extractor's.

use axum::Router;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::routing::post;
use oncely::http::{Consumer, IdempotencyLayer, IdempotencyLayerBuilder, Run, Tx};
use oncely::lease::{LeaseStore, MemoryClock, MemoryStore};
use sqlx::Executor as _;

use super::shop::{self, Calls, shared};
use super::{Ask, EFFECTS, KEYS, Server, pool};
use crate::support::{World, message};

/// Refuses what is not said to be JSON, as `axum::Json` does.
struct Json;

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = StatusCode;

    async fn from_request(request: Request, _: &S) -> Result<Self, StatusCode> {
        match request.headers().get("content-type").is_some_and(|media| media == "application/json") {
            true => Ok(Self),
            // What axum says of another media type, and of a body that does not fit.
            false if request.headers().contains_key("x-unfit") => Err(StatusCode::UNPROCESSABLE_ENTITY),
            false => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
        }
    }
}

async fn order(mut tx: Tx, _: Json) -> StatusCode {
    let insert = "insert into app.effects (tenant, consumer, key) values ('acme', 'http', 'ordered')";
    match tx.execute(insert).await {
        Ok(_) => StatusCode::CREATED,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// As many have it: the layer is around the router, its fallbacks included.
async fn serve(settings: IdempotencyLayerBuilder) -> Server {
    let layer = settings.build().unwrap();
    let app = Router::new().route("/orders", post(order)).layer(layer.clone());
    Server::serve(layer, Calls::default(), app).await
}

/// Under a lease, without an idea of who sends.
pub(super) fn leased(store: impl LeaseStore) -> IdempotencyLayerBuilder {
    IdempotencyLayer::leased(store)
        .consumer(Consumer::named("shop"))
        .tenant(|parts| parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned))
        .one_principal()
}

fn to_orders(key: &str) -> Ask {
    Ask::pay(key, "{}").to("POST", "/orders")
}

fn json(ask: Ask) -> Ask {
    ask.header("Content-Type", "application/json")
}

/// Each is refused as often as it is asked, and nothing is kept of it.
async fn refuses(server: &Server) {
    for (ask, status) in [
        (json(Ask::pay("path", "{}").to("POST", "/nowhere")), 404),
        (json(Ask::pay("method", "{}").to("PATCH", "/orders")), 405),
        (to_orders("media"), 415),
        (to_orders("media").header("X-Unfit", "1"), 422),
    ] {
        for _ in 0..2 {
            let reply = server.client.ask(&ask).await;
            assert_eq!((reply.status, reply.is_replayed()), (status, false), "{ask:?}");
        }
    }
}

#[tokio::test]
async fn the_message_of_a_key_that_was_refused_takes_its_effect() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let server = serve(shared(pool(world.database.url(), 4).await, "payments")).await;
    refuses(&server).await;
    assert_eq!(world.count(KEYS).await, 0);
    for key in ["path", "method", "media"] {
        world.publish("payments", message("acme", key), "{}").await;
        let effect = format!("select count(*) from app.effects where key = '{key}'");
        world.wait_for(&effect, 1).await;
    }
    let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    world.wait_for(done, 3).await;
    assert_eq!(world.count(EFFECTS).await, 3);
    world.stop(worker).await;
}

#[tokio::test]
async fn a_shared_consumers_handler_that_refuses_does_not_take_the_messages_place() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let pool = pool(world.database.url(), 4).await;
    let server = Server::start(pool.clone(), |_| shared(pool, "payments")).await;
    let body = r#"{"do":"status","status":422}"#;
    for _ in 0..2 {
        let reply = server.client.ask(&Ask::pay("no", body)).await;
        assert_eq!((reply.status, reply.is_replayed()), (422, false));
    }
    world.publish("payments", message("acme", "no"), body).await;
    world.wait_for("select count(*) from app.effects where key = 'no'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_corrected_retry_runs() {
    let mut world = World::new().await;
    let named = shop::settings(pool(world.database.url(), 4).await).consumer(Consumer::named("shop"));
    let server = serve(named).await;
    refuses(&server).await;
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (0, 0));
    let right = json(to_orders("media"));
    assert_eq!(server.client.ask(&right).await.status, 201);
    assert!(server.client.ask(&right).await.is_replayed());
    assert_eq!(world.count(EFFECTS).await, 1);
}

/// Takes its run once it has a request that it understands.
async fn take(request: Request) -> Result<(StatusCode, String), StatusCode> {
    let extensions = request.extensions().clone();
    Json::from_request(request, &()).await?;
    let run = Run::from_extensions(&extensions).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((StatusCode::CREATED, format!("run {}", run.attempt())))
}

#[tokio::test]
async fn under_a_lease_it_is_no_failed_run_either() {
    let layer = leased(MemoryStore::in_memory(MemoryClock::default())).build().unwrap();
    let app = Router::new().route("/orders", post(take)).layer(layer.clone());
    let server = Server::serve(layer, Calls::default(), app).await;
    refuses(&server).await;
    let right = json(to_orders("media"));
    let first = server.client.ask(&right).await;
    assert_eq!((first.status, first.body.as_slice()), (201, &b"run 1"[..]));
    assert!(server.client.ask(&right).await.is_replayed());
}
