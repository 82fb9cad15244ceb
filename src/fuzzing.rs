//! Processing of a message's bytes before any handler, in one call without servers: decode → identify → classify. For the fuzzer in `fuzz/`
//! and for property tests.

// A violation must panic; only tests call this.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use lapin::message::Delivery;
use lapin::types::ShortString;
use serde_json::Value;

use oncely_amqp::{convert_delivery, fit_headers, fit_properties};
use oncely_core::decide::{
    FailureDecision, KeyDecision, KeyRecord, KeyStatus, OnConflict, decide_after_failure, decide_on_key,
};
use oncely_core::extract::{Property, Source, identify};
use oncely_core::fault::Fault;
use oncely_core::fingerprint::{Fingerprint, FingerprintPolicy};
use oncely_core::identity::{Identity, IdentityPart, MAX_BYTES};
use oncely_core::message::RawMessage;
use oncely_core::own_headers;
use oncely_core::retry::RetryPolicy;
use oncely_core::signing::{SignedIdentity, SigningKeys};
use oncely_postgres::classify_sqlstate;

/// Encodes a message in the fuzzer's form: length and bytes of the properties, of the routing key, then the body.
#[must_use]
pub fn encode(properties: &[u8], routing_key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for part in [properties, routing_key] {
        encoded.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        encoded.extend(part);
    }
    encoded.extend(body);
    encoded
}

/// Takes a length and its bytes from the beginning of `input`; as many bytes as there are.
fn take_part<'a>(input: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, remainder)) = input.split_first_chunk::<4>() else { return &[] };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX).min(remainder.len());
    let (part, remainder) = remainder.split_at(length);
    *input = remainder;
    part
}

/// Processes a message (see [`encode`]) up to the call of a handler, under every source and policy.
///
/// # Panics
/// If an invariant is violated.
pub fn decode_identify_classify(input: &[u8]) {
    let mut remainder = input;
    let (properties, routing_key) = (take_part(&mut remainder), take_part(&mut remainder));
    let mut properties = properties.to_vec();
    let _ = fit_properties(&mut properties);
    let Ok((_, properties)) = lapin::protocol::basic::parse_properties(properties.as_slice()) else { return };
    // As in the AMQP client, bytes that are not UTF-8 are no text.
    let routing_key = String::from_utf8_lossy(routing_key);
    let Ok(routing_key) = ShortString::try_new(routing_key) else { return };
    let mut delivery = Delivery::mock(1, "".into(), routing_key, false, remainder.to_vec());
    delivery.properties = properties;
    let (message, properties) = convert_delivery(delivery, "queue");

    assert!(!holds_nul(&message.headers_json()), "jsonb holds no NUL");
    let _ = message.trace_id();
    if let Some(headers) = properties.headers().clone() {
        let kept = fit_headers(headers.clone(), 131_072);
        assert!(headers.inner().len() + 1 >= kept.inner().len());
    }
    let consumer = IdentityPart::new(b"consumer").expect("a short name without NUL is valid");
    for tenant in sources() {
        for key in sources() {
            match identify(&message, &consumer, &tenant, &key) {
                Ok(identity) => check_identified(&message, &identity),
                Err(unidentified) => assert!(!unidentified.rejection.detail.is_empty()),
            }
        }
    }
    check_payloads(&message.body);
    check_classification(&String::from_utf8_lossy(remainder.get(..5).unwrap_or_default()));
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(holds_nul),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || holds_nul(value)),
        _ => false,
    }
}

/// Returns one source of each kind.
fn sources() -> [Source; 8] {
    [
        Source::Property(Property::MessageId),
        Source::Property(Property::UserId),
        Source::Header("id".to_owned()),
        Source::RoutingKey(2),
        Source::JsonPointer("/a~1b/0".to_owned()),
        Source::BodyHash,
        Source::Queue,
        Source::Fixed("acme".to_owned()),
    ]
}

