//! `tenant = { … }`, `key = { … }` and `lock_order = { … }`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use oncely_core::extract::{Property, Source};
use oncely_core::identity::IdentityPart;

/// Place of a value in a message.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-kind" = "text or table", "x-advice" = "must be \"user_id\", \"queue\" or \"body_hash\", or a table that names one of property, header, \
    routing_key, json_pointer, fixed"))]
pub(super) enum SourceTable {
    UserId,
    Queue,
    BodyHash,
    Property(PropertyName),
    Header(String),
    #[schemars(extend("x-advice" = WORD_ADVICE))]
    RoutingKey(u32),
    JsonPointer(String),
    Fixed(String),
}

/// Name of a property.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PropertyName {
    MessageId,
    CorrelationId,
    UserId,
    AppId,
    Type,
}

const WORD_ADVICE: &str = "must be the number of a word of the routing key, counted from 1";

impl SourceTable {
    /// Checks the source, and converts it. `place`: name of the setting.
    pub(super) fn into_settings(self, place: &str, problems: &mut Problems) -> Source {
        let mut report = |key: &str, message: &str| problems.add(format!("{place}.{key}"), message);
        match self {
            Self::UserId => Source::Property(Property::UserId),
            Self::Queue => Source::Queue,
            Self::BodyHash => Source::BodyHash,
            Self::Property(name) => Source::Property(name.into()),
            Self::Header(name) => {
                if name.is_empty() {
                    report("header", "must be the name of a header");
                }
                Source::Header(name)
            }
            Self::RoutingKey(word) => {
                if !(1..=128).contains(&word) {
                    report("routing_key", WORD_ADVICE);
                }
                Source::RoutingKey(usize::try_from(word).unwrap_or(usize::MAX))
            }
            Self::JsonPointer(pointer) => {
                if !pointer.starts_with('/') {
                    report("json_pointer", "must be an RFC 6901 pointer like \"/order/id\"");
                }
                Source::JsonPointer(pointer)
            }
            Self::Fixed(text) => {
                if IdentityPart::new(text.as_bytes()).is_err() {
                    report("fixed", "must be a text of 1 to 255 bytes without NUL");
                }
                Source::Fixed(text)
            }
        }
    }
}

impl From<PropertyName> for Property {
    fn from(name: PropertyName) -> Self {
        match name {
            PropertyName::MessageId => Self::MessageId,
            PropertyName::CorrelationId => Self::CorrelationId,
            PropertyName::UserId => Self::UserId,
            PropertyName::AppId => Self::AppId,
            PropertyName::Type => Self::Type,
        }
    }
}

/// Checks a source that is required, and converts it; `None` if it is missing, which is reported.
pub(super) fn check_required(
    source: Option<SourceTable>,
    place: &str,
    key: &str,
    problems: &mut Problems,
) -> Option<Source> {
    let place = format!("{place}.{key}");
    if source.is_none() && !problems.has(&place) {
        let others = "user_id, queue, body_hash, property, routing_key, json_pointer, fixed";
        problems
            .add(&place, format!("is missing; write {key} = {{ header = \"…\" }} or another of {others}"));
    }
    source.map(|source| source.into_settings(&place, problems))
}
