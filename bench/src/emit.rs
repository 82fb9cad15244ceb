//! Adds events at a fixed rate, each in a transaction of its own, and receives them from a queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures::StreamExt as _;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    #[arg(long, env = "AMQP_URL")]
    amqp: String,
    #[arg(long)]
    exchange: String,
    #[arg(long)]
    routing_key: String,
    #[arg(long)]
    queue: String,
    #[arg(long)]
    events: u64,
    /// Events a second
    #[arg(long)]
    rate: u64,
    /// Events at the beginning that don't count
    #[arg(long)]
    warm_up: u64,
    /// Connections to PostgreSQL
    #[arg(long, default_value_t = 16)]
    connections: u32,
}

/// No event may take longer.
const LONGEST: Duration = Duration::from_secs(60);

/// Prints the median and the 99th percentile, in milliseconds, of the times from the call of COMMIT to the event's arrival at a consumer.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let options = sqlx::postgres::PgPoolOptions::new();
    let connections = options.min_connections(arguments.connections).max_connections(arguments.connections);
    let pool = connections.connect(&arguments.database).await?;
    let broker = Connection::connect(&arguments.amqp, ConnectionProperties::default()).await?;
    let channel = broker.create_channel().await?;
    let consumer = channel.basic_consume(
        arguments.queue.as_str().into(),
        "".into(),
        BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() },
        FieldTable::default(),
    );
    let mut consumer = consumer.await?;
    let committed: Arc<Mutex<HashMap<u64, Instant>>> = Arc::default();
    let (times, events) = (Arc::clone(&committed), arguments.events);
    let receiving = tokio::spawn(async move {
        let mut millis = Vec::new();
        for _ in 0..events {
            let delivery = timeout(LONGEST, consumer.next()).await.context("an event is missing")?;
            let arrived = Instant::now();
            let number: u64 =
                std::str::from_utf8(&delivery.context("the consumer has ended")??.data)?.parse()?;
            let began = times.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            millis.push((number, arrived.duration_since(began.context("an event came twice")?)));
        }
        anyhow::Ok(millis)
    });
    let mut emitting = JoinSet::new();
    let start = Instant::now();
    for number in 0..arguments.events {
        sleep_until(start + Duration::from_nanos(number * 1_000_000_000 / arguments.rate)).await;
        let (exchange, routing_key) = (arguments.exchange.clone(), arguments.routing_key.clone());
        emitting.spawn(emit(pool.clone(), Arc::clone(&committed), exchange, routing_key, number));
        while let Some(emitted) = emitting.try_join_next() {
            emitted??;
        }
    }
    while let Some(emitted) = emitting.join_next().await {
        emitted??;
    }
    let mut times: Vec<Duration> = receiving
        .await??
        .into_iter()
        .filter(|(number, _)| *number >= arguments.warm_up)
        .map(|(_, time)| time)
        .collect();
    times.sort_unstable();
    let millis = |share: f64| {
        let rank = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
        times.get(rank).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    crate::tell(&serde_json::json!({ "p50_ms": millis(0.5), "p99_ms": millis(0.99) }))
}

async fn emit(
    pool: PgPool,
    committed: Arc<Mutex<HashMap<u64, Instant>>>,
    exchange: String,
    routing_key: String,
    number: u64,
) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    sqlx::query("select oncely.emit($1, $2, $3::text, tenant => 'shop')")
        .bind(exchange)
        .bind(routing_key)
        .bind(number.to_string())
        .execute(&mut *transaction)
        .await?;
    committed.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Instant::now());
    transaction.commit().await?;
    Ok(())
}
