//! A web shop: a worker that places orders, tells the world and answers; and a client that asks it. See README.md beside it.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use oncely::{Config, Context, Event, Handler, HandlerError, Message, Worker, shutdown, telemetry};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Order {
    cents: i64,
}

struct Orders;

impl Handler for Orders {
    type Response = Value;

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<Value, HandlerError> {
        let Order { cents } = message.json()?;
        if cents <= 0 {
            return Err(HandlerError::permanent("an order must cost something"));
        }
        let (tenant, order) = (message.tenant(), message.key());
        sqlx::query("insert into shop.orders (tenant, id, cents) values ($1, $2, $3)")
            .bind(tenant)
            .bind(order)
            .bind(cents)
            .execute(context.connection())
            .await?;
        // ANCHOR: emit
        // Leaves when this transaction has committed, and never otherwise.
        let event = Event::new("shop", "order.placed")
            .json(&json!({ "order": order, "cents": cents }))
            .map_err(|error| HandlerError::permanent(error.to_string()))?
            .header("x-tenant-id", tenant)
            .ordering_key(order);
        context.emit(&event).await?;
        // ANCHOR_END: emit
        // The reply, for every copy of the request.
        Ok(json!({ "placed": order, "cents": cents }))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["request", order, cents] => request(order, cents.parse()?).await,
        _ => work().await,
    }
}

async fn work() -> anyhow::Result<()> {
    let file = std::env::var("ONCELY_CONFIG").unwrap_or_else(|_| "examples/rust_shop/oncely.toml".to_owned());
    let config = Config::load(file.as_ref())?;
    telemetry::init(&config.log);
    Worker::builder(config).handler("orders", Orders).build()?.run(shutdown::on_signal()?).await?;
    Ok(())
}

/// Asks for an order and prints the reply. Asked again, it gets the same one.
async fn request(order: &str, cents: i64) -> anyhow::Result<()> {
    let url = std::env::var("AMQP_URL").context("AMQP_URL is not set")?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let answers = channel.queue_declare("".into(), exclusive, FieldTable::default()).await?.name().clone();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut replies =
        channel.basic_consume(answers.clone(), "".into(), options, FieldTable::default()).await?;
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    let properties = BasicProperties::default()
        .with_message_id(order.into())
        .with_correlation_id(order.into())
        .with_reply_to(answers)
        .with_headers(headers)
        .with_delivery_mode(2);
    let body = json!({ "cents": cents }).to_string();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    channel
        .basic_publish("".into(), "shop.orders".into(), options, body.as_bytes(), properties)
        .await?
        .await?;
    let expected = ShortString::from(order);
    let reply = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(reply) = replies.next().await {
            let reply = reply?;
            if reply.properties.correlation_id().as_ref() == Some(&expected) {
                return Ok(reply.data);
            }
        }
        anyhow::bail!("the broker has closed the channel")
    });
    let reply = String::from_utf8(reply.await.context("no reply within 30 seconds")??)?;
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{reply}")?;
    Ok(())
}
