//! Masks the archive for a bug report.

use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

use oncely_config::{Config, ReferenceTable, mask_logins, mask_url, reference};
use oncely_core::extract::Source;

/// The replacement of masked values.
const MASKED: &str = "(masked)";

/// Settings with masked values; the `key` of a consumer is visible, since it names the source of the key.
const SECRET_SETTINGS: [&str; 8] =
    ["url", "sentinels", "management", "signing_key", "known_keys", "key", "headers", "queue_arguments"];

/// Settings that are visible in tables that stand for a value. Of `fixed` tenants and keys, and of operators, only the presence is visible.
const VISIBLE_SETTINGS: [(&str, &[&str]); 8] = [
    ("proxy", &["header", "from"]),
    ("retry", &["delays", "max_attempts", "max_crashes"]),
    ("lease", &["time", "max_run", "concurrency", "in_flight"]),
    ("handler", &["function", "batch", "json"]),
    ("tenant", SOURCE_SETTINGS),
    ("key", SOURCE_SETTINGS),
    ("fingerprint", &["json_pointers"]),
    ("bindings", &["exchange", "routing_key"]),
];
const SOURCE_SETTINGS: &[&str] = &["header", "routing_key", "json_pointer", "property"];

/// Masks secrets and contents of messages; replaces names of machines and logins by hashes that are comparable within one archive only.
pub(super) struct Mask {
    /// Random and never written: equal names have equal hashes within the archive, and names can't be guessed by trying them.
    salt: [u8; 32],
    /// Texts that must not appear anywhere, and their replacements; the longest first.
    replacements: Vec<(String, String)>,
}

impl Mask {
    /// Creates a mask of the secrets, the fixed tenants and keys, and the names in a configuration.
    pub(super) fn new(config: Option<&Config>) -> Self {
        let mut salt = [0; 32];
        let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        salt[..16].copy_from_slice(first.as_bytes());
        salt[16..].copy_from_slice(second.as_bytes());
        let mut mask = Self { salt, replacements: Vec::new() };
        let Some(config) = config else { return mask };
        let mut secrets = vec![&config.postgres.url, &config.rabbitmq.url];
        secrets.extend(&config.postgres.other_hosts);
        secrets.extend(&config.rabbitmq.other_nodes);
        secrets.extend(&config.rabbitmq.management);
        secrets.extend(config.mirror.iter().flat_map(|mirror| mirror.node_urls().chain(&mirror.sentinels)));
        let mut replacements = Vec::new();
        for url in secrets {
            replacements.push((url.expose_secret().to_owned(), MASKED.to_owned()));
            replacements.push((mask_url(url), MASKED.to_owned()));
            if let Ok(url) = url::Url::parse(url.expose_secret()) {
                replacements.extend(url.password().map(|password| (password.to_owned(), MASKED.to_owned())));
            }
        }
        let keys = config.signing_key.iter().chain(&config.known_keys);
        let keys = keys.chain(config.mirror.iter().filter_map(|mirror| mirror.key.as_ref()));
        let keys = keys.chain(config.traces.iter().flat_map(|traces| traces.headers.values()));
        let endpoints = config.consumers.iter().filter_map(|consumer| consumer.http.as_ref());
        let keys = keys.chain(endpoints.flat_map(|endpoint| endpoint.headers.values()));
        replacements.extend(keys.map(|key| (key.expose_secret().to_owned(), MASKED.to_owned())));
        for consumer in &config.consumers {
            let sources = [&consumer.tenant, &consumer.key];
            if sources.contains(&&Source::Queue) {
                replacements
                    .extend(consumer.queues.iter().map(|queue| (queue.clone(), mask.hash_name(queue))));
            }
            if sources.iter().any(|source| matches!(source, Source::Queue | Source::RoutingKey(_))) {
                let bindings = consumer.bindings.iter();
                let names = bindings.flat_map(|binding| [&binding.exchange, &binding.routing_key]);
                replacements.extend(names.map(|name| (name.clone(), mask.hash_name(name))));
            }
            for source in sources {
                if let Source::Fixed(value) = source {
                    replacements.push((value.clone(), MASKED.to_owned()));
                }
            }
        }
        replacements.into_iter().for_each(|(text, replacement)| mask.add_replacement(text, replacement));
        mask.add_name(&config.worker.name);
        mask
    }

    /// Adds a free text of a user, to be masked wherever it appears.
    pub(super) fn add_text(&mut self, text: &str) {
        self.add_replacement(text.to_owned(), MASKED.to_owned());
    }

    /// Adds a name, to be replaced by its hash wherever it appears, unless it is a generic one.
    pub(super) fn add_name(&mut self, name: &str) {
        if !["worker", "relay"].contains(&name) {
            self.add_replacement(name.to_owned(), self.hash_name(name));
        }
    }

