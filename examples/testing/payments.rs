//! A handler's tests on a database, without a broker: one effect, whatever happens. The test suite runs them
//! (`tests/it/testing.rs`).

// ANCHOR: setup
use oncely::handler::handler_fn;
use oncely::testing::{Harness, IncomingMessage, KillPoint, TestOutcome};
use oncely::{Config, Context, HandlerError, Message, Worker};
use serde_json::json;
use sqlx::Connection as _;

async fn pay(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
    let payload: serde_json::Value = message.json()?;
    let Some(amount) = payload["amount"].as_i64().filter(|amount| *amount > 0) else {
        return Err(HandlerError::permanent("the amount must be positive"));
    };
    sqlx::query("insert into app.payments (tenant, order_id, amount) values ($1, $2, $3)")
        .bind(message.tenant())
        .bind(message.key())
        .bind(amount)
        .execute(context.connection())
        .await?;
    Ok(())
}

/// The worker that the program runs, with a configuration that leads to a database of the tests' own.
fn worker(config: Config) -> anyhow::Result<Worker> {
    Ok(Worker::builder(config).handler("payments", handler_fn(pay)).build()?)
}

fn payment(order: &str, amount: i64) -> IncomingMessage {
    IncomingMessage::json(&json!({ "amount": amount })).message_id(order).header("x-tenant-id", "acme")
}
// ANCHOR_END: setup

// ANCHOR: database
/// A configuration that leads to a database of the tests' own, and a connection that looks into it. `rabbitmq.url` must be set; nobody
/// connects to it.
async fn database(url: &str) -> anyhow::Result<(Config, sqlx::PgConnection)> {
    let config = Config::from_value(json!({
        "postgres": { "url": url },
        "rabbitmq": { "url": "amqp://localhost" },
        "consumers": [{
            "name": "payments",
            "queue": "payments",
            "tenant": { "header": "x-tenant-id" },
            "key": { "property": "message_id" },
        }],
    }))?;
    Ok((config, sqlx::PgConnection::connect(url).await?))
}

/// Payments of an order that are there.
async fn payments(sql: &mut sqlx::PgConnection, order: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar("select count(*) from app.payments where order_id = $1")
        .bind(order)
        .fetch_one(sql)
        .await
}
// ANCHOR_END: database

// ANCHOR: kills
pub(crate) async fn a_payment_is_made_once_wherever_the_worker_dies(url: &str) -> anyhow::Result<()> {
    let (config, mut sql) = database(url).await?;
    let mut test = Harness::connect(worker(config)?).await?;
    for step in KillPoint::ALL {
        let order = format!("order {step:?}");
        let message = payment(&order, 20);
        test.kill_at(step, "payments", &message).await?;
        let outcome = test.redeliver("payments", &message).await?;
        assert!(outcome.took_effect(), "{step:?}: {outcome:?}");
        assert_eq!(payments(&mut sql, &order).await?, 1, "{step:?}");
    }
    Ok(())
}
// ANCHOR_END: kills

// ANCHOR: verdicts
pub(crate) async fn what_comes_twice_or_cannot_be_paid(url: &str) -> anyhow::Result<()> {
    let (config, mut sql) = database(url).await?;
    let mut test = Harness::connect(worker(config)?).await?;
    let message = payment("order-1182", 20);
    assert!(test.deliver("payments", &message).await?.is_completed());
    assert_eq!(test.deliver("payments", &message).await?, TestOutcome::Duplicate);
    let other = test.deliver("payments", &payment("order-1182", 25)).await?;
    assert_eq!(other.dead_lettered(), Some(oncely::reason::Reason::KeyConflict));
    assert_eq!(payments(&mut sql, "order-1182").await?, 1);

    let nothing = test.deliver("payments", &payment("order-1183", 0)).await?;
    assert_eq!(nothing.dead_lettered(), Some(oncely::reason::Reason::HandlerRejected));
    Ok(())
}
// ANCHOR_END: verdicts