/// Checks the bounds of an identity, and that its signature can't be guessed and reads as the identity.
fn check_identified(message: &RawMessage, identity: &Identity) {
    for part in [&identity.tenant, &identity.key] {
        let text = part.as_str();
        assert!((1..=MAX_BYTES).contains(&text.len()) && !text.contains('\0'));
        assert!(!part.to_string().chars().any(char::is_control), "it is shown escaped");
    }
    let key = SigningKeys::derive(None, [], b"fuzzing");
    if let Some(oncely_core::message::HeaderValue::Text(signature)) =
        message.headers.get(own_headers::IDENTITY)
    {
        assert!(
            key.read_identity(signature, &identity.consumer, &message.body).is_err(),
            "a signature can't be guessed"
        );
    }
    let user = message.properties.user_id.as_deref();
    let signature = key.sign_identity(identity, user, &message.body).expect("every identity can be signed");
    let opened = key.read_identity(signature.as_bytes(), &identity.consumer, &message.body);
    assert_eq!(
        opened,
        Ok(SignedIdentity { identity: Some(identity.clone()), user_id: user.map(str::to_owned) })
    );
}

/// Checks that a body has the same fingerprint each time, by every policy, and that a known key compares it.
fn check_payloads(body: &[u8]) {
    let pointers = FingerprintPolicy::JsonPointers(vec!["/a".into(), "/b/0/c".into(), "/a~1b".into()]);
    for policy in
        [FingerprintPolicy::Body, FingerprintPolicy::CanonicalJson, pointers, FingerprintPolicy::None]
    {
        let fingerprint = policy.fingerprint(body);
        assert_eq!(fingerprint, policy.fingerprint(body));
        let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(body).is_ok();
        let spaced = policy.fingerprint(&[b" ", body, b"\n"].concat());
        let alike = policy == FingerprintPolicy::None || policy != FingerprintPolicy::Body && is_json;
        assert_eq!(
            fingerprint == spaced,
            alike,
            "white space round JSON does not count, and is all that does not"
        );
        check_known_key(fingerprint);
    }
}

/// Checks that a known key rejects another payload, in every state of the key.
fn check_known_key(fingerprint: Option<Fingerprint>) {
    for status in [KeyStatus::InProgress, KeyStatus::Completed, KeyStatus::Failed] {
        let other_fingerprint = fingerprint.map(|Fingerprint(mut bytes)| {
            bytes[Fingerprint::BYTES - 1] ^= 1;
            Fingerprint(bytes)
        });
        let record = KeyRecord {
            status,
            fingerprint: other_fingerprint,
            attempts: 1,
            crash_attempts: 0,
            reason: None,
            last_error: None,
            error_code: None,
            not_before: None,
            is_running: false,
            is_leased: false,
        };
        let decision = decide_on_key(&record, fingerprint.as_ref(), OnConflict::DeadLetter);
        if fingerprint.is_some() {
            assert!(matches!(decision, KeyDecision::Reject(_)));
        }
    }
}

