//! Properties of all messages, from the command line.

use clap::Args;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use oncely_amqp::to_short_string;

#[derive(Debug, Args)]
pub(crate) struct PropertyArguments {
    /// Content type of the body
    #[arg(long, default_value = "application/json", value_parser = parse_content_type)]
    content_type: ShortString,
    /// Header as name=value; can be repeated
    #[arg(long = "header", value_parser = parse_header)]
    headers: Vec<(ShortString, String)>,
}

fn parse_content_type(text: &str) -> Result<ShortString, String> {
    to_short_string("the content type", text)
}

fn parse_header(text: &str) -> Result<(ShortString, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((to_short_string("its name", name)?, value.to_owned())),
        _ => Err("write name=value".to_owned()),
    }
}

impl PropertyArguments {
    /// Converts the options to the properties of a message.
    pub(crate) fn into_properties(self) -> BasicProperties {
        let mut headers = FieldTable::default();
        for (name, value) in self.headers {
            headers.insert(name, AMQPValue::LongString(value.into()));
        }
        BasicProperties::default().with_content_type(self.content_type).with_headers(headers)
    }
}
