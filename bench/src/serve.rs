//! A shop over HTTP: one row an order, in a transaction of its own or behind the HTTP door.

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use clap::Args;
use oncely::http::{Consumer, IdempotencyLayer, Tx};
use serde::Deserialize;
use sqlx::{PgConnection, PgPool, Row as _};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    #[arg(long)]
    port: u16,
    /// Each request takes effect once
    #[arg(long)]
    door: bool,
    /// Connections to PostgreSQL
    #[arg(long, default_value_t = 8)]
    connections: u32,
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
    let app = match arguments.door {
        true => {
            let layer = IdempotencyLayer::transactional(pool)
                .consumer(Consumer::route())
                .tenant(|_| Some("acme".to_owned()))
                .one_principal()
                .build()?;
            Router::new().route("/orders", post(behind_the_door)).layer(layer)
        }
        false => Router::new().route("/orders", post(by_itself)).with_state(pool),
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", arguments.port)).await?;
    axum::serve(listener, app).await.context("the server has ended")
}

async fn behind_the_door(mut tx: Tx, headers: HeaderMap, body: Bytes) -> Response {
    answer(order(&mut tx, &headers, &body).await)
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
