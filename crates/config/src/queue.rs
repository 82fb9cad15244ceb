//! Declaration of a consumer's queue, with its further arguments and bindings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;

/// A further argument of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-advice" = "must be a text, a whole number, true or false"))]
pub enum QueueArgument {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// True or false.
    Boolean(bool),
}

/// A binding of the queue to an existing exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueBinding {
    /// Name of the exchange, which must exist.
    pub exchange: String,
    /// The routing key, or the pattern.
    pub routing_key: String,
}

/// Arguments that Oncely sets itself, or that delete an unused queue with its messages.
const FORBIDDEN_ARGUMENTS: [&str; 7] = [
    "x-queue-type",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-overflow",
    "x-delivery-limit",
    "x-expires",
];

/// Checks the further arguments of a queue, and returns the allowed ones. `place`: name of the consumer's table.
pub(super) fn check_arguments(
    arguments: BTreeMap<String, QueueArgument>,
    declare: bool,
    place: &str,
    problems: &mut Problems,
) -> Vec<(String, QueueArgument)> {
    let place = format!("{place}.queue_arguments");
    if !declare && !arguments.is_empty() {
        problems.add(&place, "has no effect with declare = false: Oncely does not declare the queue");
    }
    let is_allowed = |(name, _): &(String, QueueArgument)| {
        let is_allowed = !FORBIDDEN_ARGUMENTS.contains(&name.as_str());
        if !is_allowed {
            let message =
                "is not allowed: Oncely sets it (queue_type, dead letters), or it loses messages (x-expires)";
            problems.add(format!("{place}.{name}"), message);
        }
        is_allowed
    };
    arguments.into_iter().filter(is_allowed).collect()
}

/// Checks that each binding names an exchange, and returns all of them.
pub(super) fn check_bindings(
    bindings: Vec<QueueBinding>,
    place: &str,
    problems: &mut Problems,
) -> Vec<QueueBinding> {
    for (index, QueueBinding { exchange, routing_key }) in bindings.iter().enumerate() {
        if exchange.is_empty() || exchange.len() > 255 || routing_key.len() > 255 {
            let message = "must name an exchange: every queue is bound to the default one; names and keys have up to 255 bytes";
            problems.add(format!("{place}.bindings[{index}].exchange"), message);
        }
    }
    bindings
}
