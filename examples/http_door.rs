//! A shop whose payments take effect once, however often their clients ask: an axum server behind the HTTP door.
//!
//! `DATABASE_URL=… LISTEN=127.0.0.1:8080 cargo run --features axum --example http_door`

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use oncely::http::{Consumer, IdempotencyLayer, Tx};
use sqlx::PgPool;

/// Who sends a request: what an authentication in front leaves in its extensions.
#[derive(Clone)]
struct User(String);

// ANCHOR: pay
/// What it writes through `tx`, its answer and the key are one commit.
async fn pay(mut tx: Tx, order: String) -> Result<(StatusCode, String), StatusCode> {
    let paid = sqlx::query_scalar::<_, i64>("insert into payments (order_id) values ($1) returning id")
        .bind(&order)
        .fetch_one(&mut *tx)
        .await;
    match paid {
        Ok(id) => Ok((StatusCode::CREATED, format!("payment {id} for {order}"))),
        // Not stored: the next try is a new one.
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
// ANCHOR_END: pay

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let listener = tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?;
    eprintln!("listening: address={}", listener.local_addr()?);
    // ANCHOR: layer
    let idempotency = IdempotencyLayer::transactional(pool.clone())
        .consumer(Consumer::route())
        // Whose keys they are, from what authentication has left in `parts.extensions`.
        .tenant(|_parts| Some("shop".to_owned()))
        // Who of them sends it, from the same place: the same key from somebody else is refused.
        .principal(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()))
        .build()?;
    let app = Router::new().route("/payments", post(pay)).layer(idempotency.clone());
    axum::serve(listener, app).with_graceful_shutdown(oncely::shutdown::on_signal()?).await?;
    // Requests whose clients have left.
    idempotency.drain().await;
    // ANCHOR_END: layer
    pool.close().await;
    Ok(())
}
