//! The baseline: the usual idempotent consumer on PostgreSQL, done properly. One transaction and one acknowledgement per
//! message, on a few connections with prepared statements.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use futures::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, Consumer};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::hot::{Hot, Sold};
use crate::payment::Payment;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    #[arg(long)]
    queue: String,
    /// Connections to PostgreSQL, each with one message at a time
    #[arg(long, default_value_t = 8)]
    connections: u32,
    #[arg(long, default_value_t = 100)]
    prefetch: u16,
    /// The key in a transaction of its own before the work, which does nothing, and in another one after it
    #[arg(long)]
    held: bool,
    /// The job on hot rows that each message asks for
    #[arg(long, value_enum)]
    hot: Option<Hot>,
}

/// Consumes until it is killed.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..arguments.connections {
        connections.push(PgConnection::connect(&arguments.database).await?);
    }
    let broker = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = broker.create_channel().await?;
    channel.basic_qos(arguments.prefetch, BasicQosOptions::default()).await?;
    let consumer = channel
        .basic_consume(
            arguments.queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let consumer = Arc::new(Mutex::new(consumer));
    let mut tasks = JoinSet::new();
    for connection in connections {
        tasks.spawn(consume(Arc::clone(&consumer), connection, arguments.held, arguments.hot));
    }
    match tasks.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

async fn consume(
    consumer: Arc<Mutex<Consumer>>,
    mut connection: PgConnection,
    held: bool,
    hot: Option<Hot>,
) -> anyhow::Result<()> {
    loop {
        let delivery = consumer.lock().await.next().await.context("the consumer was cancelled")??;
        match take(&mut connection, &delivery, held, hot).await {
            Ok(Taken::Done) => delivery.ack(BasicAckOptions::default()).await?,
            Ok(Taken::Later) => {
                delivery.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await?
            }
            Err(error) => return Err(error),
        };
    }
}

enum Taken {
    /// It has taken effect, now or before.
    Done,
    /// Somebody else is at it.
    Later,
}

async fn take(
    connection: &mut PgConnection,
    delivery: &Delivery,
    held: bool,
    hot: Option<Hot>,
) -> anyhow::Result<Taken> {
    let properties = &delivery.properties;
    let key = properties.message_id().as_ref().context("no message id")?.as_str();
    let headers = properties.headers().as_ref().context("no headers")?;
    let Some(AMQPValue::LongString(scope)) = headers.inner().get("x-tenant-id") else {
        anyhow::bail!("no tenant");
    };
    let scope = std::str::from_utf8(scope.as_bytes())?;
    let payment: Payment = serde_json::from_slice(&delivery.data)?;

    let mut transaction = connection.begin().await?;
    let known = sqlx::query(
        "select status, response_payload from idempotency_keys where scope = $1 and key = $2 for update",
    )
    .bind(scope)
    .bind(key)
    .fetch_optional(&mut *transaction)
    .await?;
    if let Some(row) = known {
        transaction.commit().await?;
        return Ok(match row.get::<&str, _>(0) {
            "COMPLETED" => Taken::Done,
            _ => Taken::Later,
        });
    }
    let claimed = sqlx::query(
        "insert into idempotency_keys (scope, key, status, lock_expires_at)
         values ($1, $2, 'IN_PROGRESS', now() + interval '1 minute')",
    )
    .bind(scope)
    .bind(key)
    .execute(&mut *transaction)
    .await;
    match claimed {
        Ok(_) => {}
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            transaction.rollback().await?;
            return Ok(Taken::Later);
        }
        Err(error) => return Err(error.into()),
    }
    let sold = match hot {
        Some(hot) => hot.sell(&mut transaction, &payment, key).await?,
        None => Sold::Done,
    };
    if sold == Sold::Deadlock {
        transaction.rollback().await?;
        return Ok(Taken::Later);
    }
    if held {
        transaction.commit().await?;
        // The work is here.
        transaction = connection.begin().await?;
    } else if sold == Sold::Done {
        sqlx::query(
            "insert into bench.payments (tenant, key, customer, amount, currency, sent_at) values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(scope)
        .bind(key)
        .bind(payment.customer)
        .bind(payment.amount)
        .bind(&payment.currency)
        .bind(payment.sent_at)
        .execute(&mut *transaction)
        .await?;
    }
    sqlx::query(
        "update idempotency_keys set status = 'COMPLETED', updated_at = now(), lock_expires_at = null
         where scope = $1 and key = $2",
    )
    .bind(scope)
    .bind(key)
    .execute(&mut *transaction)
    .await?;
    sqlx::query("insert into audit (scope, key, consumer, outcome) values ($1, $2, 'payments', 'completed')")
        .bind(scope)
        .bind(key)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("insert into outbox (scope, event) values ($1, $2)")
        .bind(scope)
        .bind(json!({ "event": "completed", "consumer": "payments", "key": key }))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Taken::Done)
}
