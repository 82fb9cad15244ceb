//! A server behind the HTTP door whose requests take the effects that the messages of their keys take: at `/take` the fault runs'
//! `judge.take`, in one transaction; at `/order`, where `PROVIDER` says where the provider is, calls outside, under leases.
//! `DATABASE_URL` is its database, `LISTEN` where it listens, `CONSUMER` whose queue `/take` shares keys with.

mod provider;

use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, IdempotencyLayerBuilder, Run, Tx};
use oncely::lease::{Call, PostgresStore};
use oncely::{HandlerError, shutdown};
use provider::{Order, Provider};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// As the fault runs configure their worker.
const RETENTION: Duration = Duration::from_secs(10 * 86_400);
/// A connection that stands still is given up soon: another one may be well.
const ACQUIRE: Duration = Duration::from_secs(5);

/// As `testbed` configures the consumer `charges`.
const LEASE: Duration = Duration::from_secs(5);
const MAX_RUN: Duration = Duration::from_secs(60);
const DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

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

/// Tells its run by the token.
async fn order(
    State(provider): State<Provider>,
    headers: HeaderMap,
    run: Run,
    body: Bytes,
) -> Result<impl IntoResponse, HandlerError> {
    let order: Order =
        serde_json::from_slice(&body).map_err(|error| HandlerError::permanent(error.to_string()))?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let whose = (header("x-tenant-id").to_owned(), header("idempotency-key").to_owned());
    for step in order.steps()? {
        let call = async |call: Call| provider.call(step.name(), &order, &whose, call).await;
        if step.name() == "asked" {
            run.step_or_ask(step, async |call| provider.knows(call).await, call).await?;
        } else {
            run.step(step, call).await?;
        }
    }
    order.work().await;
    let answer = json!({ "token": run.token() }).to_string();
    Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], answer))
}

/// A layer that shares its keys with a queue's consumer.
fn shared(settings: IdempotencyLayerBuilder, consumer: &str) -> IdempotencyLayerBuilder {
    settings
        .consumer(Consumer::shared(consumer))
        .tenant(|parts: &Parts| parts.headers.get("x-tenant-id")?.to_str().ok().map(str::to_owned))
        .fingerprint(FingerprintPolicy::Body)
        .one_principal()
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
    let settings = shared(IdempotencyLayer::transactional(pool.clone()), &of("CONSUMER")?);
    let transactional = settings.retention(RETENTION).build()?;
    let mut app = Router::new().route("/take", post(take)).layer(transactional.clone());
    let mut leased = None;
    if let Ok(provider) = std::env::var("PROVIDER") {
        let settings = shared(IdempotencyLayer::leased(PostgresStore::new(pool.clone())), "charges");
        let settings = settings.lease(LEASE).handler_limit(MAX_RUN).retry(DELAYS.to_vec(), 8, 3);
        let layer = settings.retention(RETENTION * 3).build()?;
        let orders = Router::new().route("/order", post(order)).layer(layer.clone());
        app = app.merge(orders.with_state(Provider(provider.parse()?)));
        leased = Some(layer);
    }
    axum::serve(listener, app).with_graceful_shutdown(shutdown::on_signal()?).await?;
    transactional.drain().await;
    if let Some(leased) = leased {
        leased.drain().await;
    }
    pool.close().await;
    Ok(())
}
