//! Masks the archive for a bug report.

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use oncely_config::{Config, ReferenceTable, masked, reference, without_logins};
use oncely_core::extract::Source;

/// The replacement of masked values.
const HIDDEN: &str = "(masked)";

/// Settings with masked values in a table; the `key` of a consumer is not masked, since it names the source of the key.
const SECRET: [&str; 8] =
    ["url", "sentinels", "management", "signing_key", "known_keys", "key", "headers", "queue_arguments"];

/// Visible settings of tables that stand for a value. Of `fixed` tenants and keys, and of operators, only the presence is visible.
const TABLES: [(&str, &[&str]); 8] = [
    ("proxy", &["header", "from"]),
    ("retry", &["delays", "max_attempts", "max_crashes"]),
    ("lease", &["time", "max_run", "concurrency", "in_flight"]),
    ("handler", &["function", "batch", "json"]),
    ("tenant", SOURCE),
    ("key", SOURCE),
    ("fingerprint", &["json_pointers"]),
    ("bindings", &["exchange", "routing_key"]),
];
const SOURCE: &[&str] = &["header", "routing_key", "json_pointer", "property"];

/// Masks secrets and contents of messages; replaces names of machines and logins by hashes that are comparable within one archive only.
pub(super) struct Mask {
    /// Random and never written: equal names have equal hashes within the archive, and names can't be guessed by trying them.
    salt: [u8; 32],
    /// Texts that must not appear anywhere, and their replacements; the longest first.
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
        secrets.extend(&config.postgres.other_hosts);
        secrets.extend(&config.rabbitmq.other_nodes);
        secrets.extend(&config.rabbitmq.management);
        secrets.extend(
            config.mirror.iter().flat_map(|mirror| [&mirror.url].into_iter().chain(&mirror.sentinels)),
        );
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
        let endpoints = config.consumers.iter().filter_map(|consumer| consumer.http.as_ref());
        let keys = keys.chain(endpoints.flat_map(|endpoint| endpoint.headers.values()));
        replaced.extend(keys.map(|key| (key.expose_secret().to_owned(), HIDDEN.to_owned())));
        for consumer in &config.consumers {
            let sources = [&consumer.tenant, &consumer.key];
            if sources.contains(&&Source::Queue) {
                replaced.extend(consumer.queues.iter().map(|queue| (queue.clone(), mask.name(queue))));
            }
            if sources.iter().any(|source| matches!(source, Source::Queue | Source::RoutingKey(_))) {
                let bindings = consumer.bindings.iter();
                let names = bindings.flat_map(|binding| [&binding.exchange, &binding.routing_key]);
                replaced.extend(names.map(|name| (name.clone(), mask.name(name))));
            }
            for source in sources {
                if let Source::Fixed(value) = source {
                    replaced.push((value.clone(), HIDDEN.to_owned()));
                }
            }
        }
        replaced.into_iter().for_each(|(text, instead)| mask.replace(text, instead));
        mask.hide(&config.worker.name);
        mask
    }

    /// Masks free text that a user wrote.
    pub(super) fn silence(&mut self, text: &str) {
        self.replace(text.to_owned(), HIDDEN.to_owned());
    }

    /// Replaces a name by its hash wherever it appears, unless it is a generic one.
    pub(super) fn hide(&mut self, name: &str) {
        if !["worker", "relay"].contains(&name) {
            self.replace(name.to_owned(), self.name(name));
        }
    }

    fn replace(&mut self, text: String, instead: String) {
        // A text of one or two letters occurs in every word.
        if text.len() > 2 {
            // In the form in which a finding may quote it.
            let quoted = format!("{text:?}");
            let quoted = quoted.trim_matches('"');
            if quoted != text {
                self.replaced.push((quoted.to_owned(), instead.clone()));
            }
            self.replaced.push((text, instead));
            self.replaced.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
    }

    /// Returns the hash of a name, which distinguishes it from others without revealing it.
    pub(super) fn name(&self, name: &str) -> String {
        let hash = blake3::keyed_hash(&self.salt, name.as_bytes()).to_hex();
        format!("#{}", &hash[..8])
    }

    /// Returns the value with all replacements made.
    pub(super) fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.apply(value)).collect(),
            Value::Object(fields) => {
                // Names of fields are ours.
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
        without_logins(&text, HIDDEN)
    }
}

