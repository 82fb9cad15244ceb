//! What makes two payloads the same.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// SHA-256 of what the consumer compares. By default the exact body, so that SQL can recompute it: `sha256(body)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// What a consumer compares when a key comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FingerprintPolicy {
    /// The exact bytes of the body.
    #[default]
    Body,
    /// The body as JSON without regard to white space and the order of fields, for producers that re-serialise on retry.
    /// A body that is not JSON is compared byte for byte.
    CanonicalJson,
    /// The values at these RFC 6901 pointers only, for producers that re-stamp on retry. A body that is not JSON is
    /// compared byte for byte.
    JsonPointers(Vec<String>),
    /// Nothing: the key alone decides.
    None,
}

impl FingerprintPolicy {
    /// The fingerprint of a body, or `None` where nothing is compared.
    #[must_use]
    pub fn of(&self, body: &[u8]) -> Option<Fingerprint> {
        let mut hash = Sha256::new();
        match self {
            Self::None => return None,
            Self::Body => hash.update(body),
            Self::CanonicalJson => match serde_json::from_slice::<Value>(body) {
                Ok(json) => hash.update(canonical(&json)),
                Err(_) => hash.update(body),
            },
            Self::JsonPointers(pointers) => match serde_json::from_slice::<Value>(body) {
                Ok(json) => {
                    for pointer in pointers {
                        // An absent value differs from null; the lengths keep neighbours apart.
                        match json.pointer(pointer) {
                            Some(value) => {
                                let text = canonical(value);
                                hash.update((text.len() as u64 + 1).to_be_bytes());
                                hash.update(text);
                            }
                            None => hash.update(0_u64.to_be_bytes()),
                        }
                    }
                }
                Err(_) => hash.update(body),
            },
        }
        Some(Fingerprint(hash.finalize().into()))
    }
}

/// JSON with sorted fields and no white space.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            let fields: Vec<String> = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(canonical).collect();
            format!("[{}]", values.join(","))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_exact_body() {
        let policy = FingerprintPolicy::default();
        assert_eq!(policy.of(b"{}"), policy.of(b"{}"));
        assert_ne!(policy.of(b"{}"), policy.of(b"{ }"));
    }

    #[test]
    fn canonical_json_ignores_white_space_and_order_but_not_values() {
        let policy = FingerprintPolicy::CanonicalJson;
        let one = policy.of(br#"{"a":1,"b":[1,{"x":null,"y":"z"}]}"#);
        assert_eq!(one, policy.of(br#" { "b" : [1, {"y":"z","x":null}], "a":1 }"#));
        assert_ne!(one, policy.of(br#"{"a":1,"b":[{"x":null,"y":"z"},1]}"#));
        assert_ne!(policy.of(b"not json"), policy.of(b"not  json"));
    }

    #[test]
    fn json_pointers_compare_only_what_they_name() {
        let policy = FingerprintPolicy::JsonPointers(vec!["/amount".into(), "/note".into()]);
        let one = policy.of(br#"{"amount":5,"sent_at":1}"#);
        assert_eq!(one, policy.of(br#"{"sent_at":2,"amount":5}"#));
        assert_ne!(one, policy.of(br#"{"amount":6}"#));
        assert_ne!(one, policy.of(br#"{"amount":5,"note":null}"#));
    }

    #[test]
    fn none_compares_nothing() {
        assert_eq!(FingerprintPolicy::None.of(b"x"), None);
    }
}
