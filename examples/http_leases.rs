//! A shop that charges cards at a provider, once, however often its clients ask: an axum server behind the HTTP door, whose effects are outside.
//!
//! `DATABASE_URL=… LISTEN=127.0.0.1:8080 cargo run --features axum --example http_leases`

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use oncely::HandlerError;
use oncely::http::{Consumer, IdempotencyLayer, Run};
use oncely::lease::{Call, PostgresStore, Repeat, Step, StepError};
use sqlx::PgPool;

// ANCHOR: pay
/// The provider knows a key again for a day.
const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(24 * 3_600)));
/// Nobody knows a mail again.
const MAIL: Step = Step::new("mail", Repeat::Never);

/// What a step has done is not done again, whichever run it was that did it.
async fn pay(run: Run, order: String) -> Result<String, HandlerError> {
    let receipt = run.step(&CHARGE, async |call| charge(call, &order).await).await?;
    run.step(&MAIL, async |_| mail(&receipt).await).await?;
    Ok(receipt)
}
// ANCHOR_END: pay

/// POST https://provider.example/charges with `Idempotency-Key: call.key`. An error leaves unknown whether it happened; a refusal
/// (`StepError::Refused`) is certain.
async fn charge(call: Call, order: &str) -> Result<String, StepError> {
    Ok(format!("{order} is paid, receipt {}", call.key))
}

async fn mail(receipt: &str) -> Result<(), StepError> {
    eprintln!("mail: {receipt}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let listener = tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?;
    eprintln!("listening: address={}", listener.local_addr()?);
    // ANCHOR: layer
    let idempotency = IdempotencyLayer::leased(PostgresStore::new(pool.clone()))
        .consumer(Consumer::route())
        .tenant(|_parts| Some("shop".to_owned()))
        .build()?;
    let app = Router::new().route("/payments", post(pay)).layer(idempotency.clone());
    // ANCHOR_END: layer
    axum::serve(listener, app).with_graceful_shutdown(oncely::shutdown::on_signal()?).await?;
    idempotency.drain().await;
    pool.close().await;
    Ok(())
}