/// Returns the values of documented settings that are known not to be secret. An undocumented setting (misspelt, or in the wrong table)
/// keeps only its name.
pub(super) fn settings(value: Value) -> Value {
    let Value::Object(tables) = value else { return Value::from(HIDDEN) };
    let (_, parts) = reference();
    let told = |(name, value): (String, Value)| {
        let part = parts.iter().find(|part| part.name == name);
        let told = match (part, value) {
            (Some(part), Value::Object(fields)) if !part.is_list => table(part, fields),
            (Some(part), Value::Array(rows)) if part.is_list => rows
                .into_iter()
                .map(|row| {
                    if let Value::Object(fields) = row { consumer(part, fields) } else { Value::from(HIDDEN) }
                })
                .collect(),
            _ => Value::from(HIDDEN),
        };
        (name, told)
    };
    Value::Object(tables.into_iter().map(told).collect())
}

/// Masks the settings of a table.
fn table(part: &ReferenceTable, fields: Map<String, Value>) -> Value {
    let told = |(name, value): (String, Value)| {
        let is_known = part.settings.iter().any(|setting| setting.name == name);
        let is_secret = SECRET.contains(&name.as_str()) && !(part.is_list && name == "key")
            // A process's name; the heartbeats have its hash.
            || (part.name == "worker" && name == "name");
        let told = if is_known && !is_secret { mask_setting(&name, value) } else { Value::from(HIDDEN) };
        (name, told)
    };
    Value::Object(fields.into_iter().map(told).collect())
}

/// Masks the value of a documented setting.
fn mask_setting(name: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = TABLES.iter().find(|(table, _)| *table == name).map_or(&[][..], |(_, said)| said);
            let told = |(name, value): (String, Value)| {
                let told = if said.contains(&name.as_str()) { plain(value) } else { Value::from(HIDDEN) };
                (name, told)
            };
            Value::Object(fields.into_iter().map(told).collect())
        }
        // Bindings are a list of tables.
        Value::Array(values) => values.into_iter().map(|value| mask_setting(name, value)).collect(),
        value => value,
    }
}

/// Returns a value, or a list of values, with tables masked.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(_) => Value::from(HIDDEN),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        value => value,
    }
}

