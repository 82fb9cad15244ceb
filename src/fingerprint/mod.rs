//! What makes two payloads the same.

mod json;

use sha2::{Digest as _, Sha256};

use json::Json;

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

/// What a hash that looks into the body begins with, so that no body that is not JSON is taken for one that is.
const JSON: u8 = 1;
const BYTES: u8 = 0;
/// Where a pointer finds nothing.
const ABSENT: u8 = b'-';

impl FingerprintPolicy {
    /// The fingerprint of a body, or `None` where nothing is compared.
    #[must_use]
    pub fn of(&self, body: &[u8]) -> Option<Fingerprint> {
        let mut hash = Sha256::new();
        match self {
            Self::None => return None,
            Self::Body => hash.update(body),
            Self::CanonicalJson => match Json::parse(body) {
                Some(json) => {
                    hash.update([JSON]);
                    json.add_to(&mut hash);
                }
                None => bytes(&mut hash, body),
            },
            Self::JsonPointers(pointers) => match Json::parse(body) {
                Some(json) => {
                    hash.update([JSON]);
                    for pointer in pointers {
                        // An absent value differs from null.
                        match json.at(pointer) {
                            Some(value) => value.add_to(&mut hash),
                            None => hash.update([ABSENT]),
                        }
                    }
                }
                None => bytes(&mut hash, body),
            },
        }
        Some(Fingerprint(hash.finalize().into()))
    }
}

fn bytes(hash: &mut Sha256, body: &[u8]) {
    hash.update([BYTES]);
    hash.update(body);
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
