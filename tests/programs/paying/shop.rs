//! A shop behind the HTTP door, whose handlers do what the body says and leave a trace of each run: for a program that tests kill, and in
//! the tests' own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, IdempotencyLayerBuilder, Tx};
use serde_json::{Value, json};
use sqlx::{Executor as _, PgPool};

/// How often handlers were called.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<AtomicU32>);

impl Calls {
    #[allow(dead_code, reason = "the program has no use for it")]
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// One more: which one it is.
    pub(crate) fn count_one(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// What a header says of a request.
pub(crate) fn of(name: &'static str) -> impl Fn(&axum::http::request::Parts) -> Option<String> {
    move |parts| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Tenant and principal from headers, as an authentication in front would leave them.
pub(crate) fn settings(pool: PgPool) -> IdempotencyLayerBuilder {
    IdempotencyLayer::transactional(pool)
        .consumer(Consumer::route())
        .tenant(of("x-tenant"))
        .principal(of("x-user"))
        .described_by("https://shop.example/keys")
}

/// The same with the keys of a queue's consumer.
#[allow(dead_code, reason = "the program has no use for it")]
pub(crate) fn shared(pool: PgPool, consumer: &str) -> IdempotencyLayerBuilder {
    IdempotencyLayer::transactional(pool)
        .consumer(Consumer::shared(consumer))
        .tenant(|parts| parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned))
        .fingerprint(FingerprintPolicy::Body)
        .one_principal()
}

pub(crate) fn app(layer: IdempotencyLayer, calls: Calls) -> Router {
    Router::new()
        .route("/pay", post(pay).patch(pay))
        .route("/pay/{id}", post(pay))
        .route("/free", post(free))
        .route("/look", get(async || "looked"))
        .layer(layer)
        .with_state(calls)
}

/// Needs no key.
async fn free(tx: Option<Tx>) -> &'static str {
    if tx.is_some() { "with a key" } else { "without a key" }
}

fn failed(error: sqlx::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

async fn pay(State(calls): State<Calls>, mut tx: Tx, headers: HeaderMap, body: Bytes) -> Response {
    let call = calls.count_one();
    let order: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Without a schema: along the search_path of its session.
    let insert = "insert into app.effects (tenant, consumer, key, payload) values ($1, 'http', $2, $3)";
    let insert = sqlx::query(insert).bind(header("x-tenant")).bind(header("idempotency-key")).bind(&order);
    if let Err(error) = insert.execute(&mut *tx).await {
        return failed(error);
    }
    match order["do"].as_str().unwrap_or_default() {
        "wait" => {
            if let Err(error) = tx.execute("select pg_advisory_xact_lock(4711)").await {
                return failed(error);
            }
        }
        "status" => {
            let status = order["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or_default();
            return (status, format!("call {call}")).into_response();
        }
        "panic" => panic!("out of luck"),
        "hang" => std::future::pending().await,
        "swallow" => drop(tx.execute("select 1 / 0").await),
        "commit" => {
            drop(tx.execute("commit").await);
            match order["then"].as_str().unwrap_or_default() {
                "panic" => panic!("out of luck"),
                "fail" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                "hang" => std::future::pending().await,
                "begin" => drop(tx.execute("begin").await),
                _ => {}
            }
        }
        "chain" => drop(tx.execute("rollback and chain").await),
        "rollback" => drop(tx.execute("rollback").await),
        // And writes it again, by itself.
        "rewrite" => {
            drop(tx.execute("rollback").await);
            let again = "insert into app.effects (tenant, consumer, key) values ('acme', 'http', 'rewrite')";
            if let Err(error) = tx.execute(again).await {
                return failed(error);
            }
            if order["then"] == "hang" {
                std::future::pending::<()>().await;
            }
        }
        // Found out at COMMIT.
        "twice" => drop(tx.execute("insert into app.numbers values ('7'), ('7')").await),
        "large" => return "x".repeat(300_000).into_response(),
        "endless" => {
            let more =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[120; 1_024])));
            return Body::from_stream(more).into_response();
        }
        "keep" => {
            tokio::spawn(async move {
                let _tx = tx;
                tokio::time::sleep(Duration::from_secs(3_600)).await;
            });
            return "kept".into_response();
        }
        "empty" => return StatusCode::NO_CONTENT.into_response(),
        // And leaves it to whoever has the session next.
        "role" => drop(tx.execute("set role oncely_auditor").await),
        // Of which its login is no member.
        "forge" => {
            drop(tx.execute("select set_config('oncely.handler_role', 'oncely_operator', true)").await);
        }
        // Compressed by itself, in a way.
        "encoded" => {
            return ([("content-encoding", "gzip"), ("content-type", "text/plain")], "z").into_response();
        }
        _ => {}
    }
    let receipt = json!({ "receipt": uuid::Uuid::new_v4(), "call": call }).to_string();
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
    response
}
