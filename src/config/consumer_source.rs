//! `tenant = { … }` and `key = { … }`.

use figment::value::Value;

use super::{Problems, Section};
use crate::extract::{Property, Source};

const KINDS: [&str; 8] =
    ["property", "header", "routing_key", "user_id", "queue", "json_pointer", "body_hash", "fixed"];

/// Reads a source; `user_id`, `queue` and `body_hash` may be written as plain words.
pub(super) fn source(section: &mut Section, key: &'static str, problems: &mut Problems) -> Option<Source> {
    let place = section.place(key);
    match section.take(key) {
        None => {
            problems.add(
                place,
                format!("is missing; write {key} = {{ header = \"…\" }} or another of {}", KINDS.join(", ")),
            );
            None
        }
        Some(Value::String(_, word)) => match word.as_str() {
            "user_id" => Some(Source::Property(Property::UserId)),
            "queue" => Some(Source::Queue),
            "body_hash" => Some(Source::BodyHash),
            _ => {
                problems.add(place, format!("must be a table that names one of {}", KINDS.join(", ")));
                None
            }
        },
        Some(Value::Dict(_, values)) => {
            let (kind, value) = Section::new(&place, values).only(&KINDS, problems)?;
            one(&place, &kind, &value, problems)
        }
        Some(_) => {
            problems.add(place, format!("must be a table that names one of {}", KINDS.join(", ")));
            None
        }
    }
}

fn one(place: &str, kind: &str, value: &Value, problems: &mut Problems) -> Option<Source> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let source = match kind {
        "property" => {
            text.and_then(|name| Property::ALL.into_iter().find(|p| p.name() == name)).map(Source::Property)
        }
        "header" => text.map(|name| Source::Header(name.to_owned())),
        "routing_key" => value
            .to_i128()
            .and_then(|word| usize::try_from(word).ok())
            .filter(|word| (1..=128).contains(word))
            .map(Source::RoutingKey),
        "json_pointer" => text
            .filter(|pointer| pointer.starts_with('/'))
            .map(|pointer| Source::JsonPointer(pointer.to_owned())),
        "fixed" => text
            .filter(|text| crate::identity::IdentityPart::new(text.as_bytes()).is_ok())
            .map(|text| Source::Fixed(text.to_owned())),
        "user_id" => (value.to_bool() == Some(true)).then_some(Source::Property(Property::UserId)),
        "queue" => (value.to_bool() == Some(true)).then_some(Source::Queue),
        "body_hash" => (value.to_bool() == Some(true)).then_some(Source::BodyHash),
        _ => None,
    };
    if source.is_none() {
        let wanted = match kind {
            "property" => "one of message_id, correlation_id, user_id, app_id, type",
            "header" => "the name of a header",
            "routing_key" => "the number of a word of the routing key, counted from 1",
            "json_pointer" => "an RFC 6901 pointer like \"/order/id\"",
            "fixed" => "a text of 1 to 255 bytes without NUL",
            _ => "true",
        };
        problems.add(format!("{place}.{kind}"), format!("must be {wanted}"));
    }
    source
}
