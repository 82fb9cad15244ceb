//! A message's properties and headers as JSON that PostgreSQL's jsonb can hold, and back, without loss. Pure.
//!
//! Text, integers of 64 bits, booleans, null and arrays are themselves, so that SQL can look into them. Everything else is
//! an object with AMQP's letter of its type as its only name: `{"d": "1.5"}`, `{"x": "feff"}` (hexadecimal), `{"F": {…}}`.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, ShortString};
use serde_json::{Map, Value, json};

/// Maximum levels of stored nested tables: serde_json reads 128 levels of JSON, and PostgreSQL's stack holds them.
const MAX_DEPTH: u32 = 40;

/// Converts headers to JSON; `None` if they have more than `MAX_DEPTH` levels, or a name with a NUL, which jsonb refuses.
pub fn store_headers(headers: &FieldTable) -> Option<Value> {
    store_table(headers, 0)
}

/// Restores headers from JSON; `None` if its form is not that of [`store_headers`].
pub fn restore_headers(stored: &Value) -> Option<FieldTable> {
    let mut table = BTreeMap::new();
    for (name, value) in stored.as_object()? {
        table.insert(ShortString::try_new(name.as_str()).ok()?, restore_value(value)?);
    }
    Some(table.into())
}

/// Converts a table to JSON; `None` if it has more than [`MAX_DEPTH`] levels, or a name with a NUL.
fn store_table(headers: &FieldTable, depth: u32) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut object = Map::new();
    for (name, value) in headers.inner() {
        if name.as_str().contains('\0') {
            return None;
        }
        object.insert(name.as_str().to_owned(), store_value(value, depth + 1)?);
    }
    Some(Value::Object(object))
}

/// Converts a header's value to JSON; `None` if it has more than [`MAX_DEPTH`] levels, or a name with a NUL.
fn store_value(value: &AMQPValue, depth: u32) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match value {
        AMQPValue::Boolean(truth) => json!(truth),
        AMQPValue::LongLongInt(number) => json!(number),
        AMQPValue::Void => Value::Null,
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) if !text.contains('\0') => json!(text),
            _ => json!({ "S": format_hexadecimal(text.as_bytes()) }),
        },
        // This type does not occur on the wire; the nearest one that does.
        AMQPValue::ShortString(text) => {
            return store_value(&AMQPValue::LongString(text.as_str().into()), depth);
        }
        AMQPValue::FieldArray(values) => {
            let values: Option<Vec<Value>> =
                values.as_slice().iter().map(|value| store_value(value, depth + 1)).collect();
            Value::Array(values?)
        }
        AMQPValue::ShortShortInt(number) => json!({ "b": number }),
        AMQPValue::ShortShortUInt(number) => json!({ "B": number }),
        AMQPValue::ShortInt(number) => json!({ "s": number }),
        AMQPValue::ShortUInt(number) => json!({ "u": number }),
        AMQPValue::LongInt(number) => json!({ "I": number }),
        AMQPValue::LongUInt(number) => json!({ "i": number }),
        // Stored as text: JSON's numbers have neither NaN nor the sign of zero.
        AMQPValue::Float(number) => json!({ "f": format!("{number:?}") }),
        AMQPValue::Double(number) => json!({ "d": format!("{number:?}") }),
        AMQPValue::DecimalValue(decimal) => json!({ "D": [decimal.scale, decimal.value] }),
        AMQPValue::Timestamp(seconds) => json!({ "T": seconds.to_string() }),
        AMQPValue::ByteArray(bytes) => json!({ "x": format_hexadecimal(bytes.as_slice()) }),
        AMQPValue::FieldTable(inner) => json!({ "F": store_table(inner, depth + 1)? }),
    })
}

