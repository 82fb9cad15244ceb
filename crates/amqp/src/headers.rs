//! Limits a message's headers to one frame. Pure.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, ShortString};

use oncely_core::own_headers;

/// Number of bytes reserved for all other properties: at most thirteen short strings and numbers, and the frame around them.
const OTHER_PROPERTY_BYTES: usize = 4_096;

/// Maximum number of bytes of one of Oncely's own headers, which are recognized by name alone: a publisher may use any number of similar
/// names. A larger one may be a publisher's.
const MAX_OWN_HEADER_BYTES: usize = 2_048;

/// Maximum number of values in an arriving message's headers, including those in tables and arrays; a table counts as seven.
pub const MAX_VALUES: usize = 4_096;

/// Drops the largest headers until the others fit into one frame: AMQP can't split the headers of a message, and a broker closes the
/// connection over a larger frame. Oncely's own headers are never dropped.
pub fn fit_headers(headers: FieldTable, frame_max: u32) -> FieldTable {
    let max_bytes = match usize::try_from(frame_max) {
        // No limit.
        Ok(0) | Err(_) => return headers,
        Ok(frame) => frame.saturating_sub(OTHER_PROPERTY_BYTES),
    };
    let mut total = table_size(&headers);
    if total <= max_bytes {
        return headers;
    }
    let mut by_size: Vec<(usize, String)> = headers
        .inner()
        .iter()
        .map(|(name, value)| (entry_size(name.as_str(), value), name.to_string()))
        .filter(|(size, name)| !own_headers::ALL.contains(&name.as_str()) || *size > MAX_OWN_HEADER_BYTES)
        .collect();
    by_size.sort();
    let mut left_out = Vec::new();
    while total + 512 > max_bytes {
        let Some((size, name)) = by_size.pop() else { break };
        total -= size;
        left_out.push(name);
    }
    let kept: BTreeMap<_, _> = headers
        .inner()
        .clone()
        .into_iter()
        .filter(|(name, _)| !left_out.iter().any(|out| out == name.as_str()))
        .collect();
    let mut kept: FieldTable = kept.into();
    let mut names = left_out.join(", ");
    names.truncate((0..=255).rev().find(|&end| names.is_char_boundary(end)).unwrap_or(0));
    kept.insert(own_headers::LEFT_OUT.into(), AMQPValue::LongString(names.into()));
    kept
}

/// Returns the size of a table on the wire: a length, then the entries.
pub(super) fn table_size(table: &FieldTable) -> usize {
    4 + table.inner().iter().map(|(name, value)| entry_size(name.as_str(), value)).sum::<usize>()
}

/// Bytes counted for each value, regardless of its size on the wire. Collections have twice the needed capacity.
const VALUE_BYTES: usize = 2 * size_of::<(ShortString, AMQPValue)>();

/// Returns the bytes of memory that headers take.
pub(super) fn table_memory(table: &FieldTable) -> usize {
    table_size(table) + count_values(table) * VALUE_BYTES
}

/// Number of values that a table counts as beside its own: even one with a single entry takes a node with room for eleven.
pub(super) const TABLE_VALUES: usize = 6;

/// Counts the values in all headers, including those in tables and arrays; a table counts [`TABLE_VALUES`] more.
pub(super) fn count_values(table: &FieldTable) -> usize {
    table.inner().values().map(count_values_in).sum()
}

/// Counts a value, and the values in it.
fn count_values_in(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(count_values_in).sum(),
        AMQPValue::FieldTable(inner) => TABLE_VALUES + count_values(inner),
        _ => 0,
    }
}

fn entry_size(name: &str, value: &AMQPValue) -> usize {
    1 + name.len() + value_size(value)
}

/// Returns the size of a value with its type on the wire.
fn value_size(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.as_slice().len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(value_size).sum::<usize>(),
        AMQPValue::FieldTable(inner) => table_size(inner),
        AMQPValue::Void => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sizes: &[(&str, usize)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, size) in sizes {
            table.insert((*name).into(), AMQPValue::LongString("x".repeat(*size).into()));
        }
        table
    }

    #[test]
    fn a_table_of_one_entry_counts_as_much_as_its_node_takes() {
        let mut chain = FieldTable::default();
        chain.insert("a".into(), AMQPValue::Void);
        for _ in 0..62 {
            let mut outer = FieldTable::default();
            outer.insert("a".into(), AMQPValue::FieldTable(chain));
            chain = outer;
        }
        assert_eq!(count_values(&chain), 62 * 7 + 1);
        // A node of eleven entries, and a name.
        let node = 11 * size_of::<(ShortString, AMQPValue)>() + 48;
        assert!(table_memory(&chain) > 62 * node, "{}", table_memory(&chain));
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let headers = table(&[("a", 1_000), ("x-oncely-reason", 10)]);
        assert_eq!(fit_headers(headers.clone(), 131_072), headers);
        assert_eq!(fit_headers(headers.clone(), 0), headers, "0 means no limit");
    }

    #[test]
    fn the_largest_headers_go_first_and_ours_never() {
        let headers =
            table(&[("big", 64_000), ("bigger", 65_000), ("small", 10), ("x-oncely-detail", 1_000)]);
        let kept = fit_headers(headers, 131_072);
        assert!(
            kept.contains_key("big") && kept.contains_key("small") && kept.contains_key("x-oncely-detail")
        );
        assert!(!kept.contains_key("bigger"));
        assert_eq!(kept.inner().get(own_headers::LEFT_OUT), Some(&AMQPValue::LongString("bigger".into())));
        assert!(table_size(&kept) < 131_072 - OTHER_PROPERTY_BYTES);
    }

    #[test]
    fn a_publishers_header_is_not_ours_by_its_name() {
        let many: Vec<(String, usize)> = (0..100).map(|n| (format!("x-oncely-junk-{n}"), 1_900)).collect();
        let many: Vec<(&str, usize)> = many.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        for junk in [&[("x-oncely-junk", 130_000)][..], &[("x-oncely-key", 130_000)], &many] {
            let kept = fit_headers(table(&[junk, &[("x-oncely-reason", 10)]].concat()), 131_072);
            assert!(kept.contains_key("x-oncely-reason"));
            assert!(table_size(&kept) < 131_072 - OTHER_PROPERTY_BYTES);
        }
    }
}
