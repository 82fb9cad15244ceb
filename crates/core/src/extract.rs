//! Sources of an identity.

use std::fmt;

use serde_json::Number;
use sha2::{Digest as _, Sha256};

use crate::identity::{Identity, IdentityError, IdentityPart};
use crate::json::JsonText;
use crate::message::{HeaderValue, RawMessage};
use crate::reason::{Reason, Rejection};

/// Source of a tenant or a key in a message. The operator decides which one is *trusted*: a publisher does not control `user_id` (checked
/// by the broker), the queue and a fixed value only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A property.
    Property(Property),
    /// A header: text, or an integer in decimal.
    Header(String),
    /// The n-th word of the routing key, counted from 1; words are separated by dots.
    RoutingKey(usize),
    /// The name of the queue that the message came from.
    Queue,
    /// An RFC 6901 pointer into the JSON body: text, or an integer in decimal.
    JsonPointer(String),
    /// SHA-256 of the body in hexadecimal.
    BodyHash,
    /// A fixed value, for all messages.
    Fixed(String),
}

/// A property that can hold an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Property {
    MessageId,
    CorrelationId,
    UserId,
    AppId,
    Type,
}

impl Property {
    /// All properties.
    pub const ALL: [Self; 5] = [Self::MessageId, Self::CorrelationId, Self::UserId, Self::AppId, Self::Type];

    /// Returns the property's name in AMQP and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MessageId => "message_id",
            Self::CorrelationId => "correlation_id",
            Self::UserId => "user_id",
            Self::AppId => "app_id",
            Self::Type => "type",
        }
    }

    /// Returns the property's value in a message; `None` if it is not set.
    fn read(self, message: &RawMessage) -> Option<&str> {
        let properties = &message.properties;
        match self {
            Self::MessageId => properties.message_id.as_deref(),
            Self::CorrelationId => properties.correlation_id.as_deref(),
            Self::UserId => properties.user_id.as_deref(),
            Self::AppId => properties.app_id.as_deref(),
            Self::Type => properties.kind.as_deref(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property(property) => write!(f, "property {}", property.name()),
            Self::Header(name) => write!(f, "header {name}"),
            Self::RoutingKey(word) => write!(f, "word {word} of the routing key"),
            Self::Queue => write!(f, "name of the queue"),
            Self::JsonPointer(pointer) => write!(f, "{pointer:?} in the body"),
            Self::BodyHash => write!(f, "hash of the body"),
            Self::Fixed(_) => write!(f, "fixed value"),
        }
    }
}

/// A message without a valid identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnidentifiedMessage {
    /// Reason.
    pub rejection: Rejection,
    /// Its tenant, if it was found.
    pub tenant: Option<IdentityPart>,
}

/// Finds the identity of a message.
///
/// # Errors
/// If tenant or key is missing or invalid: a [`Rejection`] that names that part, the tenant first.
pub fn identify(
    message: &RawMessage,
    consumer: &IdentityPart,
    tenant: &Source,
    key: &Source,
) -> Result<Identity, UnidentifiedMessage> {
    // Parsed once for both, and only if one of them needs it.
    let is_in_body = |source: &Source| matches!(source, Source::JsonPointer(_));
    let json = (is_in_body(tenant) || is_in_body(key)).then(|| parse_body(&message.body));
    let part = |source: &Source, to_rejection: fn(IdentityError, &str) -> Rejection| {
        let json = match &json {
            Some(Err(rejection)) if is_in_body(source) => return Err(rejection.clone()),
            Some(Ok(json)) => Some(*json),
            _ => None,
        };
        read_part(message, json, source).map_err(|error| to_rejection(error, &source.to_string()))
    };
    let tenant = part(tenant, Rejection::for_tenant)
        .map_err(|rejection| UnidentifiedMessage { rejection, tenant: None })?;
    match part(key, Rejection::for_key) {
        Ok(key) => Ok(Identity { tenant, consumer: consumer.clone(), key }),
        Err(rejection) => Err(UnidentifiedMessage { rejection, tenant: Some(tenant) }),
    }
}

