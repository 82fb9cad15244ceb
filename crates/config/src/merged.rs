//! The values of the file and of the environment, merged, with their sources.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::schema;

/// Variables with widely known names, and the settings that they set.
const VARIABLES: [(&str, &str); 6] = [
    ("DATABASE_URL", "postgres.url"),
    ("DATABASE_URL_FILE", "postgres.url_file"),
    ("AMQP_URL", "rabbitmq.url"),
    ("AMQP_URL_FILE", "rabbitmq.url_file"),
    ("REDIS_URL", "redis.url"),
    ("REDIS_URL_FILE", "redis.url_file"),
];
const VARIABLE_PREFIX: &str = "ONCELY_";

/// The merged values, secrets among them: it has no `Debug`. The environment takes precedence.
#[derive(Default)]
pub(crate) struct MergedValues {
    pub(crate) values: Map<String, Value>,
    /// Variables that set a value, by its key.
    variables: BTreeMap<String, String>,
}

impl MergedValues {
    /// Merges a file's text and, if `has_environment`, the environment.
    ///
    /// # Errors
    /// If the text is not TOML: the place and the kind of the error, without the line, as it may hold a password.
    pub(crate) fn read(text: &str, has_environment: bool) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let preceding = text.get(..start).unwrap_or(text);
            let line = preceding.matches('\n').count() + 1;
            let column = preceding.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            format!("is not TOML: line {line}, column {column}: {}", error.message())
        })?;
        let mut merged = Self { values: to_json_table(table), variables: BTreeMap::new() };
        if has_environment {
            for (name, key) in VARIABLES {
                if let Ok(value) = std::env::var(name) {
                    merged.set(key, name, Value::from(value));
                }
            }
            for (name, value) in std::env::vars_os() {
                let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
                // ONCELY_CONFIG names the file itself.
                match name.strip_prefix(VARIABLE_PREFIX) {
                    None | Some("" | "CONFIG") => {}
                    Some(key) => {
                        let key = key.to_ascii_lowercase().replace("__", ".");
                        let value = parse_variable(&key, &value);
                        merged.set(&key, &name, value);
                    }
                }
            }
        }
        Ok(merged)
    }

    /// Sets a value, and creates the tables around it. `source`: name of the variable or option that sets it.
    pub(crate) fn set(&mut self, key: &str, source: &str, value: Value) {
        let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
        let mut table = &mut self.values;
        for step in tables.split('.').filter(|step| !step.is_empty()) {
            let inner = table.entry(step).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            let Value::Object(inner) = inner else { return };
            table = inner;
        }
        table.insert(name.to_owned(), value);
        self.variables.insert(key.to_owned(), source.to_owned());
    }

    /// Returns the variable that set a value or a part of it; `None` if the file or a default sets it.
    pub(crate) fn variable(&self, key: &str) -> Option<&str> {
        let is_part = |set: &str| {
            set == key || set.strip_prefix(key).is_some_and(|remainder| remainder.starts_with('.'))
        };
        self.variables.iter().find(|(set, _)| is_part(set)).map(|(_, name)| name.as_str())
    }
}

/// Parses a variable's value: unchanged where the setting is a text, else as TOML.
fn parse_variable(key: &str, text: &str) -> Value {
    let is_text = schema::node_at(key).is_some_and(schema::is_text);
    let parsed = || format!("value = {text}").parse::<toml::Table>().ok()?.remove("value");
    match (!is_text).then(parsed).flatten() {
        None | Some(toml::Value::Datetime(_)) => Value::from(text),
        Some(value) => to_json(value),
    }
}

fn to_json_table(table: toml::Table) -> Map<String, Value> {
    table.into_iter().map(|(key, value)| (key, to_json(value))).collect()
}

/// Converts a value of TOML to JSON; times become texts.
fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => Value::from(number),
        toml::Value::Boolean(truth) => Value::from(truth),
        toml::Value::Datetime(time) => Value::from(time.to_string()),
        toml::Value::Array(values) => values.into_iter().map(to_json).collect(),
        toml::Value::Table(table) => Value::Object(to_json_table(table)),
    }
}

/// Formats a value as TOML.
pub(crate) fn format_toml(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            format!("[{}]", values.iter().map(format_toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(values) if values.is_empty() => "{}".to_owned(),
        Value::Object(values) => {
            let fields: Vec<String> = values
                .iter()
                .map(|(name, value)| format!("{} = {}", format_key(name), format_toml(value)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Null => "\"\"".to_owned(),
        // TOML's basic strings escape like JSON's.
        value => value.to_string(),
    }
}

/// Formats the name of a key as TOML, in quotes if it needs them.
fn format_key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_bare { name.to_owned() } else { Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_variable_is_read_as_its_setting_is() {
        assert_eq!(parse_variable("relay.batch", "50"), json!(50));
        assert_eq!(parse_variable("worker.name", "7"), json!("7"));
        assert_eq!(parse_variable("rabbitmq.tls.ca", "/etc/ca.pem"), json!("/etc/ca.pem"));
        assert_eq!(parse_variable("gateway.methods", "[\"POST\"]"), json!(["POST"]));
        assert_eq!(parse_variable("nothing.known", "1h"), json!("1h"));
        assert_eq!(parse_variable("nothing.known", "2026-11-27"), json!("2026-11-27"));
    }

    #[test]
    fn a_value_has_the_last_source_that_set_it_or_a_part_of_it() {
        let mut merged = MergedValues::read("[relay]\nbatch = 1\n[rabbitmq]\ntls = \"x\"", false).unwrap();
        merged.set("relay.batch", "ONCELY_RELAY__BATCH", json!(2));
        merged.set("rabbitmq.tls.ca", "ONCELY_RABBITMQ__TLS__CA", json!("a"));
        assert_eq!(
            Value::Object(merged.values.clone()),
            json!({ "relay": { "batch": 2 }, "rabbitmq": { "tls": { "ca": "a" } } })
        );
        assert_eq!(merged.variable("rabbitmq.tls"), Some("ONCELY_RABBITMQ__TLS__CA"));
        assert_eq!(merged.variable("relay"), Some("ONCELY_RELAY__BATCH"));
        assert_eq!(merged.variable("worker"), None);
    }

    #[test]
    fn values_are_written_as_toml() {
        let value = json!({ "a": ["x\n", 1, true], "b c": {}, "d": 1.5 });
        let text = format_toml(&value);
        assert_eq!(text, "{ a = [\"x\\n\", 1, true], \"b c\" = {}, d = 1.5 }");
        assert_eq!(
            to_json_table(format!("v = {text}").parse().unwrap()),
            Map::from_iter([("v".to_owned(), value)])
        );
    }
}
