//! A router that is nested in another one sees the rest of a path alone.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use oncely::http::{IdempotencyLayer, Tx};
use oncely::lease::{MemoryClock, MemoryStore};
use sqlx::Executor as _;

use super::shop::{self, Calls};
use super::{Ask, EFFECTS, Server, pool};
use crate::support::World;

async fn close(mut tx: Tx) -> StatusCode {
    let insert = "insert into app.effects (tenant, consumer, key) values ('acme', 'http', 'closed')";
    match tx.execute(insert).await {
        Ok(_) => StatusCode::CREATED,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn accounts(layer: IdempotencyLayer, close: axum::routing::MethodRouter) -> Router {
    Router::new().nest("/accounts/{id}", Router::new().route("/close", close).layer(layer))
}

fn of(account: u32) -> Ask {
    Ask::pay("k", "").to("POST", &format!("/accounts/{account}/close?now=1"))
}

async fn is_each_accounts(server: &Server) {
    assert_eq!(server.client.ask(&of(1)).await.status, 201);
    assert!(server.client.ask(&of(1)).await.is_replayed());
    let other = server.client.ask(&of(2)).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
}

#[tokio::test]
async fn a_key_of_one_account_is_no_other_accounts() {
    let mut world = World::new().await;
    let layer = shop::settings(pool(world.database.url(), 2).await).build().unwrap();
    let app = accounts(layer.clone(), post(close));
    is_each_accounts(&Server::serve(layer, Calls::default(), app).await).await;
    assert_eq!(world.count(EFFECTS).await, 1);
}

#[tokio::test]
async fn nor_is_it_under_a_lease() {
    let layer = super::refusals::leased(MemoryStore::in_memory(MemoryClock::default())).build().unwrap();
    let app = accounts(layer.clone(), post(async || StatusCode::CREATED));
    is_each_accounts(&Server::serve(layer, Calls::default(), app).await).await;
}
