//! Comparison of payloads.

use sha2::{Digest as _, Sha256};

use crate::json::JsonText;

/// Stored fingerprint of a payload: the id of its policy, and 96 bits of SHA-256 of the data that the policy compares. By default that is
/// the exact body, so that SQL can recompute it: `oncely.stored_fingerprint(sha256(body))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; Fingerprint::BYTES]);

/// Result of comparing two fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// The payloads are equal for the consumer.
    Same,
    /// The payloads differ.
    Other,
    /// Two policies made them, so it is unknown whether the payloads differ: the key alone decides.
    Incomparable,
}

/// Id of the policy, the first bytes of a fingerprint.
type PolicyId = [u8; 4];

impl Fingerprint {
    /// Length in bytes.
    pub const BYTES: usize = 16;

    /// Creates a fingerprint from a policy and a digest.
    #[must_use]
    pub fn new(policy: [u8; 4], digest: [u8; 12]) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&policy);
        bytes[4..].copy_from_slice(&digest);
        Self(bytes)
    }

    /// Creates [`FingerprintPolicy::Body`]'s fingerprint from the SHA-256 of a body; equals `oncely.stored_fingerprint` of the digest.
    #[must_use]
    pub fn from_digest(digest: &[u8; 32]) -> Self {
        let mut truncated = [0; 12];
        truncated.copy_from_slice(&digest[..12]);
        Self::new(BODY_POLICY, truncated)
    }

    /// Parses a column's value; `None` unless it has [`Self::BYTES`] bytes. Values from clients of `oncely.claim` are stored in this form,
    /// too (`oncely.stored_fingerprint`).
    #[must_use]
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Compares two fingerprints.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Likeness {
        if self.0[..4] != other.0[..4] {
            return Likeness::Incomparable;
        }
        if self == other { Likeness::Same } else { Likeness::Other }
    }
}

/// Data that a consumer compares when a key comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FingerprintPolicy {
    /// The exact bytes of the body.
    #[default]
    Body,
    /// The body as JSON, without white space and the order of fields, for producers that serialize again on retry. A body that is not JSON
    /// is compared byte for byte; so is one with more than 1,024 levels, or with more than 32,768 fields in an object and those around it.
    CanonicalJson,
    /// The values at these RFC 6901 pointers only, for producers that change timestamps on retry. A body that is not JSON is compared byte
    /// for byte.
    JsonPointers(Vec<String>),
    /// Nothing: the key alone decides.
    None,
}

/// First bytes of SHA-256 of `oncely fingerprint 1: ` and the policy's name.
const BODY_POLICY: PolicyId = [0xd8, 0x47, 0x09, 0x35];
const CANONICAL_JSON_POLICY: PolicyId = [0x56, 0x01, 0xd6, 0x51];

/// Tag of parsed JSON, which distinguishes its hash from that of a body that is not JSON.
const JSON_TAG: u8 = 1;
const BYTES_TAG: u8 = 0;
/// Tag of a pointer's missing value.
const ABSENT_TAG: u8 = b'-';

impl FingerprintPolicy {
    /// Returns the policy in words, such as `canonical_json` or `json_pointers ["/amount"]`. Policies that compare differently have
    /// different names.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Body => "body".to_owned(),
            Self::CanonicalJson => "canonical_json".to_owned(),
            Self::JsonPointers(pointers) => {
                format!("json_pointers {}", serde_json::Value::from(pointers.as_slice()))
            }
            Self::None => "none".to_owned(),
        }
    }

    /// Returns the first bytes of a fingerprint by this policy.
    fn id(&self) -> PolicyId {
        match self {
            Self::Body => BODY_POLICY,
            Self::CanonicalJson => CANONICAL_JSON_POLICY,
            Self::JsonPointers(_) | Self::None => compute_policy_id(&self.name()),
        }
    }

    /// Returns the fingerprint of a body, or `None` if nothing is compared.
    #[must_use]
    pub fn fingerprint(&self, body: &[u8]) -> Option<Fingerprint> {
        let mut hash = Sha256::new();
        match self {
            Self::None => return None,
            Self::Body => hash.update(body),
            Self::CanonicalJson => match JsonText::parse(body) {
                Ok(json) => {
                    hash.update([JSON_TAG]);
                    json.hash_into(&mut hash);
                }
                Err(_) => hash_bytes(&mut hash, body),
            },
            Self::JsonPointers(pointers) => match JsonText::parse(body) {
                Ok(json) => {
                    hash.update([JSON_TAG]);
                    for pointer in pointers {
                        // An absent value differs from null.
                        match json.value_at(pointer) {
                            Some(value) => value.hash_into(&mut hash),
                            None => hash.update([ABSENT_TAG]),
                        }
                    }
                }
                Err(_) => hash_bytes(&mut hash, body),
            },
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut fingerprint = Fingerprint::new(self.id(), [0; 12]);
        fingerprint.0[4..].copy_from_slice(&digest[..12]);
        Some(fingerprint)
    }
}

