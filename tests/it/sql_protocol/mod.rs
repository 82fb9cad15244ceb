//! The consumer protocol in SQL: `oncely.claim`, `complete` and `fail`, beside the worker and without it.

mod articles;
mod claims;
mod decisions;
mod keys;
mod lease_groups;
mod leases;
mod letters;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::World;

/// What `oncely.claim` answered.
#[derive(Debug, PartialEq)]
struct Claimed {
    outcome: String,
    attempt: i32,
    response: Option<Value>,
    reason: Option<String>,
}

async fn claim(sql: &mut PgConnection, key: &str, body: &str) -> Result<Claimed, sqlx::Error> {
    let row =
        sqlx::query("select * from oncely.claim('acme', 'payments', $1, sha256(convert_to($2, 'UTF8')))")
            .bind(key)
            .bind(body)
            .fetch_one(sql)
            .await?;
    Ok(Claimed {
        outcome: row.get("outcome"),
        attempt: row.get("attempt"),
        response: row.get("response"),
        reason: row.get("reason"),
    })
}

async fn complete(sql: &mut PgConnection, key: &str, response: Value) -> Result<(), sqlx::Error> {
    sqlx::query("select oncely.complete('acme', 'payments', $1, $2, queue => 'q')")
        .bind(key)
        .bind(response)
        .execute(sql)
        .await
        .map(drop)
}

/// Outcome, attempts and reason of `oncely.fail`.
async fn fail(
    sql: &mut PgConnection,
    key: &str,
    attempt: i32,
    reason: Option<&str>,
) -> (String, i32, Option<String>) {
    let row = sqlx::query(
        "select * from oncely.fail('acme', 'payments', $1, sha256('{}'), $2, 'boom', $3, max_attempts => 3)",
    )
    .bind(key)
    .bind(attempt)
    .bind(reason)
    .fetch_one(sql)
    .await
    .unwrap();
    (row.get("outcome"), row.get("attempts"), row.get("final_reason"))
}

async fn effect(sql: &mut PgConnection, key: &str) {
    sqlx::query("insert into app.effects (tenant, consumer, key) values ('acme', 'payments', $1)")
        .bind(key)
        .execute(sql)
        .await
        .unwrap();
}

/// Claims, works and completes in one transaction; what a duplicate would get.
async fn once(sql: &mut PgConnection, key: &str) -> Claimed {
    let mut transaction = sql.begin().await.unwrap();
    let claimed = claim(&mut transaction, key, "{}").await.unwrap();
    if claimed.outcome == "granted" {
        effect(&mut transaction, key).await;
        complete(&mut transaction, key, json!({ "done": key })).await.unwrap();
    }
    transaction.commit().await.unwrap();
    claimed
}

fn code(error: sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
}

async fn effects(world: &mut World, key: &str) -> i64 {
    world.count(&format!("select count(*) from app.effects where key = '{key}'")).await
}

async fn status(world: &mut World, key: &str) -> Option<String> {
    world
        .text(&format!("select status || ' ' || attempts from oncely.idempotency_keys where key = '{key}'"))
        .await
}
