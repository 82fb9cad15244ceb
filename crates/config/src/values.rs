//! Types of settings: lengths of time, secrets, and URLs, one or several.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use garde::rules::range::{Bounds, OutOfBounds};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::SecretString;
use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time, written with its unit: `"250ms"`, `"30s"`, `"7d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Length(pub(crate) Duration);

pub(crate) const MILLISECOND: Length = Length(Duration::from_millis(1));
pub(crate) const SECOND: Length = Length(Duration::from_secs(1));
pub(crate) const MINUTE: Length = Length(Duration::from_secs(60));
pub(crate) const HOUR: Length = Length(Duration::from_secs(3_600));
pub(crate) const DAY: Length = Length(Duration::from_secs(86_400));

impl Length {
    /// Multiplies the length, up to the maximum of the type.
    pub(crate) const fn times(self, count: u32) -> Self {
        match self.0.checked_mul(count) {
            Some(product) => Self(product),
            None => Self(Duration::MAX),
        }
    }
}

/// Converts a length to a limit in the schema.
impl From<Length> for serde_json::Value {
    fn from(length: Length) -> Self {
        Self::from(length.to_string())
    }
}

impl From<Length> for Duration {
    fn from(length: Length) -> Self {
        length.0
    }
}

/// Formats a length in the largest unit of which it is a whole number.
impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
        match units.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", millis / unit),
            None => f.write_str("0s"),
        }
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for Length {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*(\d+\s*[a-zA-Z]+\s*)+$",
            "x-kind": "duration",
            "x-advice": "must be a duration with its unit, like \"30s\" or \"7d\"",
        })
    }
}

impl Bounds for Length {
    type Size = Self;

    const MIN: Self = Self(Duration::ZERO);
    const MAX: Self = Self(Duration::MAX);

    fn validate_bounds(&self, lower: Self, upper: Self) -> Result<(), OutOfBounds> {
        match self {
            length if *length < lower => Err(OutOfBounds::Lower),
            length if *length > upper => Err(OutOfBounds::Upper),
            _ => Ok(()),
        }
    }
}

/// A text that is never shown: its schema has `writeOnly`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secret(pub(crate) SecretString);

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(SecretString::from(text)))
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "writeOnly": true })
    }
}

/// One URL, or several: a list, or a text with blanks or line ends in between. They may hold passwords.
#[derive(Clone, Debug)]
pub(crate) enum Urls {
    Text(SecretString),
    List(Vec<SecretString>),
}

impl Serialize for Urls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Urls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Urls, E> {
                Ok(Urls::Text(SecretString::from(text)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Urls, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = list.next_element::<String>()? {
                    urls.push(SecretString::from(url));
                }
                Ok(Urls::List(urls))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Urls, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Err(A::Error::custom("a table"))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Urls {
    fn schema_name() -> Cow<'static, str> {
        "Urls".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "array"],
            "items": { "type": "string" },
            "x-kind": "text or list",
            "x-advice": "must be a text or a list of texts",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_written_in_its_largest_unit() {
        for (length, text) in [
            (DAY.times(90), "90d"),
            (HOUR, "1h"),
            (SECOND.times(90), "90s"),
            (MILLISECOND.times(500), "500ms"),
            (Length(Duration::ZERO), "0s"),
        ] {
            assert_eq!(length.to_string(), text);
            assert_eq!(serde_json::from_value::<Length>(text.into()).unwrap(), length);
        }
    }
}
