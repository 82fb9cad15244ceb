//! A value of a header as it stands on the wire.

use std::collections::BTreeMap;

use super::wire::{Cursor, long, short};

/// A typed value; the letters are those of RabbitMQ's errata to AMQP 0-9-1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawValue {
    /// `S` (text) or `x` (bytes): a length and any bytes.
    Text(u8, Vec<u8>),
    /// A number, a truth value, a timestamp, nothing: a letter and the bytes after it. Any letter can be written.
    Plain(u8, Vec<u8>),
    /// `A`.
    Array(Vec<RawValue>),
    /// `F`: names may come twice, and may be any bytes.
    Table(Vec<(Vec<u8>, RawValue)>),
}

impl RawValue {
    /// Text.
    #[must_use]
    pub fn text(bytes: &[u8]) -> Self {
        Self::Text(b'S', bytes.to_vec())
    }

    /// Appends the letter and the value.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Text(letter, bytes) => {
                to.push(*letter);
                long(to, bytes);
            }
            Self::Plain(letter, bytes) => {
                to.push(*letter);
                to.extend(bytes);
            }
            Self::Array(values) => {
                to.push(b'A');
                nested(to, |to| values.iter().for_each(|value| value.encode(to)));
            }
            Self::Table(entries) => {
                to.push(b'F');
                nested(to, |to| encode_entries(entries, to));
            }
        }
    }

    fn decode(from: &mut Cursor<'_>) -> anyhow::Result<Self> {
        let letter = u8::try_from(from.number::<1>()?)?;
        let length = match letter {
            b'S' | b'x' => return Ok(Self::Text(letter, from.long()?.to_vec())),
            b'F' => return Ok(Self::Table(decode_entries(from.long()?)?)),
            b'A' => {
                let mut inner = Cursor(from.long()?);
                let mut values = Vec::new();
                while !inner.is_empty() {
                    values.push(Self::decode(&mut inner)?);
                }
                return Ok(Self::Array(values));
            }
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'l' | b'L' | b'd' | b'T' => 8,
            other => anyhow::bail!("no type has the letter {:?}", char::from(other)),
        };
        Ok(Self::Plain(letter, from.take(length)?.to_vec()))
    }

    /// With tables and arrays below so many levels as bytes of the same meaning; this is a value in the first one.
    #[must_use]
    pub fn in_bytes_below(&self, levels: u32) -> Self {
        match self {
            Self::Array(_) | Self::Table(_) if levels == 1 => {
                let mut encoded = Vec::new();
                self.encode(&mut encoded);
                // Without letter and length.
                Self::Text(b'x', encoded.split_off(5))
            }
            Self::Array(values) => {
                Self::Array(values.iter().map(|one| one.in_bytes_below(levels - 1)).collect())
            }
            Self::Table(entries) => Self::Table(
                entries.iter().map(|(name, one)| (name.clone(), one.in_bytes_below(levels - 1))).collect(),
            ),
            other => other.clone(),
        }
    }

    /// What it means: the same for all ways to write one value, so that what a client library writes anew can be compared
    /// with what was sent. `U` and `s`, `L` and `l` are one type to RabbitMQ; every byte but 0 is true; of several
    /// entries of one name the last one counts.
    #[must_use]
    pub fn meaning(&self) -> Self {
        match self {
            Self::Plain(b'U', bytes) => Self::Plain(b's', bytes.clone()),
            Self::Plain(b'L', bytes) => Self::Plain(b'l', bytes.clone()),
            Self::Plain(b't', bytes) => Self::Plain(b't', bytes.iter().map(|b| u8::from(*b != 0)).collect()),
            Self::Array(values) => Self::Array(values.iter().map(Self::meaning).collect()),
            Self::Table(entries) => Self::Table(meaning_of(entries).into_iter().collect()),
            other => other.clone(),
        }
    }
}

/// The entries of a table by name; the last one of a name counts.
pub(super) fn meaning_of(entries: &[(Vec<u8>, RawValue)]) -> BTreeMap<Vec<u8>, RawValue> {
    entries.iter().map(|(name, value)| (name.clone(), value.meaning())).collect()
}

/// Writes the entries of a table, without its length.
pub(super) fn encode_entries(entries: &[(Vec<u8>, RawValue)], to: &mut Vec<u8>) {
    for (name, value) in entries {
        short(to, name);
        value.encode(to);
    }
}

/// Reads the entries of a table.
pub(super) fn decode_entries(bytes: &[u8]) -> anyhow::Result<Vec<(Vec<u8>, RawValue)>> {
    let mut from = Cursor(bytes);
    let mut entries = Vec::new();
    while !from.is_empty() {
        let name = from.short()?.to_vec();
        entries.push((name, RawValue::decode(&mut from)?));
    }
    Ok(entries)
}

/// Writes a length and what it is the length of, in place: copying each level into the next would be quadratic.
fn nested(to: &mut Vec<u8>, inner: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend([0; 4]);
    inner(to);
    let length = u32::try_from(to.len() - start - 4).unwrap_or(u32::MAX);
    to[start..start + 4].copy_from_slice(&length.to_be_bytes());
}