/// Converts stored JSON back to a header's value; `None` if its form is not that of [`store_value`].
fn restore_value(value: &Value) -> Option<AMQPValue> {
    let (kind, value) = match value {
        Value::Null => return Some(AMQPValue::Void),
        Value::Bool(truth) => return Some(AMQPValue::Boolean(*truth)),
        Value::Number(number) => return number.as_i64().map(AMQPValue::LongLongInt),
        Value::String(text) => return Some(AMQPValue::LongString(text.as_str().into())),
        Value::Array(values) => {
            let values: Option<Vec<AMQPValue>> = values.iter().map(restore_value).collect();
            return Some(AMQPValue::FieldArray(FieldArray::from(values?)));
        }
        Value::Object(object) if object.len() == 1 => object.iter().next()?,
        Value::Object(_) => return None,
    };
    fn parse_integer<T: TryFrom<i64>>(value: &Value) -> Option<T> {
        T::try_from(value.as_i64()?).ok()
    }
    Some(match kind.as_str() {
        "b" => AMQPValue::ShortShortInt(parse_integer(value)?),
        "B" => AMQPValue::ShortShortUInt(parse_integer(value)?),
        "s" => AMQPValue::ShortInt(parse_integer(value)?),
        "u" => AMQPValue::ShortUInt(parse_integer(value)?),
        "I" => AMQPValue::LongInt(parse_integer(value)?),
        "i" => AMQPValue::LongUInt(parse_integer(value)?),
        "f" => AMQPValue::Float(value.as_str()?.parse().ok()?),
        "d" => AMQPValue::Double(value.as_str()?.parse().ok()?),
        "T" => AMQPValue::Timestamp(value.as_str()?.parse().ok()?),
        "S" => AMQPValue::LongString(parse_hexadecimal(value)?.into()),
        "x" => AMQPValue::ByteArray(ByteArray::from(parse_hexadecimal(value)?)),
        "D" => {
            let parts = value.as_array().filter(|parts| parts.len() == 2)?;
            AMQPValue::DecimalValue(DecimalValue {
                scale: parse_integer(&parts[0])?,
                value: parse_integer(&parts[1])?,
            })
        }
        "F" => AMQPValue::FieldTable(restore_headers(value)?),
        _ => return None,
    })
}

/// Converts all properties except the headers to JSON.
pub fn store_properties(properties: &BasicProperties) -> Value {
    let mut object = Map::new();
    let text = |text: &ShortString| match text.as_str() {
        text if text.contains('\0') => json!({ "x": format_hexadecimal(text.as_bytes()) }),
        text => json!(text),
    };
    macro_rules! put {
        ($($name:literal: $property:ident),+) => {
            $(if let Some(value) = properties.$property() {
                object.insert($name.to_owned(), text(value));
            })+
        };
    }
    put!(
        "content_type": content_type, "content_encoding": content_encoding, "correlation_id": correlation_id,
        "reply_to": reply_to, "expiration": expiration, "message_id": message_id, "type": kind, "user_id": user_id,
        "app_id": app_id, "cluster_id": cluster_id
    );
    if let Some(mode) = properties.delivery_mode() {
        object.insert("delivery_mode".to_owned(), json!(mode));
    }
    if let Some(priority) = properties.priority() {
        object.insert("priority".to_owned(), json!(priority));
    }
    if let Some(seconds) = properties.timestamp() {
        object.insert("timestamp".to_owned(), json!(seconds));
    }
    Value::Object(object)
}

/// Restores properties, without headers, from JSON; `None` if its form is not that of [`store_properties`].
pub fn restore_properties(stored: &Value) -> Option<BasicProperties> {
    let mut properties = BasicProperties::default();
    for (name, value) in stored.as_object()? {
        let text = || match value {
            Value::String(text) => ShortString::try_new(text.as_str()).ok(),
            other => ShortString::try_new(String::from_utf8(parse_hexadecimal(other.get("x")?)?).ok()?).ok(),
        };
        let small = || u8::try_from(value.as_u64()?).ok();
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(text()?),
            "content_encoding" => properties.with_content_encoding(text()?),
            "correlation_id" => properties.with_correlation_id(text()?),
            "reply_to" => properties.with_reply_to(text()?),
            "expiration" => properties.with_expiration(text()?),
            "message_id" => properties.with_message_id(text()?),
            "type" => properties.with_type(text()?),
            "user_id" => properties.with_user_id(text()?),
            "app_id" => properties.with_app_id(text()?),
            "cluster_id" => properties.with_cluster_id(text()?),
            "delivery_mode" => properties.with_delivery_mode(small()?),
            "priority" => properties.with_priority(small()?),
            "timestamp" => properties.with_timestamp(value.as_u64()?),
            _ => return None,
        };
    }
    Some(properties)
}

