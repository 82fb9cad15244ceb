//! What an archive for strangers must not say.

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use crate::config::{Config, masked};
use crate::extract::Source;

/// In place of what is not said.
const HIDDEN: &str = "(masked)";

/// Settings whose value is not said, wherever they stand.
const SECRET: [&str; 6] = ["url", "management", "signing_key", "known_keys", "key", "headers"];

/// Hides what is secret or of a message: names of machines and logins are replaced by hashes that mean something within one archive only.
pub(super) struct Mask {
    /// Random, and told nobody: equal names have equal hashes here, and nobody can try names out.
    salt: [u8; 32],
    /// Texts that must not appear anywhere, and what stands there instead; the longest first.
    replaced: Vec<(String, String)>,
}

impl Mask {
    pub(super) fn new(config: Option<&Config>) -> Self {
        let mut salt = [0; 32];
        let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        salt[..16].copy_from_slice(first.as_bytes());
        salt[16..].copy_from_slice(second.as_bytes());
        let mut mask = Self { salt, replaced: Vec::new() };
        let Some(config) = config else { return mask };
        let mut secrets = vec![&config.postgres.url, &config.rabbitmq.url];
        secrets.extend(&config.rabbitmq.management);
        secrets.extend(config.mirror.iter().map(|mirror| &mirror.url));
        let mut replaced = Vec::new();
        for url in secrets {
            replaced.push((url.expose_secret().to_owned(), HIDDEN.to_owned()));
            replaced.push((masked(url), HIDDEN.to_owned()));
            if let Ok(url) = url::Url::parse(url.expose_secret()) {
                replaced.extend(url.password().map(|password| (password.to_owned(), HIDDEN.to_owned())));
            }
        }
        let keys = config.signing_key.iter().chain(&config.known_keys);
        let keys = keys.chain(config.mirror.iter().filter_map(|mirror| mirror.key.as_ref()));
        let keys = keys.chain(config.traces.iter().flat_map(|traces| traces.headers.values()));
        replaced.extend(keys.map(|key| (key.expose_secret().to_owned(), HIDDEN.to_owned())));
        for consumer in &config.consumers {
            if consumer.tenant == Source::Queue || consumer.key == Source::Queue {
                replaced.extend(consumer.queues.iter().map(|queue| (queue.clone(), mask.name(queue))));
            }
            for source in [&consumer.tenant, &consumer.key] {
                if let Source::Fixed(value) = source {
                    replaced.push((value.clone(), HIDDEN.to_owned()));
                }
            }
        }
        replaced.into_iter().for_each(|(text, instead)| mask.replace(text, instead));
        mask
    }

    /// Hides a name wherever it stands; not one that says nothing.
    pub(super) fn hide(&mut self, name: &str) {
        if !["worker", "relay"].contains(&name) {
            self.replace(name.to_owned(), self.name(name));
        }
    }

    fn replace(&mut self, text: String, instead: String) {
        // A text of one or two letters is in every word.
        if text.len() > 2 {
            self.replaced.push((text, instead));
            self.replaced.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
    }

    /// A name, so that it can be told from others and not be read.
    pub(super) fn name(&self, name: &str) -> String {
        let hash = blake3::keyed_hash(&self.salt, name.as_bytes()).to_hex();
        format!("#{}", &hash[..8])
    }

    /// The same value without what must not appear in it.
    pub(super) fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.apply(value)).collect(),
            Value::Object(fields) => {
                // The names are ours.
                fields.into_iter().map(|(name, value)| (name, self.apply(value))).collect()
            }
            other => other,
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (secret, instead) in &self.replaced {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), instead);
            }
        }
        text
    }
}

/// A configuration's values without its secrets, and without fixed tenants and keys.
pub(super) fn settings(value: Value) -> Value {
    let Value::Object(tables) = value else { return value };
    let mask = |(name, value): (String, Value)| {
        let value = match value {
            Value::Object(fields) => Value::Object(fields.into_iter().map(setting).collect::<Map<_, _>>()),
            Value::Array(consumers) => consumers.into_iter().map(consumer).collect(),
            other => other,
        };
        (name, value)
    };
    Value::Object(tables.into_iter().map(mask).collect())
}

fn setting((name, value): (String, Value)) -> (String, Value) {
    let value = if SECRET.contains(&name.as_str()) { Value::from(HIDDEN) } else { value };
    (name, value)
}

/// Where tenant and key are is told; what they always are is not.
fn consumer(value: Value) -> Value {
    let Value::Object(mut fields) = value else { return value };
    for source in ["tenant", "key"] {
        if let Some(Value::Object(source)) = fields.get_mut(source)
            && let Some(fixed) = source.get_mut("fixed")
        {
            *fixed = Value::from(HIDDEN);
        }
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_keep_their_names_and_lose_their_secrets() {
        let shown = settings(json!({
            "cell": { "name": "main", "signing_key": "S3CR3T-signing-key", "known_keys": ["S3CR3T"] },
            "postgres": { "url": "postgres://u:S3CR3T@h/d", "lock_timeout": "5s" },
            "rabbitmq": { "url": "amqp://u:S3CR3T@h", "management": "http://u:S3CR3T@h" },
            "mirror": { "key": "S3CR3T" },
            "traces": { "headers": { "authorization": "Bearer S3CR3T" } },
            "consumers": [{ "name": "payments", "tenant": { "fixed": "S3CR3T" }, "key": { "property": "message_id" } }],
        }));
        assert!(!shown.to_string().contains("S3CR3T"), "{shown}");
        assert_eq!(shown["postgres"]["lock_timeout"], "5s");
        assert_eq!(shown["consumers"][0]["key"]["property"], "message_id");
        assert_eq!(shown["cell"]["name"], "main");
    }

    #[test]
    fn names_can_be_told_apart_in_one_archive_and_nowhere_else() {
        let (one, other) = (Mask::new(None), Mask::new(None));
        assert_eq!(one.name("db-7"), one.name("db-7"));
        assert_ne!(one.name("db-7"), one.name("db-8"));
        assert_ne!(one.name("db-7"), other.name("db-7"));
    }
}