/// Masks a consumer: the sources of tenant and key are visible; their values are not, neither fixed ones, nor queues, exchanges and routing
/// keys that are named after them.
fn consumer(part: &ReferenceTable, mut fields: Map<String, Value>) -> Value {
    let is_from = |place: &str| {
        let names = |source: &Value| source == place || source.get(place).is_some();
        ["tenant", "key"].iter().any(|name| fields.get(*name).is_some_and(names))
    };
    let hidden: &[&str] = match (is_from("queue"), is_from("routing_key")) {
        (true, _) => &["queue", "queues", "bindings"],
        (false, true) => &["bindings"],
        (false, false) => &[],
    };
    for name in hidden {
        if let Some(value) = fields.get_mut(*name) {
            *value = Value::from(HIDDEN);
        }
    }
    table(part, fields)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use oncely_config::ReferenceSetting;

    #[test]
    fn settings_keep_their_names_and_lose_their_secrets() {
        let shown = settings(json!({
            "cell": { "name": "main", "signing_key": "S3CR3T-signing-key", "known_keys": ["S3CR3T"] },
            "postgres": { "url": "postgres://u:S3CR3T@h/d", "lock_timeout": "5s" },
            "rabbitmq": { "url": "amqp://u:S3CR3T@h", "management": "http://u:S3CR3T@h" },
            "redis": { "url": "redis://:S3CR3T@m", "sentinels": ["redis://:S3CR3T@s"] },
            "mirror": { "key": "S3CR3T" },
            "traces": { "headers": { "authorization": "Bearer S3CR3T" } },
            "console": { "proxy": { "from": ["10.1.2.0/24"], "operators": ["S3CR3T"] } },
            "secrets": ["S3CR3T"],
            "consumers": [
                {
                    "name": "payments", "tenant": { "fixed": "S3CR3T" }, "key": { "property": "message_id" }, "pasword": "S3CR3T",
                    "retry": { "delays": ["1s"], "token": "S3CR3T" }, "deadline": { "nested": "S3CR3T" },
                    "bindings": [{ "exchange": "orders", "arguments": { "x": "S3CR3T" } }],
                },
                { "name": "shops", "queue": "S3CR3T", "tenant": "queue" },
                {
                    "name": "stalls", "queues": ["S3CR3T"], "tenant": "queue",
                    "bindings": [{ "exchange": "S3CR3T", "routing_key": "S3CR3T" }],
                },
                {
                    "name": "stores", "queue": "stores", "tenant": { "routing_key": 2 },
                    "bindings": [{ "exchange": "S3CR3T", "routing_key": "order.S3CR3T" }],
                },
            ],
            "worker": { "name": "S3CR3T", "threads": 2 },
        }));
        assert!(!shown.to_string().contains("S3CR3T"), "{shown}");
        assert_eq!(shown["postgres"]["lock_timeout"], "5s");
        assert_eq!(shown["consumers"][0]["key"]["property"], "message_id");
        assert_eq!(shown["cell"]["name"], "main");
        assert_eq!(shown["cell"]["signing_key"], "(masked)");
        assert_eq!(shown["console"]["proxy"]["from"][0], "10.1.2.0/24");
        assert_eq!(shown["consumers"][0]["retry"]["delays"][0], "1s");
        assert_eq!(shown["consumers"][0]["bindings"][0]["exchange"], "orders");
        assert_eq!(shown["consumers"][3]["queue"], "stores");
        assert_eq!(shown["worker"]["threads"], 2);
    }

    /// Returns whether all of a setting's documented value is masked.
    fn is_masked(part: &ReferenceTable, setting: &ReferenceSetting) -> bool {
        fn leaves(value: &Value, found: &mut Vec<Value>) {
            match value {
                Value::Array(values) => values.iter().for_each(|value| leaves(value, found)),
                Value::Object(fields) => fields.values().for_each(|value| leaves(value, found)),
                leaf => found.push(leaf.clone()),
            }
        }
        let text = format!("{} = {}", setting.name, setting.value);
        let table: Value = toml::from_str(&text).expect(&text);
        let table = if part.is_list { json!([table]) } else { table };
        let mut found = Vec::new();
        leaves(&settings(json!({ &part.name: table })), &mut found);
        !found.is_empty() && found.iter().all(|leaf| leaf == HIDDEN)
    }

    #[test]
    fn the_book_lists_the_settings_that_are_masked() {
        let (_, parts) = reference();
        let all = parts.iter().flat_map(|part| part.settings.iter().map(move |setting| (part, setting)));
        let masked = all.filter(|(part, setting)| is_masked(part, setting));
        let masked: BTreeSet<String> =
            masked.map(|(part, setting)| format!("{}.{}", part.name, setting.name)).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/how-to/doctor.md");
        let book = std::fs::read_to_string(path).expect(path);
        let row = book.lines().find(|line| line.ends_with("| masked |")).expect("a row of masked settings");
        let listed: BTreeSet<String> = row.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert_eq!(listed, masked);
    }

    #[test]
    fn names_can_be_told_apart_in_one_archive_and_nowhere_else() {
        let (one, other) = (Mask::new(None), Mask::new(None));
        assert_eq!(one.name("db-7"), one.name("db-7"));
        assert_ne!(one.name("db-7"), one.name("db-8"));
        assert_ne!(one.name("db-7"), other.name("db-7"));
    }
}