impl Fingerprint {
    /// Creates a fingerprint of several parts, each after its length, so that different lists always differ. `policy` names the parts.
    #[must_use]
    pub fn from_parts(policy: &str, parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut fingerprint = Self::new(compute_policy_id(policy), [0; 12]);
        fingerprint.0[4..].copy_from_slice(&digest[..12]);
        fingerprint
    }
}

/// Computes the id of a policy from its name.
fn compute_policy_id(name: &str) -> PolicyId {
    let digest: [u8; 32] = Sha256::digest(format!("oncely fingerprint 1: {name}")).into();
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Hashes a body that is not JSON.
fn hash_bytes(hash: &mut Sha256, body: &[u8]) {
    hash.update([BYTES_TAG]);
    hash.update(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn the_default_is_the_exact_body() {
        let policy = FingerprintPolicy::default();
        assert_eq!(policy.fingerprint(b"{}"), policy.fingerprint(b"{}"));
        assert_ne!(policy.fingerprint(b"{}"), policy.fingerprint(b"{ }"));
    }

    #[test]
    fn a_policys_id_is_the_hash_of_its_name_for_ever() {
        for policy in [FingerprintPolicy::Body, FingerprintPolicy::CanonicalJson] {
            assert_eq!(policy.id(), compute_policy_id(&policy.name()));
        }
        let pointers = FingerprintPolicy::JsonPointers(vec!["/a".into(), "/b\"".into()]);
        assert_eq!(pointers.name(), r#"json_pointers ["/a","/b\""]"#);
    }

    #[test]
    fn prints_of_two_policies_say_nothing_of_two_payloads() {
        let of = |policy: FingerprintPolicy, body: &[u8]| policy.fingerprint(body).unwrap();
        let body = of(FingerprintPolicy::Body, b"{}");
        assert_eq!(body.compare(&of(FingerprintPolicy::Body, b"{}")), Likeness::Same);
        assert_eq!(body.compare(&of(FingerprintPolicy::Body, b"{ }")), Likeness::Other);
        for other in [FingerprintPolicy::CanonicalJson, FingerprintPolicy::JsonPointers(vec!["/a".into()])] {
            assert_eq!(body.compare(&of(other.clone(), b"{}")), Likeness::Incomparable, "{other:?}");
        }
        let pointers = |pointer: &str| FingerprintPolicy::JsonPointers(vec![pointer.to_owned()]);
        assert_eq!(of(pointers("/a"), b"{}").compare(&of(pointers("/b"), b"{}")), Likeness::Incomparable);
    }

    #[test]
    fn parts_are_told_apart_by_where_they_end() {
        let of = |parts: &[&[u8]]| Fingerprint::from_parts("http_request", parts);
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
        for other in [&[&b"a"[..], b"bc"][..], &[b"abc"], &[b"ab", b"c", b""], &[b"", b"ab", b"c"]] {
            assert_ne!(of(&[b"ab", b"c"]), of(other), "{other:?}");
        }
        let body = FingerprintPolicy::Body.fingerprint(b"abc").unwrap();
        assert_eq!(of(&[b"abc"]).compare(&body), Likeness::Incomparable);
    }

    #[test]
    fn what_is_stored_comes_back_and_nothing_else() {
        let own = FingerprintPolicy::CanonicalJson.fingerprint(b"{}").unwrap();
        assert_eq!(Fingerprint::from_stored(&own.0), Some(own));
        for wrong in [&b""[..], b"short", &[0; 20], &[0; 32]] {
            assert_eq!(Fingerprint::from_stored(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn canonical_json_ignores_white_space_and_order_but_not_values() {
        let policy = FingerprintPolicy::CanonicalJson;
        let one = policy.fingerprint(br#"{"a":1,"b":[1,{"x":null,"y":"z"}]}"#);
        assert_eq!(one, policy.fingerprint(br#" { "b" : [1, {"y":"z","x":null}], "a":1 }"#));
        assert_ne!(one, policy.fingerprint(br#"{"a":1,"b":[{"x":null,"y":"z"},1]}"#));
        assert_ne!(policy.fingerprint(b"not json"), policy.fingerprint(b"not  json"));
    }

    #[test]
    fn json_pointers_compare_only_what_they_name() {
        let policy = FingerprintPolicy::JsonPointers(vec!["/amount".into(), "/note".into()]);
        let one = policy.fingerprint(br#"{"amount":5,"sent_at":1}"#);
        assert_eq!(one, policy.fingerprint(br#"{"sent_at":2,"amount":5}"#));
        assert_ne!(one, policy.fingerprint(br#"{"amount":6}"#));
        assert_ne!(one, policy.fingerprint(br#"{"amount":5,"note":null}"#));
    }

    #[test]
    fn numbers_count_digit_by_digit() {
        let pointers = FingerprintPolicy::JsonPointers(vec!["/amount".into()]);
        for policy in [FingerprintPolicy::CanonicalJson, pointers] {
            for (one, other) in [
                ("1.000000000000000001", "1.000000000000000002"),
                ("123456789012345678901", "123456789012345678902"),
            ] {
                let of = |number: &str| policy.fingerprint(format!("{{\"amount\": {number}}}").as_bytes());
                assert_eq!(of(one), of(one));
                assert_ne!(of(one), of(other), "{policy:?}");
            }
        }
    }

    #[test]
    fn pointers_reach_into_arrays_and_escaped_names() {
        let policy = FingerprintPolicy::JsonPointers(vec!["/a~1b/0/~0".into()]);
        let of = |text: &str| policy.fingerprint(text.as_bytes());
        assert_eq!(of(r#"{"a/b": [{"~": 1}], "x": 1}"#), of(r#"{"a/b": [{"~": 1}], "x": 2}"#));
        assert_ne!(of(r#"{"a/b": [{"~": 1}]}"#), of(r#"{"a/b": [{"~": 2}]}"#));
        assert_eq!(
            FingerprintPolicy::CanonicalJson.fingerprint(br#"["\u0041"]"#),
            FingerprintPolicy::CanonicalJson.fingerprint(br#"["A"]"#)
        );
    }

    #[test]
    fn none_compares_nothing() {
        assert_eq!(FingerprintPolicy::None.fingerprint(b"x"), None);
    }

    #[test]
    fn a_text_that_is_no_character_counts_as_written() {
        let pointers = FingerprintPolicy::JsonPointers(vec!["/amount".into()]);
        for policy in [FingerprintPolicy::CanonicalJson, pointers] {
            for (one, other) in [
                (r#"{"amount": "\ud800"}"#, r#"{"amount": "\ud801"}"#),
                (r#"{"\ud800": 0, "amount": 1}"#, r#"{"\ud800": 0, "amount": 2}"#),
            ] {
                assert_eq!(policy.fingerprint(one.as_bytes()), policy.fingerprint(one.as_bytes()));
                assert_ne!(
                    policy.fingerprint(one.as_bytes()),
                    policy.fingerprint(other.as_bytes()),
                    "{policy:?} {one}"
                );
            }
        }
    }

    #[test]
    fn depth_costs_no_more_than_length() {
        let nested = |word: &str| format!("{}{word}{}", "[{\"a\":".repeat(50_000), "}]".repeat(50_000));
        let pointers = FingerprintPolicy::JsonPointers(vec!["/0/a".into(), "/1".into()]);
        for policy in [FingerprintPolicy::CanonicalJson, pointers] {
            assert_ne!(
                policy.fingerprint(nested("1").as_bytes()),
                policy.fingerprint(nested("2").as_bytes())
            );
        }
    }

    #[test]
    fn no_body_that_is_not_json_is_taken_for_one_that_is() {
        let pointers = FingerprintPolicy::JsonPointers(vec!["/amount".into()]);
        assert_ne!(pointers.fingerprint(b"{}"), pointers.fingerprint(&[JSON_TAG, ABSENT_TAG]));
        assert_ne!(pointers.fingerprint(b"{}"), pointers.fingerprint(&[ABSENT_TAG]));
    }

    fn json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 30, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(".{0,3}", inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// Writes the same value in another form: order, white space and escapes as chosen by `bits`.
    fn written(value: &Value, bits: &mut impl Iterator<Item = bool>) -> String {
        let mut coin = || bits.next().unwrap_or_default();
        let text = |text: &str, escaped: bool| match escaped {
            true => format!(
                "\"{}\"",
                text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>()
            ),
            false => Value::from(text).to_string(),
        };
        let blank = if coin() { " \n" } else { "" };
        match value {
            Value::Array(values) => {
                let values: Vec<String> = values.iter().map(|value| written(value, bits)).collect();
                format!("[{blank}{}]", values.join(&format!("{blank},")))
            }
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if coin() {
                    fields.reverse();
                }
                let fields: Vec<String> = fields
                    .into_iter()
                    .map(|(name, value)| {
                        let escaped = bits.next().unwrap_or_default();
                        format!("{}{blank}:{}", text(name, escaped), written(value, bits))
                    })
                    .collect();
                format!("{{{}{blank}}}", fields.join(","))
            }
            Value::String(value) => format!("{blank}{}", text(value, coin())),
            scalar => format!("{scalar}{blank}"),
        }
    }

    /// Changes the `nth` scalar of a value, counted from 0. Returns false if it has fewer; `nth` is then reduced by their number.
    fn changed(value: &mut Value, nth: &mut usize) -> bool {
        match value {
            Value::Array(values) => values.iter_mut().any(|value| changed(value, nth)),
            Value::Object(fields) => fields.values_mut().any(|value| changed(value, nth)),
            scalar if *nth == 0 => {
                *scalar = match scalar {
                    Value::String(text) => Value::from(format!("{text} ")),
                    Value::Bool(truth) => Value::from(!*truth),
                    Value::Number(number) => Value::from(number.to_string()),
                    _ => Value::Bool(false),
                };
                true
            }
            _ => {
                *nth -= 1;
                false
            }
        }
    }

    proptest! {
        #[test]
        fn canonical_json_depends_on_the_value_alone(value in json(), bits in prop::collection::vec(any::<bool>(), 0..200)) {
            let policy = FingerprintPolicy::CanonicalJson;
            let other = written(&value, &mut bits.into_iter());
            prop_assert_eq!(serde_json::from_str::<Value>(&other).unwrap(), value.clone(), "{}", other);
            prop_assert_eq!(policy.fingerprint(value.to_string().as_bytes()), policy.fingerprint(other.as_bytes()), "{}", other);
        }

        #[test]
        fn canonical_json_depends_on_every_scalar(value in json(), mut nth in 0..30_usize) {
            let policy = FingerprintPolicy::CanonicalJson;
            let mut other = value.clone();
            if changed(&mut other, &mut nth) {
                prop_assert_ne!(policy.fingerprint(value.to_string().as_bytes()), policy.fingerprint(other.to_string().as_bytes()));
            }
        }

        /// Two values have the same fingerprint only if they are equal.
        #[test]
        fn canonical_json_tells_values_apart(left in json(), right in json()) {
            let of = |value: &Value| FingerprintPolicy::CanonicalJson.fingerprint(value.to_string().as_bytes());
            prop_assert_eq!(of(&left) == of(&right), left == right);
        }

        #[test]
        fn a_pointer_finds_what_serde_finds(value in json(), pointer in "(/[a-c0-2]{0,1}){0,3}", other in json()) {
            let policy = FingerprintPolicy::JsonPointers(vec![pointer.clone()]);
            let same = value.pointer(&pointer) == other.pointer(&pointer);
            prop_assert_eq!(policy.fingerprint(value.to_string().as_bytes()) == policy.fingerprint(other.to_string().as_bytes()), same);
        }
    }

    proptest! {
        /// Uses letters that the hash itself puts between values.
        #[test]
        fn texts_next_to_each_other_stay_apart(
            left in prop::collection::vec("[sw]{0,2}", 0..4),
            right in prop::collection::vec("[sw]{0,2}", 0..4),
        ) {
            let of = |texts: &[String]| FingerprintPolicy::CanonicalJson.fingerprint(Value::from(texts).to_string().as_bytes());
            prop_assert_eq!(of(&left) == of(&right), left == right);
        }
    }
}
