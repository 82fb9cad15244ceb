//! What makes two payloads the same.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;
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
            Self::CanonicalJson => match serde_json::from_slice::<&RawValue>(body).ok().and_then(canonical) {
                Some(json) => hash.update(json),
                None => hash.update(body),
            },
            Self::JsonPointers(pointers) => match serde_json::from_slice::<&RawValue>(body) {
                Ok(json) => {
                    for pointer in pointers {
                        // An absent value differs from null; the lengths keep neighbours apart.
                        match at(json, pointer).and_then(canonical) {
                            Some(text) => {
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

/// JSON with sorted fields and no white space. Numbers stay as they were written: read as floating point, two different
/// amounts could become one.
fn canonical(value: &RawValue) -> Option<String> {
    let text = value.get();
    Some(match text.as_bytes().first()? {
        b'{' => {
            // Of several fields of one name the last one counts, as in PostgreSQL's jsonb.
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            let fields: Option<Vec<String>> = fields
                .into_iter()
                .map(|(name, value)| Some(format!("{}:{}", Value::from(name), canonical(value)?)))
                .collect();
            format!("{{{}}}", fields?.join(","))
        }
        b'[' => {
            let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let values: Option<Vec<String>> = values.into_iter().map(canonical).collect();
            format!("[{}]", values?.join(","))
        }
        // The same text however it is escaped.
        b'"' => serde_json::from_str::<Value>(text).ok()?.to_string(),
        _ => text.to_owned(),
    })
}

/// The value at an RFC 6901 pointer.
fn at<'a>(value: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut found = value;
    for token in pointer.split('/').skip(1) {
        let name = token.replace("~1", "/").replace("~0", "~");
        found = match found.get().as_bytes().first()? {
            b'{' => serde_json::from_str::<BTreeMap<String, &RawValue>>(found.get()).ok()?.remove(&name)?,
            b'[' => {
                // No sign and no leading zero, says the RFC.
                let index = name.parse::<usize>().ok().filter(|index| index.to_string() == name)?;
                serde_json::from_str::<Vec<&RawValue>>(found.get()).ok()?.get(index).copied()?
            }
            _ => return None,
        };
    }
    Some(found)
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
    fn numbers_count_digit_by_digit() {
        let pointers = FingerprintPolicy::JsonPointers(vec!["/amount".into()]);
        for policy in [FingerprintPolicy::CanonicalJson, pointers] {
            for (one, other) in [
                ("1.000000000000000001", "1.000000000000000002"),
                ("123456789012345678901", "123456789012345678902"),
            ] {
                let of = |number: &str| policy.of(format!("{{\"amount\": {number}}}").as_bytes());
                assert_eq!(of(one), of(one));
                assert_ne!(of(one), of(other), "{policy:?}");
            }
        }
    }

    #[test]
    fn pointers_reach_into_arrays_and_escaped_names() {
        let policy = FingerprintPolicy::JsonPointers(vec!["/a~1b/0/~0".into()]);
        let of = |text: &str| policy.of(text.as_bytes());
        assert_eq!(of(r#"{"a/b": [{"~": 1}], "x": 1}"#), of(r#"{"a/b": [{"~": 1}], "x": 2}"#));
        assert_ne!(of(r#"{"a/b": [{"~": 1}]}"#), of(r#"{"a/b": [{"~": 2}]}"#));
        assert_eq!(
            FingerprintPolicy::CanonicalJson.of(br#"["\u0041"]"#),
            FingerprintPolicy::CanonicalJson.of(br#"["A"]"#)
        );
    }

    #[test]
    fn none_compares_nothing() {
        assert_eq!(FingerprintPolicy::None.of(b"x"), None);
    }
}