/// Reads a value from its source in a message; `None` if it is missing or invalid there.
pub fn read_value(message: &RawMessage, source: &Source) -> Option<IdentityPart> {
    let json = match source {
        Source::JsonPointer(_) => Some(parse_body(&message.body).ok()?),
        _ => None,
    };
    read_part(message, json, source).ok()
}

/// Parses a body as JSON.
///
/// # Errors
/// If the body is not JSON: a [`Rejection`] with the position of the first error, without the text around it.
fn parse_body(body: &[u8]) -> Result<JsonText<'_>, Rejection> {
    JsonText::parse(body).map_err(|error| {
        let position = format!("line {}, column {}", error.line(), error.column());
        Rejection::new(Reason::InvalidJson, format!("the body is not JSON ({position})"))
    })
}

/// Reads a value from its source: a header, a property, the routing key or a field of the body.
fn read_part(
    message: &RawMessage,
    json: Option<JsonText<'_>>,
    source: &Source,
) -> Result<IdentityPart, IdentityError> {
    let missing = IdentityError::Missing;
    match source {
        Source::Property(property) => IdentityPart::new(property.read(message).ok_or(missing)?.as_bytes()),
        Source::Header(name) => match message.headers.get(name).ok_or(missing)? {
            HeaderValue::Text(bytes) => IdentityPart::new(bytes),
            HeaderValue::Integer(number) => IdentityPart::new(number.to_string().as_bytes()),
            other => Err(IdentityError::WrongType(other.type_name())),
        },
        Source::RoutingKey(word) => {
            let word = message.routing_key.split('.').nth(word.saturating_sub(1)).ok_or(missing)?;
            IdentityPart::new(word.as_bytes())
        }
        Source::Queue => IdentityPart::new(message.queue.as_bytes()),
        Source::JsonPointer(pointer) => {
            to_identity_part(json.and_then(|json| json.value_at(pointer)).ok_or(missing)?)
        }
        Source::BodyHash => {
            let digest = Sha256::digest(&message.body);
            IdentityPart::new(digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().as_bytes())
        }
        Source::Fixed(value) => IdentityPart::new(value.as_bytes()),
    }
}

