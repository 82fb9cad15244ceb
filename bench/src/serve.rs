//! A shop over HTTP: one row an order, by itself or behind the HTTP door.

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use clap::Args;
use oncely::http::{Consumer, IdempotencyLayer, Run, Tx};
use oncely::lease::PostgresStore;
use serde::Deserialize;
use sqlx::{PgConnection, PgPool, Row as _};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    #[arg(long)]
    port: u16,
    /// Each request takes effect once; else the shop has a transaction of its own and no key
    #[arg(long)]
    door: Option<Door>,
    /// Connections to PostgreSQL
    #[arg(long, default_value_t = 8)]
    connections: u32,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Door {
    /// The order is written in the transaction of its key
    Transactional,
    /// The order is written in a transaction of its own, under a lease
    Leased,
}

#[derive(Deserialize)]
struct Order {
    customer: i32,
    amount: i64,
    currency: String,
}

/// Serves until it is killed.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let options = sqlx::postgres::PgPoolOptions::new();
    let pool = options
        .min_connections(arguments.connections)
        .max_connections(arguments.connections)
        .connect(&arguments.database)
        .await?;
    let settings = match arguments.door {
        Some(Door::Transactional) => Some(IdempotencyLayer::transactional(pool.clone())),
        Some(Door::Leased) => Some(IdempotencyLayer::leased(PostgresStore::new(pool.clone()))),
        None => None,
    };
    let layer = settings.map(|settings| {
        settings.consumer(Consumer::route()).tenant(|_| Some("acme".to_owned())).one_principal().build()
    });
    let app = match arguments.door {
        Some(Door::Transactional) => Router::new().route("/orders", post(behind_the_door)),
        Some(Door::Leased) => Router::new().route("/orders", post(under_a_lease)).with_state(pool),
        None => Router::new().route("/orders", post(by_itself)).with_state(pool),
    };
    let app = match layer.transpose()? {
        Some(layer) => app.layer(layer),
        None => app,
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", arguments.port)).await?;
    axum::serve(listener, app).await.context("the server has ended")
}

async fn behind_the_door(mut tx: Tx, headers: HeaderMap, body: Bytes) -> Response {
    answer(order(&mut tx, &headers, &body).await)
}

async fn under_a_lease(_run: Run, pool: State<PgPool>, headers: HeaderMap, body: Bytes) -> Response {
    by_itself(pool, headers, body).await
}

async fn by_itself(State(pool): State<PgPool>, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let mut transaction = pool.begin().await?;
        let id = order(&mut transaction, &headers, &body).await?;
        transaction.commit().await?;
        Ok(id)
    };
    answer(done.await)
}

async fn order(connection: &mut PgConnection, headers: &HeaderMap, body: &Bytes) -> anyhow::Result<i64> {
    let key = headers.get("idempotency-key").context("no key")?.to_str()?;
    let order: Order = serde_json::from_slice(body)?;
    let row = sqlx::query(
        "insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
         values ('acme', $1, $2, $3, $4, 0) returning id",
    )
    .bind(key)
    .bind(order.customer)
    .bind(order.amount)
    .bind(order.currency)
    .fetch_one(connection)
    .await?;
    Ok(row.get(0))
}

fn answer(done: anyhow::Result<i64>) -> Response {
    match done {
        Ok(id) => {
            let receipt = serde_json::json!({ "order": id, "status": "captured" }).to_string();
            (StatusCode::CREATED, [("content-type", "application/json")], receipt).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}
