//! `oncely publish`: publishes one message, or a file of them, for a first try or a manual test.

mod envelope;
mod lines;
mod properties;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

pub(super) use self::envelope::MessageDefaults;
pub(super) use self::lines::{MessageFile, MessageLine};
pub(super) use self::properties::PropertyArguments;
use super::output;
use oncely_amqp::{Copy, Publisher, to_short_string};
use oncely_config::Config;

#[derive(Debug, Args)]
pub(super) struct PublishArguments {
    /// Routing key; for the default exchange the name of the queue
    routing_key: String,
    /// Body
    #[arg(required_unless_present = "lines")]
    body: Option<String>,
    /// File of JSON Lines instead ("-": standard input), one message each: {"tenant", "message_id", "correlation_id", "user_id", "app_id",
    /// "type", "routing_key", "headers", "payload"}, of which only the payload, the body, is required; one that is not JSON is "body"
    /// (text) or "body_base64" instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["body", "message_id"])]
    lines: Option<PathBuf>,
    /// Header with the tenant; for --lines
    #[arg(long, default_value = "x-tenant-id", value_name = "NAME")]
    tenant_header: String,
    /// Exchange; by default the default exchange, which routes to the queue with the routing key's name
    #[arg(long, default_value = "")]
    exchange: String,
    /// Message id, for deduplication
    #[arg(long)]
    message_id: Option<String>,
    #[command(flatten)]
    properties: PropertyArguments,
}

pub(super) async fn run(file: &Path, arguments: PublishArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut properties = arguments.properties.into_properties().with_delivery_mode(2);
    if let Some(id) = arguments.message_id {
        properties =
            properties.with_message_id(to_short_string("--message-id", &id).map_err(anyhow::Error::msg)?);
    }
    let publisher = Publisher::new(config.rabbitmq, "oncely publish".to_owned());
    let (exchange, routing_key) = (arguments.exchange, arguments.routing_key);
    if let Some(file) = arguments.lines {
        let defaults =
            MessageDefaults { exchange, routing_key, tenant_header: arguments.tenant_header, properties };
        let count = lines::publish_lines(&file, &defaults, &publisher).await?;
        output::print_note(&format!("published {count} messages: confirmed by the broker, taken by a queue"));
        return Ok(ExitCode::SUCCESS);
    }
    let body = arguments.body.unwrap_or_default().into_bytes().into();
    let copy = Copy { exchange, routing_key, properties, body };
    let results = publisher.publish(&[copy]).await;
    results.into_iter().next().context("no answer")?.context("not published")?;
    output::print_note("published: confirmed by the broker, taken by a queue");
    Ok(ExitCode::SUCCESS)
}
