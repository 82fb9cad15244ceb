//! `oncely publish`: one message, for a first try or a test by hand.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::output;
use crate::amqp::{Copy, Publisher};
use crate::config::Config;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  oncely publish payments '{\"order\": \"1182\", \"amount\": 20}' \\\n    \
                        --message-id order-1182 --header x-tenant-id=acme"
)]
pub(super) struct Arguments {
    /// Routing key; for the default exchange the name of the queue
    routing_key: String,
    /// The body
    body: String,
    /// The exchange; by default the default exchange, which leads to the queue of the routing key's name
    #[arg(long, default_value = "")]
    exchange: String,
    #[arg(long)]
    message_id: Option<String>,
    #[arg(long, default_value = "application/json")]
    content_type: String,
    /// name=value; may be given several times
    #[arg(long = "header", value_parser = header)]
    headers: Vec<(String, String)>,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && name.len() <= 255 => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write name=value".to_owned()),
    }
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut headers = FieldTable::default();
    for (name, value) in arguments.headers {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type(arguments.content_type.into())
        .with_headers(headers);
    if let Some(id) = arguments.message_id {
        anyhow::ensure!(id.len() <= 255, "--message-id has {} bytes; AMQP allows 255", id.len());
        properties = properties.with_message_id(id.into());
    }
    let copy = Copy {
        exchange: arguments.exchange,
        routing_key: arguments.routing_key,
        properties,
        body: arguments.body.into_bytes().into(),
    };
    let publisher = Publisher::new(config.rabbitmq, "oncely publish".to_owned());
    let results = publisher.publish(&[copy]).await;
    results.into_iter().next().context("no answer")?.context("not published")?;
    output::note("published: confirmed by the broker, taken by a queue");
    Ok(ExitCode::SUCCESS)
}
