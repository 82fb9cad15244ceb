//! `tenant = { … }` and `key = { … }`.

use figment::value::Value;

use super::{Problems, Section};
use oncely_core::extract::{Property, Source};
use oncely_core::identity::IdentityPart;

/// A kind of source of a tenant or a key.
struct SourceKind {
    name: &'static str,
    /// Expected value.
    wanted: &'static str,
    read: fn(&Value) -> Option<Source>,
}

const KINDS: [SourceKind; 8] = [
    SourceKind {
        name: "property",
        wanted: "one of message_id, correlation_id, user_id, app_id, type",
        read: |value| {
            let name = text(value)?;
            Property::ALL.into_iter().find(|property| property.name() == name).map(Source::Property)
        },
    },
    SourceKind {
        name: "header",
        wanted: "the name of a header",
        read: |value| text(value).map(|name| Source::Header(name.to_owned())),
    },
    SourceKind {
        name: "routing_key",
        wanted: "the number of a word of the routing key, counted from 1",
        read: |value| {
            let word = usize::try_from(value.to_i128()?).ok()?;
            (1..=128).contains(&word).then_some(Source::RoutingKey(word))
        },
    },
    SourceKind {
        name: "user_id",
        wanted: "true",
        read: |value| is_on(value, Source::Property(Property::UserId)),
    },
    SourceKind { name: "queue", wanted: "true", read: |value| is_on(value, Source::Queue) },
    SourceKind {
        name: "json_pointer",
        wanted: "an RFC 6901 pointer like \"/order/id\"",
        read: |value| {
            let pointer = text(value).filter(|pointer| pointer.starts_with('/'))?;
            Some(Source::JsonPointer(pointer.to_owned()))
        },
    },
    SourceKind { name: "body_hash", wanted: "true", read: |value| is_on(value, Source::BodyHash) },
    SourceKind {
        name: "fixed",
        wanted: "a text of 1 to 255 bytes without NUL",
        read: |value| {
            let text = text(value).filter(|text| IdentityPart::new(text.as_bytes()).is_ok())?;
            Some(Source::Fixed(text.to_owned()))
        },
    },
];

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn is_on(value: &Value, source: Source) -> Option<Source> {
    (value.to_bool() == Some(true)).then_some(source)
}

fn names() -> [&'static str; KINDS.len()] {
    KINDS.map(|kind| kind.name)
}

/// Reads a source; `user_id`, `queue` and `body_hash` may be written as plain words.
pub(super) fn source(section: &mut Section, key: &'static str, problems: &mut Problems) -> Option<Source> {
    let place = section.place(key);
    match section.take(key) {
        None => {
            problems.add(
                place,
                format!(
                    "is missing; write {key} = {{ header = \"…\" }} or another of {}",
                    names().join(", ")
                ),
            );
            None
        }
        Some(Value::String(_, word)) => match word.as_str() {
            "user_id" => Some(Source::Property(Property::UserId)),
            "queue" => Some(Source::Queue),
            "body_hash" => Some(Source::BodyHash),
            _ => {
                problems.add(place, format!("must be a table that names one of {}", names().join(", ")));
                None
            }
        },
        Some(Value::Dict(_, values)) => {
            let (kind, value) = Section::new(&place, values).only(&names(), problems)?;
            read_source(&place, &kind, &value, problems)
        }
        Some(_) => {
            problems.add(place, format!("must be a table that names one of {}", names().join(", ")));
            None
        }
    }
}

fn read_source(place: &str, name: &str, value: &Value, problems: &mut Problems) -> Option<Source> {
    let kind = KINDS.into_iter().find(|kind| kind.name == name)?;
    let source = (kind.read)(value);
    if source.is_none() {
        problems.add(format!("{place}.{name}"), format!("must be {}", kind.wanted));
    }
    source
}