fn format_hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hexadecimal(value: &Value) -> Option<Vec<u8>> {
    let text = value.as_str().filter(|text| text.is_ascii() && text.len().is_multiple_of(2))?;
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = AMQPValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(AMQPValue::Boolean),
            any::<i8>().prop_map(AMQPValue::ShortShortInt),
            any::<u8>().prop_map(AMQPValue::ShortShortUInt),
            any::<i16>().prop_map(AMQPValue::ShortInt),
            any::<u16>().prop_map(AMQPValue::ShortUInt),
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<u32>().prop_map(AMQPValue::LongUInt),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            any::<f32>().prop_filter("equal to itself", |n| !n.is_nan()).prop_map(AMQPValue::Float),
            any::<f64>().prop_filter("equal to itself", |n| !n.is_nan()).prop_map(AMQPValue::Double),
            (any::<u8>(), any::<u32>())
                .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
            any::<u64>().prop_map(AMQPValue::Timestamp),
            ".*".prop_map(|text| AMQPValue::LongString(text.into())),
            any::<Vec<u8>>().prop_map(|bytes| AMQPValue::LongString(bytes.into())),
            any::<Vec<u8>>().prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
            Just(AMQPValue::Void),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|all| AMQPValue::FieldArray(all.into())),
                prop::collection::btree_map("[a-zA-Z]{0,3}", inner, 0..4).prop_map(|all| {
                    let all: BTreeMap<ShortString, AMQPValue> =
                        all.into_iter().map(|(name, value)| (name.as_str().into(), value)).collect();
                    AMQPValue::FieldTable(all.into())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_header_comes_back_as_it_was(value in value()) {
            let mut headers = FieldTable::default();
            headers.insert("h".into(), value);
            let stored = store_headers(&headers).unwrap();
            let text = serde_json::to_string(&stored).unwrap();
            prop_assert!(!text.contains("\\u0000"), "jsonb can't hold it: {text}");
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(restore_headers(&read), Some(headers));
        }
    }

    #[test]
    fn headers_that_nest_too_deep_or_have_no_text_for_a_name_are_not_stored() {
        let nested = |levels: u32| {
            (0..levels).fold(FieldTable::default(), |inner, _| {
                let mut outer = FieldTable::default();
                outer.insert("t".into(), AMQPValue::FieldTable(inner));
                outer
            })
        };
        let ten = nested(10);
        let text = serde_json::to_string(&store_headers(&ten).unwrap()).unwrap();
        assert_eq!(restore_headers(&serde_json::from_str(&text).unwrap()), Some(ten));
        assert_eq!(store_headers(&nested(60)), None);
        let mut named = FieldTable::default();
        named.insert("a\0".into(), AMQPValue::Void);
        assert_eq!(store_headers(&named), None);
    }

    #[test]
    fn all_properties_come_back_as_they_were() {
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_content_encoding("gzip".into())
            .with_delivery_mode(2)
            .with_priority(7)
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_expiration("1000".into())
            .with_message_id("a\0b".into())
            .with_timestamp(u64::MAX)
            .with_type("t".into())
            .with_user_id("u".into())
            .with_app_id("a".into())
            .with_cluster_id("cl".into());
        let text = serde_json::to_string(&store_properties(&properties)).unwrap();
        assert!(!text.contains("\\u0000"), "{text}");
        assert_eq!(restore_properties(&serde_json::from_str(&text).unwrap()), Some(properties));
    }
}
