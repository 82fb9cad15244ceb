//! The notation of bytes and of typed headers.

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use crate::RawValue;

/// Bytes: a text, `{ hex }`, `{ text, times }`, `{ hex, times }`, or an array of these. `{key}` in a text stands for `key`.
pub(super) fn bytes(value: &Value, key: &str) -> anyhow::Result<Vec<u8>> {
    Ok(match value {
        Value::String(text) => text.replace("{key}", key).into_bytes(),
        Value::Array(parts) => {
            parts.iter().map(|part| bytes(part, key)).collect::<anyhow::Result<Vec<_>>>()?.concat()
        }
        Value::Table(table) => {
            let once = match (table.get("text"), table.get("hex")) {
                (Some(text), None) => bytes(text, key)?,
                (None, Some(hex)) => unhex(hex.as_str().context("hex is a text")?)?,
                _ => bail!("neither text nor hex: {table}"),
            };
            let times = table.get("times").map_or(Some(1), Value::as_integer).context("times is a number")?;
            once.repeat(usize::try_from(times)?)
        }
        other => bail!("these are no bytes: {other}"),
    })
}

/// Hexadecimal digits; blanks between them are ignored.
pub(super) fn unhex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits: String = text.split_whitespace().collect();
    anyhow::ensure!(digits.len().is_multiple_of(2), "half a byte: {text}");
    (0..digits.len())
        .step_by(2)
        .map(|at| Ok(u8::from_str_radix(digits.get(at..at + 2).context("not ASCII")?, 16)?))
        .collect()
}

/// Headers: `[[name, letter, value], …]`, or `{ many = 200 }`.
pub(super) fn entries(value: &Value, key: &str) -> anyhow::Result<Vec<(Vec<u8>, RawValue)>> {
    if let Some(many) = value.get("many").and_then(Value::as_integer) {
        return Ok((0..many).map(|n| (format!("h{n}").into_bytes(), RawValue::text(b"v"))).collect());
    }
    value
        .as_array()
        .context("headers are an array")?
        .iter()
        .map(|entry| {
            let entry = entry.as_array().context("a header is an array")?;
            let name = entry.first().context("a header has a name")?;
            Ok((bytes(name, key)?, typed(entry.get(1..).unwrap_or_default(), key)?))
        })
        .collect()
}

/// `[letter, value]`.
fn typed(letter_and_value: &[Value], key: &str) -> anyhow::Result<RawValue> {
    let letter = letter_and_value.first().and_then(Value::as_str).context("a value has a letter")?;
    let &[letter] = letter.as_bytes() else { bail!("not one letter: {letter}") };
    let Some(value) = letter_and_value.get(1) else { return Ok(RawValue::Plain(letter, Vec::new())) };
    if let Some(hex) = value.get("raw").and_then(Value::as_str) {
        return Ok(RawValue::Plain(letter, unhex(hex)?));
    }
    Ok(match letter {
        b'S' | b'x' => RawValue::Text(letter, bytes(value, key)?),
        b'A' => RawValue::Array(match nesting(value) {
            Some(levels) => vec![nested(levels, |inner| RawValue::Array(vec![inner]))],
            None => {
                let values = value.as_array().context("A takes an array")?;
                let typed =
                    values.iter().map(|value| typed(value.as_array().map_or(&[], Vec::as_slice), key));
                typed.collect::<anyhow::Result<_>>()?
            }
        }),
        b'F' => RawValue::Table(match nesting(value) {
            Some(levels) => {
                vec![(b"t".to_vec(), nested(levels, |inner| RawValue::Table(vec![(b"t".to_vec(), inner)])))]
            }
            None => entries(value, key)?,
        }),
        _ => RawValue::Plain(letter, number(letter, value)?),
    })
}

fn nesting(value: &Value) -> Option<i64> {
    value.get("nest").and_then(Value::as_integer)
}

fn nested(levels: i64, round: impl Fn(RawValue) -> RawValue) -> RawValue {
    (1..levels).fold(RawValue::Plain(b'V', Vec::new()), |inner, _| round(inner))
}

fn number(letter: u8, value: &Value) -> anyhow::Result<Vec<u8>> {
    let integer = || value.as_integer().with_context(|| format!("{value} is no integer"));
    let float = || value.as_float().with_context(|| format!("{value} is no fraction"));
    Ok(match letter {
        b't' => vec![u8::from(value.as_bool().context("t takes a boolean")?)],
        b'b' => i8::try_from(integer()?)?.to_be_bytes().to_vec(),
        b'B' => u8::try_from(integer()?)?.to_be_bytes().to_vec(),
        b's' => i16::try_from(integer()?)?.to_be_bytes().to_vec(),
        b'u' => u16::try_from(integer()?)?.to_be_bytes().to_vec(),
        b'I' => i32::try_from(integer()?)?.to_be_bytes().to_vec(),
        b'i' => u32::try_from(integer()?)?.to_be_bytes().to_vec(),
        b'l' => integer()?.to_be_bytes().to_vec(),
        b'T' => u64::try_from(integer()?)?.to_be_bytes().to_vec(),
        // Cut to a float on purpose.
        #[allow(clippy::cast_possible_truncation)]
        b'f' => (float()? as f32).to_be_bytes().to_vec(),
        b'd' => float()?.to_be_bytes().to_vec(),
        b'D' => {
            let part = |index| value.get(index).and_then(Value::as_integer).context("D takes [scale, value]");
            let mut decimal = vec![u8::try_from(part(0)?)?];
            decimal.extend(u32::try_from(part(1)?)?.to_be_bytes());
            decimal
        }
        other => bail!("no type has the letter {:?}; give its bytes as raw", char::from(other)),
    })
}

/// A number of 64 bits, or its bytes.
pub(super) fn timestamp(value: &Value) -> anyhow::Result<u64> {
    Ok(match value.as_integer() {
        Some(number) => u64::try_from(number)?,
        None => u64::from_be_bytes(bytes(value, "")?.as_slice().try_into()?),
    })
}

/// The names of a table that nothing has read.
pub(super) fn nothing_left(table: &Table, known: &[&str]) -> anyhow::Result<()> {
    match table.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => bail!("nobody knows {unknown:?}"),
        None => Ok(()),
    }
}
