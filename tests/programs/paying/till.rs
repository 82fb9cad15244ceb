//! A shop whose effects are outside of its transactions, behind leases: a provider, whose books are a table that it writes on connections of
//! its own, each call in a transaction of its own.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use oncely::HandlerError;
use oncely::http::{Consumer, IdempotencyLayer, IdempotencyLayerBuilder, Run};
use oncely::lease::{Call, LeaseStore, Repeat, Step, StepError};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::shop::{Calls, of};

/// The provider knows its keys again.
const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(86_400)));
/// It does not know these.
const MAIL: Step = Step::new("mail", Repeat::Never);

/// Tenant and principal from headers, as an authentication in front would leave them.
pub(crate) fn settings(store: impl LeaseStore) -> IdempotencyLayerBuilder {
    IdempotencyLayer::leased(store)
        .consumer(Consumer::route())
        .tenant(of("x-tenant"))
        .principal(of("x-user"))
        .described_by("https://shop.example/keys")
}

pub(crate) fn app(layer: IdempotencyLayer, calls: Calls, books: PgPool) -> Router {
    Router::new()
        .route("/pay", post(pay).patch(pay))
        .route("/pay/{id}", post(pay))
        .route("/free", post(free))
        .route("/moved", post(async || Redirect::permanent("/pay")))
        .layer(layer)
        .with_state((calls, books))
}

/// Needs no key.
async fn free(run: Option<Run>) -> &'static str {
    if run.is_some() { "with a key" } else { "without a key" }
}

/// What the provider does when it is called.
async fn provide(
    books: &PgPool,
    what: (&str, &str, &str),
    call: Call,
    order: &Value,
) -> Result<String, StepError> {
    let (tenant, key, step) = what;
    let mut transaction = books.begin().await?;
    if order["do"] == "wait" {
        sqlx::query("select pg_advisory_xact_lock(4711)").execute(&mut *transaction).await?;
    }
    let insert = "insert into app.effects (tenant, consumer, key, payload, routing_key, user_id, headers)
        values ($1, 'provider', $2, $3, $4, $5, $6)";
    sqlx::query(insert)
        .bind(tenant)
        .bind(key)
        .bind(order)
        .bind(call.key.to_string())
        .bind(step)
        .bind(json!({ "token": call.token, "repeat": call.is_repeat }))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    match order["provider"].as_str().unwrap_or_default() {
        // After the effect, before anybody is told.
        "dies" if !call.is_repeat => std::process::abort(),
        "torn" if !call.is_repeat => Err(StepError::Unknown(anyhow::anyhow!("the answer was torn"))),
        "refuses" => Err(StepError::Refused(HandlerError::refused("no such card"))),
        "rejects" => Err(StepError::Refused(HandlerError::permanent("no such account"))),
        "away" => Err(StepError::Refused(HandlerError::environment("connection refused"))),
        _ => Ok(call.key.to_string()),
    }
}

async fn pay(
    State((calls, books)): State<(Calls, PgPool)>,
    run: Run,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, HandlerError> {
    let call = calls.count_one();
    let order: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (tenant, key) = (header("x-tenant"), header("idempotency-key"));
    let step = if order["step"] == "mail" { &MAIL } else { &CHARGE };
    let called = run
        .step(step, async |call: Call| provide(&books, (tenant, key, step.name()), call, &order).await)
        .await;
    let receipt = match called {
        // In its own words.
        Err(_) if order["words"] == "own" => return Ok(StatusCode::BAD_GATEWAY.into_response()),
        called => called?,
    };
    match order["do"].as_str().unwrap_or_default() {
        "status" => {
            let status = order["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or_default();
            return Ok((status, format!("call {call}")).into_response());
        }
        "panic" => panic!("out of luck"),
        // With its step done.
        "pause" => drop(
            sqlx::query("select pg_advisory_lock_shared(4711), pg_advisory_unlock_shared(4711)")
                .execute(&books)
                .await,
        ),
        "hang" => std::future::pending().await,
        "late" => run.wait_until_lost().await,
        "sized" => {
            let bytes = order["bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
            return Ok(
                (StatusCode::CREATED, [("location", "/receipts/1")], "x".repeat(bytes)).into_response()
            );
        }
        "endless" => {
            let more =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[120; 1_024])));
            return Ok(Body::from_stream(more).into_response());
        }
        "breaks" => {
            let torn = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("torn"))];
            return Ok(Body::from_stream(futures::stream::iter(torn)).into_response());
        }
        "empty" => return Ok(StatusCode::NO_CONTENT.into_response()),
        "binary" => return Ok((0..=255).collect::<Vec<u8>>().into_response()),
        _ => {}
    }
    let receipt = json!({ "receipt": receipt, "call": call }).to_string();
    let more = [
        ("content-type", "application/json"),
        ("location", "/receipts/1"),
        ("link", "</a>; rel=\"a\""),
        ("x-internal", "7"),
        ("set-cookie", "session=secret"),
    ];
    let mut response = (StatusCode::CREATED, more, receipt).into_response();
    if let Ok(link) = "</b>; rel=\"b\"".parse() {
        response.headers_mut().append("link", link);
    }
    Ok(response)
}
