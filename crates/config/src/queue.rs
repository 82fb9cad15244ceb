//! Declaration of a consumer's queue, with its further arguments and bindings.

use figment::value::Value;

use super::{Problems, Section};

/// A further argument of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueArgument {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// True or false.
    Boolean(bool),
}

/// A binding of the queue to an existing exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBinding {
    /// Name of the exchange, which must exist.
    pub exchange: String,
    /// The routing key, or the pattern.
    pub routing_key: String,
}

/// Settings of a queue besides its name.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueSettings {
    pub(super) declare: bool,
    pub(super) arguments: Vec<(String, QueueArgument)>,
    pub(super) bindings: Vec<QueueBinding>,
}

/// Arguments that Oncely sets itself, or that delete an unused queue with its messages.
const NOT_ALLOWED: [&str; 7] = [
    "x-queue-type",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-overflow",
    "x-delivery-limit",
    "x-expires",
];

pub(super) fn queue(section: &mut Section, problems: &mut Problems) -> QueueSettings {
    let declare = section.boolean("declare", true, problems);
    let place = section.place("queue_arguments");
    let arguments = match section.take("queue_arguments") {
        None => Vec::new(),
        Some(Value::Dict(_, values)) => {
            values.into_iter().filter_map(|(name, value)| argument(&place, name, &value, problems)).collect()
        }
        Some(_) => {
            problems.add(&place, "must be a table like { x-max-priority = 10 }");
            Vec::new()
        }
    };
    if !declare && !arguments.is_empty() {
        problems.add(&place, "says nothing where declare = false: somebody else declares the queue");
    }
    let bindings = section.tables("bindings", problems).into_iter();
    let bindings = bindings.filter_map(|table| binding(table, problems)).collect();
    QueueSettings { declare, arguments, bindings }
}

fn argument(
    place: &str,
    name: String,
    value: &Value,
    problems: &mut Problems,
) -> Option<(String, QueueArgument)> {
    if NOT_ALLOWED.contains(&name.as_str()) {
        let what = "is not allowed: it is Oncely's to say (queue_type, dead letters), or would lose messages (x-expires)";
        problems.add(format!("{place}.{name}"), what);
        return None;
    }
    let number = value.to_i128().or_else(|| value.to_u128().and_then(|n| i128::try_from(n).ok()));
    let argument = match (value.to_bool(), number.and_then(|n| i64::try_from(n).ok()), value.as_str()) {
        (Some(truth), ..) => QueueArgument::Boolean(truth),
        (_, Some(number), _) => QueueArgument::Integer(number),
        (.., Some(text)) => QueueArgument::Text(text.to_owned()),
        _ => {
            problems.add(format!("{place}.{name}"), "must be a text, a whole number, true or false");
            return None;
        }
    };
    Some((name, argument))
}

fn binding(mut table: Section, problems: &mut Problems) -> Option<QueueBinding> {
    let place = table.place("exchange");
    let exchange = table.text("exchange", problems);
    let routing_key = table.text("routing_key", problems).unwrap_or_default();
    table.finish(problems);
    match exchange {
        Some(exchange) if !exchange.is_empty() && exchange.len() <= 255 && routing_key.len() <= 255 => {
            Some(QueueBinding { exchange, routing_key })
        }
        _ => {
            let what = "must name an exchange: every queue is bound to the default one; names and keys have up to 255 bytes";
            problems.add(place, what);
            None
        }
    }
}
