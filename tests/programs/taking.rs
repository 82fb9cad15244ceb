//! A server behind the HTTP door whose handler is the fault runs' `judge.take`: a request takes the effect that the message of its key takes.
//! `DATABASE_URL` is its database, `LISTEN` where it listens, `CONSUMER` whose queue it shares keys with.

use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, Tx};
use oncely::shutdown;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// As the fault runs configure their worker.
const RETENTION: Duration = Duration::from_secs(10 * 86_400);
/// A connection that stands still is given up soon: another one may be well.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Tells its run by the transaction: another run has another answer.
async fn take(headers: HeaderMap, mut tx: Tx, body: Bytes) -> Result<impl IntoResponse, StatusCode> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let taken = sqlx::query_scalar::<_, String>(
        "select pg_current_xact_id()::text from judge.take(jsonb_populate_record(
             null::oncely.message,
             jsonb_build_object(
                 'seq', 1, 'attempt', 1, 'tenant', $1, 'consumer', 'faults', 'key', $2,
                 'payload', convert_from($3, 'UTF8')::jsonb, 'body', '\\x' || encode($3, 'hex')
             )
         ))",
    )
    .bind(header("x-tenant-id"))
    .bind(header("idempotency-key"))
    .bind(&body[..])
    .fetch_one(&mut *tx)
    .await;
    match taken {
        Ok(transaction) => {
            let answer = json!({ "transaction": transaction }).to_string();
            Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], answer))
        }
        Err(error) => {
            eprintln!("failed: {error}");
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let of = |name| std::env::var(name).with_context(|| format!("{name} is not set"));
    let options: PgConnectOptions = of("DATABASE_URL")?.parse()?;
    let options = options
        .application_name(&of("ONCELY_WORKER__NAME")?)
        .options([("statement_timeout", "20s"), ("lock_timeout", "10s")]);
    let pool = PgPoolOptions::new().max_connections(8).acquire_timeout(ACQUIRE).connect_lazy_with(options);
    let listener = tokio::net::TcpListener::bind(of("LISTEN")?).await?;
    let layer = IdempotencyLayer::transactional(pool.clone())
        .consumer(Consumer::shared(of("CONSUMER")?))
        .tenant(|parts: &Parts| parts.headers.get("x-tenant-id")?.to_str().ok().map(str::to_owned))
        .fingerprint(FingerprintPolicy::Body)
        .one_principal()
        .retention(RETENTION)
        .build()?;
    let app = Router::new().route("/take", post(take)).layer(layer.clone());
    axum::serve(listener, app).with_graceful_shutdown(shutdown::on_signal()?).await?;
    layer.drain().await;
    pool.close().await;
    Ok(())
}