    /// Adds a text and its replacement; texts of one or two bytes are ignored.
    fn add_replacement(&mut self, text: String, replacement: String) {
        // A text of one or two letters occurs in every word.
        if text.len() > 2 {
            // In the form in which a finding may quote it.
            let quoted = format!("{text:?}");
            let quoted = quoted.trim_matches('"');
            if quoted != text {
                self.replacements.push((quoted.to_owned(), replacement.clone()));
            }
            self.replacements.push((text, replacement));
            self.replacements.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
    }

    /// Returns the hash of a name, which distinguishes it from others without revealing it.
    pub(super) fn hash_name(&self, name: &str) -> String {
        let hash = blake3::keyed_hash(&self.salt, name.as_bytes()).to_hex();
        format!("#{}", &hash[..8])
    }

    /// Makes all replacements in the texts of a value.
    pub(super) fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mask_text(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.apply(value)).collect(),
            Value::Object(fields) => {
                // Names of fields are Oncely's.
                fields.into_iter().map(|(name, value)| (name, self.apply(value))).collect()
            }
            other => other,
        }
    }

    /// Makes all replacements in a text, and masks logins in it.
    fn mask_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (secret, replacement) in &self.replacements {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), replacement);
            }
        }
        mask_logins(&text, MASKED)
    }
}

/// Masks the settings of a configuration, except documented ones that are known not to be secret. An undocumented setting (misspelt, or in
/// the wrong table) keeps only its name.
pub(super) fn mask_settings(value: Value) -> Value {
    let Value::Object(tables) = value else { return Value::from(MASKED) };
    let (_, parts) = reference();
    let mask_entry = |(name, value): (String, Value)| {
        let part = parts.iter().find(|part| part.name == name);
        let masked = match (part, value) {
            (Some(part), Value::Object(fields)) if !part.is_list => mask_table(part, fields),
            (Some(part), Value::Array(rows)) if part.is_list => rows
                .into_iter()
                .map(|row| {
                    if let Value::Object(fields) = row {
                        mask_consumer(part, fields)
                    } else {
                        Value::from(MASKED)
                    }
                })
                .collect(),
            _ => Value::from(MASKED),
        };
        (name, masked)
    };
    Value::Object(tables.into_iter().map(mask_entry).collect())
}

/// Masks the settings of a table.
fn mask_table(part: &ReferenceTable, fields: Map<String, Value>) -> Value {
    let mask_entry = |(name, value): (String, Value)| {
        let is_known = part.settings.iter().any(|setting| setting.name == name);
        let is_secret = SECRET_SETTINGS.contains(&name.as_str()) && !(part.is_list && name == "key")
            // A process's name; the heartbeats have its hash.
            || (part.name == "worker" && name == "name");
        let masked = if is_known && !is_secret { mask_setting(&name, value) } else { Value::from(MASKED) };
        (name, masked)
    };
    Value::Object(fields.into_iter().map(mask_entry).collect())
}

/// Masks the value of a documented setting.
fn mask_setting(name: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let visible = VISIBLE_SETTINGS
                .iter()
                .find(|(table, _)| *table == name)
                .map_or(&[][..], |(_, visible)| visible);
            let mask_entry = |(name, value): (String, Value)| {
                let masked = if visible.contains(&name.as_str()) {
                    mask_nested_tables(value)
                } else {
                    Value::from(MASKED)
                };
                (name, masked)
            };
            Value::Object(fields.into_iter().map(mask_entry).collect())
        }
        // Bindings are a list of tables.
        Value::Array(values) => values.into_iter().map(|value| mask_setting(name, value)).collect(),
        value => value,
    }
}

/// Masks the tables in a value, or in a list of values.
fn mask_nested_tables(value: Value) -> Value {
    match value {
        Value::Object(_) => Value::from(MASKED),
        Value::Array(values) => values.into_iter().map(mask_nested_tables).collect(),
        value => value,
    }
}

/// Masks a consumer: the sources of tenant and key are visible; their values are not, neither fixed ones, nor queues, exchanges and routing
/// keys that are named after them.
fn mask_consumer(part: &ReferenceTable, mut fields: Map<String, Value>) -> Value {
    let is_from_source = |source_name: &str| {
        let names = |source: &Value| source == source_name || source.get(source_name).is_some();
        ["tenant", "key"].iter().any(|name| fields.get(*name).is_some_and(names))
    };
    let hidden: &[&str] = match (is_from_source("queue"), is_from_source("routing_key")) {
        (true, _) => &["queue", "queues", "bindings"],
        (false, true) => &["bindings"],
        (false, false) => &[],
    };
    for name in hidden {
        if let Some(value) = fields.get_mut(*name) {
            *value = Value::from(MASKED);
        }
    }
    mask_table(part, fields)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use oncely_config::ReferenceSetting;

    #[test]
    fn settings_keep_their_names_and_lose_their_secrets() {
        let shown = mask_settings(json!({
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
        leaves(&mask_settings(json!({ &part.name: table })), &mut found);
        !found.is_empty() && found.iter().all(|leaf| leaf == MASKED)
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
        assert_eq!(one.hash_name("db-7"), one.hash_name("db-7"));
        assert_ne!(one.hash_name("db-7"), one.hash_name("db-8"));
        assert_ne!(one.hash_name("db-7"), other.hash_name("db-7"));
    }
}