/// Converts a JSON value to a part of an identity: text, or an integer of 64 bits in decimal.
fn to_identity_part(json: JsonText<'_>) -> Result<IdentityPart, IdentityError> {
    let wrong_type = |kind| Err(IdentityError::WrongType(kind));
    match json.text().as_bytes().first() {
        Some(b'"') => {
            let text = json.characters().ok_or(IdentityError::NotUtf8)?;
            IdentityPart::new(text.as_bytes())
        }
        Some(b'{') => wrong_type("an object"),
        Some(b'[') => wrong_type("an array"),
        Some(b'n') => wrong_type("null"),
        Some(b't' | b'f') => wrong_type("a boolean"),
        _ => match serde_json::from_str::<Number>(json.text()) {
            Ok(number) if !number.is_f64() => IdentityPart::new(number.to_string().as_bytes()),
            Ok(_) | Err(_) => wrong_type("a fraction or a number beyond 64 bits"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn consumer() -> IdentityPart {
        IdentityPart::new(b"payments").unwrap()
    }

    fn key_of(message: &RawMessage, source: Source) -> Result<String, Reason> {
        identify(message, &consumer(), &Source::Fixed("acme".into()), &source)
            .map(|identity| identity.key.as_str().to_owned())
            .map_err(|unidentified| unidentified.rejection.reason)
    }

    fn header(value: HeaderValue) -> RawMessage {
        RawMessage { headers: [("id".to_owned(), value)].into(), ..RawMessage::default() }
    }

    fn body(text: &str) -> RawMessage {
        RawMessage { body: text.to_owned().into(), ..RawMessage::default() }
    }

    #[test]
    fn a_header_holds_text_or_an_integer_and_nothing_else() {
        let of = |value| key_of(&header(value), Source::Header("id".into()));
        assert_eq!(of(HeaderValue::Text(b"order-1".to_vec())), Ok("order-1".into()));
        assert_eq!(of(HeaderValue::Integer(-42)), Ok("-42".into()));
        for other in [
            HeaderValue::Boolean(true),
            HeaderValue::Float(1.0),
            HeaderValue::Timestamp(1),
            HeaderValue::Table([].into()),
            HeaderValue::Array(vec![]),
            HeaderValue::Void,
        ] {
            assert_eq!(of(other), Err(Reason::KeyInvalid));
        }
        assert_eq!(key_of(&RawMessage::default(), Source::Header("id".into())), Err(Reason::KeyMissing));
    }

    #[test]
    fn a_json_pointer_finds_text_and_whole_numbers() {
        let of = |text: &str| key_of(&body(text), Source::JsonPointer("/order/id".into()));
        assert_eq!(of(r#"{"order":{"id":"7f3a"}}"#), Ok("7f3a".into()));
        assert_eq!(of(r#"{"order":{"id":18446744073709551615}}"#), Ok("18446744073709551615".into()));
        assert_eq!(of(r#"{"order":{"id":1.5}}"#), Err(Reason::KeyInvalid));
        assert_eq!(of(r#"{"order":{"id":null}}"#), Err(Reason::KeyInvalid));
        assert_eq!(of(r#"{"order":{}}"#), Err(Reason::KeyMissing));
        assert_eq!(of(r#"{"order":"#), Err(Reason::InvalidJson));
        assert_eq!(of(""), Err(Reason::InvalidJson));
    }

    #[test]
    fn words_of_the_routing_key_are_counted_from_one() {
        let message = RawMessage { routing_key: "eu.acme.paid".into(), ..RawMessage::default() };
        assert_eq!(key_of(&message, Source::RoutingKey(2)), Ok("acme".into()));
        assert_eq!(key_of(&message, Source::RoutingKey(4)), Err(Reason::KeyMissing));
        let gap = RawMessage { routing_key: "eu..paid".into(), ..RawMessage::default() };
        assert_eq!(key_of(&gap, Source::RoutingKey(2)), Err(Reason::KeyInvalid));
    }

    #[test]
    fn the_body_hash_is_sha_256_in_hexadecimal() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(key_of(&body("abc"), Source::BodyHash), Ok(expected.into()));
    }

    #[test]
    fn a_missing_tenant_is_reported_before_a_missing_key() {
        let tenant = Source::Property(Property::UserId);
        let key = Source::Property(Property::MessageId);
        let unidentified = identify(&RawMessage::default(), &consumer(), &tenant, &key).unwrap_err();
        assert_eq!(unidentified.rejection.reason, Reason::TenantMissing);
        assert_eq!(unidentified.tenant, None);
    }

    #[test]
    fn a_tenant_outside_the_body_is_known_even_where_the_body_is_broken() {
        let message = RawMessage { routing_key: "eu.acme".into(), ..body("{") };
        let key = Source::JsonPointer("/id".into());
        let unidentified = identify(&message, &consumer(), &Source::RoutingKey(2), &key).unwrap_err();
        assert_eq!(unidentified.rejection.reason, Reason::InvalidJson);
        assert_eq!(unidentified.tenant, Some(IdentityPart::new(b"acme").unwrap()));
    }

    proptest! {
        /// An identity is exactly the text in the message: different texts are different identities.
        #[test]
        fn identities_are_as_different_as_what_they_are_made_of(
            left in prop::array::uniform2("[ab:/\\.\u{1}é]{1,3}"),
            right in prop::array::uniform2("[ab:/\\.\u{1}é]{1,3}"),
        ) {
            let of = |[tenant, key]: &[String; 2]| {
                let text = |text: &String| HeaderValue::Text(text.clone().into_bytes());
                let message = RawMessage {
                    headers: [("t".to_owned(), text(tenant))].into(),
                    body: serde_json::json!({ "id": key }).to_string().into(),
                    ..RawMessage::default()
                };
                identify(&message, &consumer(), &Source::Header("t".into()), &Source::JsonPointer("/id".into())).unwrap()
            };
            prop_assert_eq!(of(&left) == of(&right), left == right);
        }
    }
}