/// Checks that a failure with this SQLSTATE is not retried after the last attempt.
fn check_classification(code: &str) {
    let retry = RetryPolicy { delays: vec![Duration::from_secs(1)], max_attempts: 2, max_crashes: 3 };
    let Some(class) = classify_sqlstate(code) else { return };
    let fault = Fault::new(class, Some(code.to_owned()), code);
    let decision = decide_after_failure(&fault, 2, &retry);
    assert!(!matches!(decision, FailureDecision::Retry(_)), "attempts end");
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncely_core::fault::FaultClass;
    use proptest::prelude::*;

    /// Classifies a SQLSTATE by the table in the documentation of [`classify_sqlstate`], in an independent implementation.
    fn classify_by_table(code: &str) -> Option<FaultClass> {
        const OUTAGE: [&str; 2] = ["08", "57"];
        const ENVIRONMENT: [&str; 9] = ["53", "58", "42", "3F", "3D", "28", "XX", "F0", "HV"];
        let class = &code[..2];
        match code {
            "ONC01" => Some(FaultClass::Rejected),
            "ONC02" => Some(FaultClass::NotJson),
            "57014" => Some(FaultClass::Transient),
            "25006" => None,
            "2200H" | "55006" | "ONC16" => Some(FaultClass::Environment),
            "0A000" | "26000" => Some(FaultClass::Session),
            "55P03" => Some(FaultClass::Contention),
            _ if class == "40" => Some(FaultClass::Contention),
            _ if OUTAGE.contains(&class) => None,
            _ if ENVIRONMENT.contains(&class) => Some(FaultClass::Environment),
            _ if class == "22" || class == "54" => Some(FaultClass::Poison),
            _ => Some(FaultClass::Transient),
        }
    }

    #[test]
    fn every_class_of_sqlstate_has_a_meaning() {
        let letters: Vec<char> = ('0'..='9').chain('A'..='Z').collect();
        let specials = ["000", "001", "006", "014", "C01", "C02", "P01", "P03", "ZZZ"];
        let mut count = 0;
        for first in &letters {
            for second in &letters {
                for suffix in specials {
                    let code = format!("{first}{second}{suffix}");
                    assert_eq!(classify_sqlstate(&code), classify_by_table(&code), "{code}");
                    check_classification(&code);
                    count += 1;
                }
            }
        }
        assert_eq!(count, 36 * 36 * 9);
    }

    /// Generates properties with flags for the following bytes, so that many pass the parser.
    fn properties() -> impl Strategy<Value = Vec<u8>> {
        let text = || prop::collection::vec(any::<u8>(), 0..40);
        let value = prop_oneof![
            text().prop_map(
                |text| [&b"S"[..], &u32::try_from(text.len()).unwrap().to_be_bytes()[..], &text].concat()
            ),
            any::<i64>().prop_map(|number| [&b"l"[..], &number.to_be_bytes()].concat()),
            any::<u8>().prop_map(|byte| vec![b't', byte]),
            any::<[u8; 5]>().prop_map(|bytes| [&b"D"[..], &bytes].concat()),
            Just(vec![b'V']),
            prop::collection::vec(any::<u8>(), 0..12),
        ];
        let name = prop_oneof![Just(b"id".to_vec()), Just(own_headers::IDENTITY.as_bytes().to_vec()), text()];
        let table = prop::collection::vec((name, value), 0..6).prop_map(|entries| {
            let short = |name: &[u8]| [&[u8::try_from(name.len()).unwrap()], name].concat();
            let inside: Vec<u8> =
                entries.iter().flat_map(|(name, value)| [short(name), value.clone()].concat()).collect();
            [&u32::try_from(inside.len()).unwrap().to_be_bytes()[..], &inside].concat()
        });
        (table, text()).prop_map(|(table, id)| {
            let flags: u16 = 1 << 13 | 1 << 7;
            [&flags.to_be_bytes()[..], &table, &[u8::try_from(id.len()).unwrap()], &id].concat()
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_identified_and_classified_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            decode_identify_classify(&bytes);
        }

        #[test]
        fn arbitrary_messages_are_decoded_identified_and_classified_without_a_panic(
            properties in properties(),
            routing_key in "[a-c.\u{0}é]{0,12}",
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..100),
                r#"[\[\]{}:,"a1 \\ud80\u{0}e-]{0,60}"#.prop_map(String::into_bytes),
                r#"\{"(a|b|a/b)":(\[|")(1|x|\\u0000)(\]|")\}"#.prop_map(String::into_bytes),
            ],
        ) {
            decode_identify_classify(&encode(&properties, routing_key.as_bytes(), &body));
        }

        #[test]
        fn arbitrary_tables_of_the_wire_never_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = lapin::types::parsing::parse_field_table(&bytes[..]);
            let _ = lapin::types::parsing::parse_value(&bytes[..]);
            let _ = lapin::protocol::basic::parse_properties(&bytes[..]);
        }
    }
}
