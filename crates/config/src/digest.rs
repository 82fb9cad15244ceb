//! The digest of a configuration.

use serde_json::{Map, Value};

/// Settings that are secret, hold a secret, or differ between processes.
const EXCLUDED_SETTINGS: [(&str, &[&str]); 9] = [
    ("cell", &["signing_key", "known_keys"]),
    ("postgres", &["url", "url_file"]),
    ("rabbitmq", &["url", "url_file", "management"]),
    ("redis", &["url", "url_file", "sentinels", "sentinels_file"]),
    ("mirror", &["key"]),
    ("encryption", &["keys"]),
    ("traces", &["headers"]),
    ("worker", &["name"]),
    ("console", &["key"]),
];

/// Computes the digest of the values, without those that are secret or differ between processes.
pub(crate) fn compute_digest(values: &Map<String, Value>) -> String {
    let mut values = Value::Object(values.clone());
    for (name, keys) in EXCLUDED_SETTINGS {
        if let Some(table) = values.get_mut(name).and_then(Value::as_object_mut) {
            table.retain(|key, _| !keys.contains(&key.as_str()));
            // A table that is empty now counts as absent; except [redis], which enables the mirror.
            if table.is_empty()
                && name != "redis"
                && let Some(root) = values.as_object_mut()
            {
                root.remove(name);
            }
        }
    }
    values.sort_all_objects();
    blake3::hash(values.to_string().as_bytes()).to_hex()[..12].to_owned()
}
